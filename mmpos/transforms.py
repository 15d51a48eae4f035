"""Transforms of coordinates: to another scale or range, and at random for training.

Each takes coordinates ``(..., n, a)`` and returns new ones in float64. Random ones draw once for each row of a batch.
"""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Float, Shaped
from torch import Tensor


def normalise(
    coords: Shaped[Tensor, "*batch n a"], size: Sequence[int], *, by: Literal["separate", "max", "min"] = "separate"
) -> Float[Tensor, "*batch n a"]:
    """Maps cells of a grid to ``2 (coord + 0.5) / side - 1``: from -1 to 1 with cells as areas.

    Args:
        coords: Cells, from 0.
        size: Cells on each axis.
        by: The side that divides: "separate" takes each axis' own, "max" the longest and "min" the shortest for all,
            which keeps the aspect ratio.

    Raises:
        ValueError: If ``size`` does not have a positive number for each axis, or ``by`` is unknown.

    Example:
        >>> normalise(grid_coords(height=2, width=4), (2, 4))[:, 0]
        tensor([-0.5000, -0.5000, -0.5000, -0.5000,  0.5000,  0.5000,  0.5000,  0.5000],
               dtype=torch.float64)

    Reference:
        Siméoni et al., DINOv3, 2025, sec. 3.2. https://arxiv.org/abs/2508.10104
    """
    if len(size) != coords.shape[-1] or min(size) < 1:
        raise ValueError(f"size must have a positive number for each of {coords.shape[-1]} axes, got {tuple(size)}")
    if by not in ("separate", "max", "min"):
        raise ValueError(f"by must be 'separate', 'max' or 'min', got {by!r}")
    sides = size if by == "separate" else [max(size) if by == "max" else min(size)] * len(size)
    return (coords.double() + 0.5) / _row(sides, coords) * 2 - 1


def rescale(coords: Shaped[Tensor, "*batch n a"], factor: float | Sequence[float]) -> Float[Tensor, "*batch n a"]:
    """Multiplies coordinates by a factor, one for all axes or one for each.

    ``rescale(grid_coords(28, 28), 14 / 28)`` puts a finer grid where one of 14 x 14 was.

    Raises:
        ValueError: If the factors are not one for each axis.
    """
    factors = list(factor) if isinstance(factor, Sequence) else [factor] * coords.shape[-1]
    if len(factors) != coords.shape[-1]:
        raise ValueError(f"factor must be one number or one for each of {coords.shape[-1]} axes, got {factor}")
    return coords.double() * _row(factors, coords)


def shift(
    coords: Shaped[Tensor, "*batch n a"], reach: float, *, generator: torch.Generator | None = None
) -> Float[Tensor, "*batch n a"]:
    """Adds a random number from ``-reach`` to ``reach`` to each axis.

    Args:
        coords: Coordinates.
        reach: Largest shift in coordinate units.
        generator: Source of random numbers.

    Raises:
        ValueError: If ``reach`` is negative.

    Reference:
        Siméoni et al., DINOv3, 2025, sec. 3.2. https://arxiv.org/abs/2508.10104
    """
    if not 0 <= reach < math.inf:
        raise ValueError(f"reach must not be negative, got {reach}")
    return coords.double() + _uniform(coords, coords.shape[-1], generator) * reach


def jitter(
    coords: Shaped[Tensor, "*batch n a"],
    factor: float,
    *,
    shared: bool = False,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "*batch n a"]:
    """Multiplies each axis by a random number from ``1 / factor`` to ``factor``, uniform in its logarithm.

    Args:
        coords: Coordinates.
        factor: Largest factor, at least 1.
        shared: Whether all axes get the same number, as DINOv3's rescaling has it.
        generator: Source of random numbers.

    Raises:
        ValueError: If ``factor`` is less than 1.

    Reference:
        Siméoni et al., DINOv3, 2025, sec. 3.2. https://arxiv.org/abs/2508.10104
    """
    if not 1 <= factor < math.inf:
        raise ValueError(f"factor must be at least 1, got {factor}")
    axes = 1 if shared else coords.shape[-1]
    return coords.double() * (_uniform(coords, axes, generator) * math.log(factor)).exp()


def _row(numbers: Sequence[float], coords: Tensor) -> Float[Tensor, " a"]:
    return torch.tensor(numbers, dtype=torch.float64, device=coords.device)


def _uniform(coords: Tensor, axes: int, generator: torch.Generator | None) -> Float[Tensor, "*batch 1 axes"]:
    """Random numbers from -1 to 1, one for each row and axis."""
    shape = (*coords.shape[:-2], 1, axes)
    return torch.rand(shape, generator=generator, dtype=torch.float64, device=coords.device) * 2 - 1
