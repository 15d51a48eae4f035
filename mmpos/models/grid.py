"""How the patches of an image become coordinates."""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Shaped
from torch import Tensor

from ..coords import grid_coords
from ..transforms import jitter, normalise, rescale, shift


@dataclass(frozen=True)
class GridPositions:
    """Coordinates (y, x) of a grid of patches: their index, unless told otherwise.

    What is random is drawn once for each call in training, in this order, and left out in evaluation.

    Args:
        normalise: Maps indices to -1 to 1, each axis by its own side ("separate"), or both by the longer ("max") or
            the shorter ("min").
        trained: Rows and columns of a grid onto whose range indices are rescaled.
        shift: Largest random shift of an axis, in coordinate units.
        jitter: Largest random factor of an axis; its reciprocal is the least.
        rescale: Largest random factor of both axes alike.

    Reference:
        Siméoni et al., DINOv3, 2025, sec. 3.2. https://arxiv.org/abs/2508.10104
    """

    normalise: Literal["separate", "max", "min"] | None = None
    trained: tuple[int, int] | None = None
    shift: float = 0.0
    jitter: float = 1.0
    rescale: float = 1.0

    def coords(
        self, rows: int, columns: int, *, training: bool = False, device: torch.device | None = None
    ) -> Shaped[Tensor, "n 2"]:
        """Coordinates of the patches, row by row."""
        coords = grid_coords(rows, columns, device=device)
        if self.normalise is not None:
            coords = normalise(coords, (rows, columns), by=self.normalise)
        elif self.trained is not None and self.trained != (rows, columns):
            coords = rescale(coords, (self.trained[0] / rows, self.trained[1] / columns))
        if training and self.shift:
            coords = shift(coords, self.shift)
        if training and self.jitter != 1:
            coords = jitter(coords, self.jitter)
        if training and self.rescale != 1:
            coords = jitter(coords, self.rescale, shared=True)
        return coords


def check_kept(keep: Tensor, x: Shaped[Tensor, "b n dim"]) -> None:
    """Refuses numbers of tokens to keep, a row of them for each sample, that ``x`` does not have."""
    b, n, _ = x.shape
    if keep.dtype != torch.int64 or keep.ndim != 2 or len(keep) != b:
        raise ValueError(f"keep must be int64 of shape ({b}, kept), got {keep.dtype} of {tuple(keep.shape)}")
    if not keep.shape[1]:
        raise ValueError(f"keep must name at least one token of each sample, got shape {tuple(keep.shape)}")
    if not torch.compiler.is_compiling() and not keep.is_meta and ((keep < 0) | (keep >= n)).any():
        raise ValueError(f"keep must be numbers from 0 to {n - 1}, got up to {keep.max().item()}")
