"""Attention biases in timm's models."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from timm.models.beit import Beit
from timm.models.swin_transformer import SwinTransformer
from torch import Tensor, nn

from ...attend.pairs import add_prefix
from ...coords import grid_coords
from ...encodings import AttentionBias
from ..layers import check_plain
from .attention import BiasedWindowAttention
from .parts import Parts, grid_of, parts_of
from .slot import Positions, Slot, check_free, check_positions, corners, for_layers


class BiasSlot(Slot):
    """Adds to the logits of a model, as a mask that its attention takes."""

    name = "mmpos_bias"

    def evaluate(self, encoding: AttentionBias) -> Float[Tensor, "#b h m m"]:
        place, prefix = self.now.place(encoding), self.num_prefix_tokens
        bias = encoding(place, place)
        return add_prefix(bias if bias.ndim == 4 else bias[None], prefix, prefix, encoding.prefix_bias())

    def enter(self) -> None:
        """Goes into the model, whose own relative bias goes out."""
        model = self.parts.model
        if getattr(model, "rel_pos_bias", None) is not None:
            self._set(model, "rel_pos_bias", None)
        for layer, _, attention in self.parts.attentions():
            if getattr(attention, "relative_position_bias_table", None) is not None:
                self._set(attention, "relative_position_bias_table", None)
            if isinstance(model, SwinTransformer):
                self._set(attention, "__class__", BiasedWindowAttention)
                self._set(attention, "window_bias", partial(self.window_bias, layer))
                continue
            name = "shared_rel_pos_bias" if isinstance(model, Beit) else "attn_mask"
            hook = partial(self._give, layer, name)
            self._hooks.append(attention.register_forward_pre_hook(hook, with_kwargs=True))
        self._enter()
        if isinstance(model, SwinTransformer):
            self._hooks.append(self.parts.embed.register_forward_pre_hook(self._refuse_replica))
        else:
            self._follow()

    def resize(self, rows: int, columns: int) -> None:
        if not isinstance(self.parts.model, SwinTransformer):
            return super().resize(rows, columns)
        for number, encoding in enumerate(self.encodings):
            assert isinstance(encoding, AttentionBias)
            of = [each.window_size for layer, _, each in self.parts.attentions() if self.layers[layer] == number]
            self.encodings[number] = encoding.resize(*(max(sides) for sides in zip(*of, strict=True)))
        return None

    def window_bias(self, layer: int, window: Sequence[int], device: torch.device) -> Float[Tensor, "#h n n"]:
        """The bias within a window of Swin, of which every layer has its own."""
        number, cells = self.layers[layer], grid_coords(*window, device=device)
        if number is None:
            return torch.zeros(1, len(cells), len(cells), device=device)
        return self.encodings[number](cells, cells)

    def _give(self, layer: int, name: str, attention: nn.Module, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Puts the bias of a layer where its attention takes a mask, with the mask that it was given."""
        bias, x = self._result(layer), args[0]
        if bias is None:
            return None
        bias, given = bias.to(x.dtype), kwargs.get(name)
        if kwargs.get("is_causal"):
            kwargs["is_causal"] = False
            given = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()
        if given is not None:
            least = torch.finfo(x.dtype).min  # what masks of timm have, for a row of -inf would become NaN
            both = torch.where(given, bias, least) if given.dtype == torch.bool else bias.float() + given
            bias = both.clamp(min=least).to(x.dtype)
        return args, {**kwargs, name: bias}


def add_bias(
    model: nn.Module,
    bias: AttentionBias | Sequence[AttentionBias | None],
    *,
    positions: Positions | None = None,
) -> BiasSlot:
    """Makes a model add ``bias`` to its attention logits; a relative bias of its own, as Swin's and BEiT's, goes out.

    It is computed once a forward and goes to fused attention as a mask. Class and register tokens have the bias that
    the encoding has for them, otherwise none. In Swin it acts within windows.

    Args:
        model: A model as `add_rotary` takes, or a SwinTransformer, changed in place.
        bias: The bias of all layers, or a sequence with one or None for each.
        positions: How patches become coordinates, as for `add_rotary`; tables take the index in any case.

    Returns:
        The slot, whose ``undo()`` takes the bias out again, as the end of a ``with`` statement does.

    Raises:
        ValueError: If the model has a bias of ours already, its attention cannot be reached, or the encoding does not
            fit its heads or its grid, or depends on content. The model is then as it was.

    Example:
        >>> import timm
        >>> model = timm.create_model("vit_tiny_patch16_224", depth=2)
        >>> slot = add_bias(model, ALiBi(num_heads=3, axes=2))
        >>> model(torch.randn(1, 3, 224, 224)).shape
        torch.Size([1, 1000])
    """
    check_free(model, BiasSlot.name)
    check_positions(positions)
    parts = parts_of(model, windows=True)
    layers = for_layers(AttentionBias, "bias", bias, parts)
    for layer, name, attention in parts.attentions():
        if layers[layer] is not None:
            _check(layers[layer], name, attention, parts)
    if isinstance(model, SwinTransformer) and positions is not None:
        raise ValueError(f"positions must be None in Swin, whose bias acts within windows, got {positions}")
    slot = BiasSlot(parts, layers, positions)
    slot.enter()
    return slot


def _check(bias: AttentionBias, name: str, attention: Any, parts: Parts) -> None:
    check_plain(bias, name)
    grid = attention.window_size if isinstance(parts.model, SwinTransformer) else grid_of(parts.model)
    ends = corners(bias, *grid)
    heads = bias(ends, ends).shape[-3]
    if heads not in (1, attention.num_heads):
        raise ValueError(f"{type(bias).__name__} has {heads} heads, but {name} has {attention.num_heads}")
