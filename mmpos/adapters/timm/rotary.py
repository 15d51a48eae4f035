"""Rotary encodings in timm's models."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch.nn.functional as F
from jaxtyping import Float
from timm.models.beit import Beit
from torch import Tensor, nn

from ...encodings import RoPE, RotaryEncoding, Rotation
from ...encodings.base import Role
from .attention import TurningAttention
from .parts import Parts, grid_of, head_width, parts_of
from .slot import Positions, Slot, check_free, check_positions, corners, for_layers


class RotarySlot(Slot):
    """Turns the queries and keys of a model where its own rotation would: behind their norms."""

    name = "mmpos_rotary"

    def evaluate(self, encoding: RotaryEncoding) -> Rotation:
        prefix = (0, 0, self.num_prefix_tokens, 0)
        return encoding(F.pad(self.now.place(encoding), prefix))  # prefix tokens stand still, at 0

    def enter(self) -> None:
        """Goes into the model, whose own rotation goes out."""
        model = self.parts.model
        if getattr(model, "rope", None) is not None:
            self._set(model, "rope", None)
        for layer, _, attention in self.parts.attentions():
            if isinstance(model, Beit):
                self._set(attention, "__class__", TurningAttention)
                self._set(attention, "turn", partial(self.turn, layer))
                continue
            self._hooks += [
                attention.q_norm.register_forward_hook(partial(self._turn_output, layer, "query")),
                attention.k_norm.register_forward_hook(partial(self._turn_output, layer, "key")),
            ]
        self._enter()
        self._follow()

    def turn(self, layer: int, role: Role, x: Float[Tensor, "b h n d"]) -> Float[Tensor, "b h n d"]:
        """Queries or keys of a layer, turned."""
        rotation = self._result(layer)
        return x if rotation is None else rotation.apply(x, role)

    def _turn_output(self, layer: int, role: Role, norm: nn.Module, args: tuple, output: Tensor) -> Tensor:
        return self.turn(layer, role, output)


def add_rotary(
    model: nn.Module,
    rope: RotaryEncoding | Sequence[RotaryEncoding | None],
    *,
    positions: Positions | None = None,
) -> RotarySlot:
    """Makes a model turn its queries and keys by ``rope``; a rotation of its own goes out.

    Class and register tokens stand still. Patches turn by their place in the grid of each forward, whichever of them
    are kept. The model's position embedding stays; see `remove_pos_embed`.

    Args:
        model: A VisionTransformer (ViT, DeiT, DeiT III, CLIP, SigLIP, DINOv2), Beit, Eva (EVA-02, DINOv3, rope-vit)
            or NaFlexVit of timm, changed in place.
        rope: The encoding of all layers, or a sequence with one or None for each, as learned frequencies have it.
        positions: How patches become coordinates, a `mmpos.models.GridPositions`; their index unless given. DINOv3 has
            ``GridPositions(normalise="separate")``, EVA-02 ``GridPositions(trained=(16, 16))``.

    Returns:
        The slot, whose ``undo()`` takes the rotation out again, as the end of a ``with`` statement does.

    Raises:
        ValueError: If the model has a rotation of ours already, its attention cannot be reached, or the encoding does
            not fit its heads or the layout of its own rotation. The model is then as it was.

    Example:
        >>> import timm
        >>> model = timm.create_model("vit_tiny_patch16_224", depth=2)
        >>> with add_rotary(model, RoPE(head_dim=64, axes=2, base=100.0)):
        ...     model(torch.randn(1, 3, 224, 224)).shape
        torch.Size([1, 1000])

    Reference:
        Heo et al., Rotary position embedding for vision transformer, 2024. https://arxiv.org/abs/2403.13298
    """
    check_free(model, RotarySlot.name)
    check_positions(positions)
    parts = parts_of(model)
    layers = for_layers(RotaryEncoding, "rope", rope, parts)
    for layer, name, attention in parts.attentions():
        if layers[layer] is not None:
            _check(layers[layer], name, attention, parts)
    slot = RotarySlot(parts, layers, positions)
    slot.enter()
    return slot


def _check(rope: RotaryEncoding, name: str, attention: Any, parts: Parts) -> None:
    width, heads = head_width(attention), getattr(attention, "num_kv_heads", attention.num_heads)
    if isinstance(rope, RoPE) and rope.head_dim != width:
        raise ValueError(f"head_dim ({rope.head_dim}) must be that of the heads of {name} ({width})")
    rotation = rope(corners(rope, *grid_of(parts.model)))
    groups, _, pairs = rotation.cos.shape[-3:]
    if 2 * pairs > width:
        raise ValueError(f"the encoding turns {2 * pairs} channels, but heads of {name} have {width}")
    if heads % groups:
        raise ValueError(f"the encoding has {groups} heads, which must divide the {heads} of {name}")
    if getattr(parts.model, "rope", None) is None:
        return
    own = "half" if getattr(attention, "rotate_half", False) else "interleaved"
    if rotation.layout != own:
        raise ValueError(
            f"layout is {rotation.layout!r}, but {name} pairs channels as {own!r}; weights change between them by "
            "convert_layout"
        )
