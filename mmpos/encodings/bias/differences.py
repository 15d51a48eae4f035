"""Differences between the coordinates of queries and keys, taken before anything is rounded.

Integers are subtracted in int64 and floats in float64, so a second is a second at a Unix time of 1.7e9. Two integers
must lie less than 2^63 apart, over the number of axes where they are summed.
"""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

Metric = Literal["sum", "euclidean", "max"]
METRICS = ("sum", "euclidean", "max")

# One coordinate, a number for each axis. FlexAttention wants separate numbers: compiled, it takes a row for one number.
Coord = Shaped[Tensor, " a"] | Sequence[Shaped[Tensor, ""]]

# Differences of float coordinates end here, so that no product with a slope overflows float32.
FAR = 2.0**100


def widen(coords: Shaped[Tensor, "*shape"]) -> Shaped[Tensor, "*shape"]:
    """Integer coordinates as int64, float ones as float64 with NaN for what is not finite."""
    if not coords.is_floating_point():
        return coords.long()
    return coords.double().masked_fill(~coords.isfinite(), torch.nan)


def subtract(q: Shaped[Tensor, "*#shape"], k: Shaped[Tensor, "*#shape"]) -> Shaped[Tensor, "*shape"]:
    """``q - k`` for coordinates that broadcast, exact: int64, or float64 where one of them is a float."""
    return widen(q) - widen(k)


def differences(
    q_coords: Shaped[Tensor, "*#batch q a"], k_coords: Shaped[Tensor, "*#batch k a"]
) -> Shaped[Tensor, "*batch q k a"]:
    """``q_coords - k_coords`` on each axis, int64 or float64; NaN where a coordinate is not finite."""
    return widen(q_coords)[..., :, None, :] - widen(k_coords)[..., None, :, :]


def distances(
    q_coords: Shaped[Tensor, "*#batch q a"],
    k_coords: Shaped[Tensor, "*#batch k a"],
    metric: Metric = "sum",
    per: Sequence[float] | None = None,
) -> Float[Tensor, "*batch q k"]:
    """How far keys lie from queries, see `distance`."""
    q, k = widen(q_coords)[..., :, None, :], widen(k_coords)[..., None, :, :]
    return distance([q[..., axis] - k[..., axis] for axis in range(q.shape[-1])], metric, per)


def pair_distance(
    q_coord: Coord, k_coord: Coord, metric: Metric = "sum", per: Sequence[float] = (1.0,)
) -> Float[Tensor, ""]:
    """How far one key lies from one query; ``per`` has a number for each axis."""
    return distance([subtract(q_coord[axis], k_coord[axis]) for axis in range(len(per))], metric, per)


def distance(
    steps: Sequence[Shaped[Tensor, "*shape"]], metric: Metric = "sum", per: Sequence[float] | None = None
) -> Float[Tensor, "*shape"]:
    """The size of differences, one tensor for each axis, in float32; it is rounded once, at the end.

    Args:
        steps: What `subtract` gives on each axis.
        metric: "sum" of absolute differences, "euclidean" or "max".
        per: Coordinate units that count as 1, for each axis; all 1 if None.
    """
    sizes = [step.abs() for step in steps]
    if per is not None and any(unit != 1 for unit in per):
        sizes = [size.double() / unit for size, unit in zip(sizes, per, strict=True)]
    sizes = [size.clamp(max=FAR) if size.is_floating_point() else size for size in sizes]
    total = sizes[0].double().square() if metric == "euclidean" and len(sizes) > 1 else sizes[0]
    for size in sizes[1:]:
        if metric == "sum":
            total = total + size
        elif metric == "max":
            total = torch.maximum(total, size)
        else:
            total = total + size.double().square()
    if metric == "euclidean" and len(sizes) > 1:
        total = _root(total)
    return total.float()


def _root(squares: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """The square root, with gradient 0 at 0."""
    return squares.where(squares != 0, 1).sqrt().where(squares != 0, 0)


def pick(values: Sequence[float], head: Int[Tensor, ""]) -> Float[Tensor, ""]:
    """``values[head]`` as a chain of choices, for kernels that cannot make tensors."""
    chosen = torch.full_like(head, values[0], dtype=torch.float32)
    for number, value in enumerate(values[1:], start=1):
        chosen = chosen.where(head != number, value)
    return chosen


def check_metric(metric: str) -> None:
    """Refuses a metric that is not known."""
    if not isinstance(metric, str) or metric not in METRICS:
        raise ValueError(f"metric must be one of {', '.join(METRICS)}, got {metric!r}")


def check_per(per: float | Sequence[float], axes: int) -> tuple[float, ...]:
    """The coordinate units that count as 1 for each axis, from one number for all or one for each."""
    if isinstance(per, str | bytes) or not isinstance(per, int | float | Sequence):
        raise TypeError(f"per must be a number or a sequence of them, got {per!r}")
    units = (per,) * axes if isinstance(per, int | float) else tuple(per)
    if len(units) != axes:
        raise ValueError(f"per must be one number for all axes or one for each of {axes}, got {per}")
    for unit in units:
        if isinstance(unit, bool) or not isinstance(unit, int | float):
            raise TypeError(f"per must be a number or a sequence of them, got {per!r}")
        if not 0 < unit < math.inf:
            raise ValueError(f"per must be positive and finite, got {per}")
    return units
