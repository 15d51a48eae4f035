"""Coordinates that are no numbers."""

import torch
from jaxtyping import Shaped
from torch import Tensor


def finite_or_nan(coords: Shaped[Tensor, "*batch n a"]) -> Shaped[Tensor, "*batch n a"]:
    """The coordinates, but a token with one that is NaN or infinite has NaN on all axes."""
    if not coords.is_floating_point():
        return coords
    return coords.where(coords.isfinite().all(-1, keepdim=True), torch.nan)
