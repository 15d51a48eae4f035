"""Additive encodings in timm's models."""

from math import prod

import torch
from timm.models.deit import VisionTransformerDistilled
from timm.models.naflexvit import NaFlexVit
from torch import Tensor, nn

from ...encodings import AdditiveEncoding
from .parts import Parts, grid_of, parts_of
from .slot import Positions, Slot, check_free, check_patches, check_positions, corners


class AdditiveSlot(Slot):
    """Adds to the patches of a model where its own position embedding is added.

    Rows of that for prefix tokens are kept, as ``prefix``: they say which token it is, not where.
    """

    name = "mmpos_additive"

    def __init__(self, parts: Parts, encoding: AdditiveEncoding | None, positions: Positions | None = None):
        super().__init__(parts, [encoding], positions)
        self.prefix = _prefix_rows(parts)

    def enter(self) -> None:
        """Goes into the model, whose own position embedding goes out."""
        owner = self.parts.embed if isinstance(self.parts.model, NaFlexVit) else self.parts.model
        for name in ("pos_embed", "pos_embed_y", "pos_embed_x"):
            if getattr(owner, name, None) is not None:
                self._set(owner, name, None)
        if isinstance(self.parts.model, NaFlexVit):
            self._set(owner, "pos_embed_type", "none")
        self._enter()
        self._hooks += [
            self.parts.embed.register_forward_pre_hook(self._note_grid, with_kwargs=True),
            self.parts.entry.register_forward_pre_hook(self._add),
        ]

    def no_weight_decay(self) -> set[str]:
        return super().no_weight_decay() | (set() if self.prefix is None else {"prefix"})

    def _add(self, entry: nn.Module, args: tuple) -> tuple[Tensor]:
        x, prefix = args[0], self.num_prefix_tokens
        rows = x.new_zeros(1, prefix, x.shape[-1]) if self.prefix is None else self.prefix
        patches = x[:, prefix:]
        for encoding in self.encodings:
            assert isinstance(encoding, AdditiveEncoding)
            patches = patches + encoding(self.now.place(encoding)).to(x.dtype)
        x = torch.cat([x[:, :prefix] + rows, patches], dim=1) if prefix else patches
        return (x if self.parts.pos_drop is None else self.parts.pos_drop(x),)


def replace_pos_embed(
    model: nn.Module, encoding: AdditiveEncoding, *, positions: Positions | None = None
) -> AdditiveSlot:
    """Puts ``encoding`` in the place of a model's position embedding; one that has none gains it.

    Args:
        model: A model as `add_rotary` takes, changed in place.
        encoding: What is added to the patches.
        positions: How patches become coordinates, as for `add_rotary`; tables take the index in any case.

    Returns:
        The slot, whose ``undo()`` puts the model's own back, as the end of a ``with`` statement does.

    Raises:
        ValueError: If the embedding is replaced or removed already, the model cannot do without, or the encoding does
            not fit its width or its grid. The model is then as it was.

    Example:
        >>> import timm
        >>> model = timm.create_model("vit_tiny_patch16_224", depth=2)
        >>> slot = replace_pos_embed(model, Sinusoidal(dim=192, axes=2))
        >>> model.pos_embed is None, slot.prefix.shape  # the class token keeps its row
        (True, torch.Size([1, 1, 192]))
    """
    check_positions(positions)
    parts = _check_model(model)
    if not isinstance(encoding, AdditiveEncoding):
        raise TypeError(f"encoding must be an AdditiveEncoding, got {encoding!r}")
    check_patches(encoding, "encoding", parts)
    dim = encoding(corners(encoding, *grid_of(model))).shape[-1]
    if dim != model.embed_dim:
        raise ValueError(f"dim ({dim}) must be the width of the model ({model.embed_dim})")
    slot = AdditiveSlot(parts, encoding, positions)
    slot.enter()
    return slot


def remove_pos_embed(model: nn.Module) -> AdditiveSlot:
    """Takes a model's position embedding out, but for the rows of prefix tokens.

    Args:
        model: A model as `add_rotary` takes, changed in place.

    Returns:
        The slot, whose ``undo()`` puts the embedding back, as the end of a ``with`` statement does.

    Raises:
        ValueError: If it has none, or it is replaced or removed already, or the model cannot do without.
    """
    parts = _check_model(model)
    owner = parts.embed if isinstance(model, NaFlexVit) else model
    if all(getattr(owner, name, None) is None for name in ("pos_embed", "pos_embed_y")):
        raise ValueError(f"{type(model).__name__} has no position embedding to remove")
    slot = AdditiveSlot(parts, None)
    slot.enter()
    return slot


def _check_model(model: nn.Module) -> Parts:
    check_free(model, AdditiveSlot.name)
    if isinstance(model, VisionTransformerDistilled):
        raise ValueError("VisionTransformerDistilled adds its pos_embed in any case: it cannot be taken out")
    return parts_of(model)


def _prefix_rows(parts: Parts) -> nn.Parameter | None:
    """Rows of the model's own embedding for prefix tokens, if it has such."""
    own = None if isinstance(parts.model, NaFlexVit) else parts.model.pos_embed
    if own is None or own.shape[1] == prod(grid_of(parts.model)):
        return None
    count = own.shape[1] - prod(grid_of(parts.model))
    return nn.Parameter(own.detach()[:, :count].clone(), requires_grad=own.requires_grad)
