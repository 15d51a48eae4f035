"""Rotary encodings of transformers' vision models, whose module is asked for the rotation of an image's patches."""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ...coords import grid_coords
from ...encodings import RoPE
from ...frequencies import Periods
from ...spectra import Axial
from ...transforms import jitter, normalise, shift
from .module import ALL, Family
from .settings import head_width, name_of

MODEL_TYPES = ("dinov3_vit",)
FAMILIES = {"DINOv3ViTRopePositionEmbedding": Family(axes=2)}


def patch_rope(config: Any) -> RoPE:
    """The rotary encoding that the config of a DINOv3 ViT asks for, of patch centres from -1 to 1 on each axis."""
    return RoPE(head_width(config), axes=2, spectrum=Axial(series=Periods(1, config.rope_theta, endpoint=False)))


def patch_settings(rope: RoPE | None, config: Any) -> dict[str, Any]:
    """What the config must say so that plain transformers turns as ``rope`` does."""
    series = rope.spectrum.series if rope is not None and isinstance(rope.spectrum, Axial) else None
    if rope is not None and isinstance(series, Periods):
        changed = copy.deepcopy(config)
        changed.rope_theta = float(series.max_period)
        if rope.scaling is None and rope.spectrum == patch_rope(changed).spectrum:
            return {"rope_theta": changed.rope_theta}
    raise ValueError(
        f"{name_of(config)} cannot express {rope}, only its own spectrum with another rope_theta; "
        "replace_rope(..., write_config=False) leaves the config alone"
    )


class PatchRotary(nn.Module):
    """Stands where a vision model has its rotary module: images to cosine and sine of their patches.

    Coordinates are the centres of patches, from -1 to 1 on each axis; in training they vary as the config says.
    """

    def __init__(self, original: nn.Module, config: Any, family: Family, ropes: dict[str, RoPE | None]):
        super().__init__()
        self.original = original  # to be put back; what it holds is not saved
        self.config, self.family, self.head_dim = config, family, head_width(config)
        self.before = {"rope_theta": config.rope_theta}
        self.kinds = tuple(ropes)
        self.ropes = nn.ModuleDict({kind: rope for kind, rope in ropes.items() if rope is not None})

    def forward(self, pixel_values: Float[Tensor, "b c y x"]) -> tuple[Float[Tensor, "n d"], Float[Tensor, "n d"]]:
        coords, rope = self._coords(pixel_values), self.rope_of(ALL)
        if rope is None:
            ones = pixel_values.new_ones(len(coords), self.head_dim)
            return ones, ones * 0
        rotation = rope(coords)
        cos, sin = (part.squeeze(-3).repeat(1, 2).to(pixel_values.dtype) for part in rotation[:2])
        return cos, sin

    def rope_of(self, kind: str) -> RoPE | None:
        """The encoding, None if nothing turns."""
        rope = self.ropes[kind] if kind in self.ropes else None  # noqa: SIM401, get is not in all versions of torch
        assert isinstance(rope, RoPE | None)
        return rope

    def _coords(self, pixel_values: Float[Tensor, "b c y x"]) -> Float[Tensor, "n 2"]:
        config, sides = self.config, _sides(self.config)
        size = [pixels // side for pixels, side in zip(pixel_values.shape[-2:], sides, strict=True)]
        coords = normalise(grid_coords(*size, device=pixel_values.device), size)
        if self.training and config.pos_embed_shift is not None:
            coords = shift(coords, config.pos_embed_shift)
        if self.training and config.pos_embed_jitter is not None:
            coords = jitter(coords, config.pos_embed_jitter)
        if self.training and config.pos_embed_rescale is not None:
            coords = jitter(coords, config.pos_embed_rescale, shared=True)
        return coords


def turns_as_said(original: nn.Module, rope: RoPE | None, config: Any) -> bool:
    """Whether a model's own module turns as ``rope`` does, as far as its float32 products can tell."""
    own = copy.deepcopy(original).cpu().eval()
    ours = PatchRotary(own, config, FAMILIES[type(own).__name__], {ALL: rope}).eval()
    rows, columns = _sides(config)
    image = torch.zeros(1, 1, 7 * rows, 5 * columns)
    pairs = list(zip(ours(image), own(image), strict=True))
    return all(one.shape == other.shape and bool(((one - other).abs() < 1e-5).all()) for one, other in pairs)


def _sides(config: Any) -> Sequence[int]:
    """Rows and columns of pixels of a patch."""
    patch = config.patch_size
    return patch if isinstance(patch, Sequence) else (patch, patch)
