"""A table of relative offsets within a window, for another window."""

from bisect import bisect_right
from collections.abc import Sequence
from functools import partial
from math import prod

import torch
from jaxtyping import Float
from torch import Tensor

from ..arguments import check_choice, check_flag
from .grid import check_size, check_table, in_one_piece, resample_table


def resample_bias_table(
    table: Float[Tensor, "rows h"],
    window: Sequence[int],
    *,
    old_window: Sequence[int],
    num_prefix_rows: int = 0,
    mode: str = "bicubic",
    antialias: bool = False,
) -> Float[Tensor, "new h"]:
    """Resamples a table with one row per offset between two cells of a window, as Swin and BEiT learn it.

    An axis of ``side`` cells has ``2 * side - 1`` offsets, from ``1 - side`` to ``side - 1``. Rows are in row-major
    order of the offsets; rows of prefix tokens come last and are kept to the bit.

    Args:
        table: One row per offset and prefix row, one column per head.
        window: The new window, of one to three axes.
        old_window: The window that the table was learned for.
        num_prefix_rows: Rows of prefix tokens: 3 in BEiT.
        mode: "bicubic" or "bilinear", as `resample_table`; or "geometric", BEiT's: the old offsets are spread over
            the new window in steps that grow by a constant ratio, from 1 at the centre, and rows are linear in
            between. The ratio is kept within 1.01 and 1.5, as in BEiT, which only enlarges windows: an axis that
            keeps its side or shrinks is nearly cut, not squeezed.
        antialias: Whether the filter is widened where the window shrinks.

    Raises:
        ValueError: If the rows are not those of ``old_window`` and ``num_prefix_rows``, a window is not made of
            positive numbers, both do not have as many axes, or the mode is unknown or cannot be antialiased.
        TypeError: If the table is not floating point, or a number no integer.

    Example:
        >>> resample_bias_table(torch.randn(13 * 9 + 3, 6), (9, 8), old_window=(7, 5), num_prefix_rows=3).shape
        torch.Size([258, 6])

    Reference:
        Liu et al., Swin transformer, 2021, sec. 3.2. https://arxiv.org/abs/2103.14030
        Bao et al., BEiT, 2021, and its released fine-tuning code. https://arxiv.org/abs/2106.08254
    """
    check_table("table", table)
    old = _offsets(check_size("old_window", old_window))
    new = _offsets(check_size("window", window, len(old), "old_window"))
    if isinstance(num_prefix_rows, bool) or not isinstance(num_prefix_rows, int):
        raise TypeError(f"num_prefix_rows must be an integer, got {num_prefix_rows!r}")
    if num_prefix_rows < 0:
        raise ValueError(f"num_prefix_rows must not be negative, got {num_prefix_rows}")
    if table.ndim != 2 or len(table) != prod(old) + num_prefix_rows:
        raise ValueError(
            f"table must be ({' * '.join(map(str, old))} + {num_prefix_rows}, heads) for old_window "
            f"{tuple(old_window)} and num_prefix_rows ({num_prefix_rows}), got shape {tuple(table.shape)}"
        )
    check_choice("mode", mode, ("bicubic", "bilinear", "geometric"))
    check_flag("antialias", antialias)
    if mode == "geometric" and antialias:
        raise ValueError("mode 'geometric' needs antialias=False: it is no filter")
    if old == new:
        return table
    return in_one_piece(table, partial(_resample, old, new, mode, antialias))


def _resample(
    old: tuple[int, ...], new: tuple[int, ...], mode: str, antialias: bool, table: Float[Tensor, "rows h"]
) -> Float[Tensor, "new h"]:
    offsets, prefix = table[: prod(old)].unflatten(0, old), table[prod(old) :]
    if mode == "geometric":
        offsets = _spread(offsets, new)
    else:
        offsets = resample_table(offsets, new, mode=mode, antialias=antialias)
    return torch.cat([offsets.flatten(0, -2), prefix])


def _offsets(window: tuple[int, ...]) -> tuple[int, ...]:
    """How many offsets each axis of a window has."""
    return tuple(2 * side - 1 for side in window)


def _spread(table: Float[Tensor, "*old h"], new: tuple[int, ...]) -> Float[Tensor, "*new h"]:
    """Linear interpolation between old offsets at their geometric places, one axis after the other."""
    exact = table if table.dtype == torch.float64 else table.float()
    for axis, count in enumerate(new):
        places = _geometric_places(exact.shape[axis], count)
        low, high, share = [], [], []
        for offset in range(-(count // 2), count // 2 + 1):
            left = max(bisect_right(places, offset) - 1, 0)
            right = min(left + 1, len(places) - 1)
            step = places[right] - places[left]
            low.append(left)
            high.append(right)
            share.append(min(max((offset - places[left]) / step, 0.0), 1.0) if step else 0.0)
        lows, highs = (exact.index_select(axis, torch.tensor(rows, device=exact.device)) for rows in (low, high))
        weight = torch.tensor(share, dtype=exact.dtype, device=exact.device)
        weight = weight.reshape(-1, *(1,) * (exact.ndim - axis - 1))
        exact = lows * (1 - weight) + highs * weight
    return exact.to(table.dtype)


def _geometric_places(old: int, new: int) -> list[float]:
    """Where the ``old`` offsets of an axis lie among the ``new`` ones: at 0, 1, 1 + r, 1 + r + r^2, ... and mirrored.

    The ratio r is that with which the outermost would reach the edge of the new window, found by bisection. BEiT stops
    after 19 steps, when r is known to 1e-6; a place far from the centre depends on r so much that we do the same.
    """
    arms, reach = old // 2, new // 2
    low, high = 1.01, 1.5
    ratio = low
    for _ in range(19):
        ratio = (low + high) / 2
        if (1 - ratio**arms) / (1 - ratio) > reach:
            high = ratio
        else:
            low = ratio
    places, place = [], 0.0
    for arm in range(arms):
        place += ratio**arm
        places.append(place)
    return [-place for place in reversed(places)] + [0.0] + places
