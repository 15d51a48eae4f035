"""Where an encoding is looked at."""

from typing import NamedTuple

import torch
from torch import Tensor

from ..coords import grid_coords, sequence_coords, video_coords

QUERIES = 256
"""Tokens from which others are looked at; more than these would make a long sequence slow and tell little more."""


class Place(NamedTuple):
    """Where an encoding is looked at.

    Args:
        sizes: Tokens on each axis.
        spacing: Coordinate units between neighbours.
        length: For encodings that depend on it; the tokens on the longest axis unless given.
    """

    sizes: tuple[int, ...]
    spacing: float = 1.0
    length: int | None = None

    def coords(self) -> Tensor:
        """Coordinates of all tokens, row by row."""
        if len(self.sizes) == 1:
            return self._scaled(sequence_coords(*self.sizes))
        if len(self.sizes) == 2:
            return self._scaled(grid_coords(*self.sizes))
        if len(self.sizes) == 3:
            return self._scaled(video_coords(*self.sizes))
        return self._scaled(torch.cartesian_prod(*(torch.arange(size) for size in self.sizes)))

    def line(self) -> Tensor:
        """Coordinates along the longest axis, 0 on the others."""
        coords = torch.zeros(max(self.sizes), len(self.sizes), dtype=torch.int64)
        coords[:, self.axis] = torch.arange(max(self.sizes))
        return self._scaled(coords)

    def some(self) -> Tensor:
        """Up to `QUERIES` tokens of the line, evenly spaced, with both ends: from these all distances are seen."""
        line = self.line()
        return line[torch.linspace(0, len(line) - 1, min(QUERIES, len(line))).round().long()]

    @property
    def axis(self) -> int:
        """The longest axis, the last of equal ones."""
        return max(range(len(self.sizes)), key=lambda axis: (self.sizes[axis], axis))

    def plane(self) -> Tensor:
        """Coordinates of the cells of the last two axes, 0 on the others."""
        height, width = self.sizes[-2:]
        cells = grid_coords(height, width)
        return self._scaled(torch.cat([cells.new_zeros(len(cells), len(self.sizes) - 2), cells], dim=-1))

    def _scaled(self, coords: Tensor) -> Tensor:
        return coords if self.spacing == 1 else coords * self.spacing
