"""Reading learned tables ``(*sides, h)`` at places on their axes: whole ones name cells, others lie between them."""

from collections.abc import Callable, Sequence
from functools import reduce
from itertools import product
from operator import mul

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor


def read_rows(
    table: Float[Tensor, "*sides h"], places: Sequence[Shaped[Tensor, "*batch q k"]]
) -> Float[Tensor, "*out h q k"]:
    """All heads of a table in float32 at places that count from 0, one tensor for each axis.

    Integers pick their cell, floats interpolate linearly between the cells around them; outside of the table is NaN.
    """
    rows, sides = table.flatten(0, -2).float().mT, table.shape[:-1]
    bias = _read(lambda cells: take_columns(rows, flat_index(cells, sides)), places, sides)
    return bias.movedim(0, -3)


def read_entry(
    table: Float[Tensor, "*sides h"], head: Int[Tensor, ""], places: Sequence[Shaped[Tensor, ""]]
) -> Float[Tensor, ""]:
    """One entry of `read_rows`."""
    return _read(lambda cells: table[(*cells, head)].float(), places, table.shape[:-1])


def take_columns(rows: Float[Tensor, "h n"], index: Int[Tensor, "*shape"]) -> Float[Tensor, "h *shape"]:
    """The columns of these numbers."""
    return rows.index_select(1, index.flatten()).view(rows.shape[0], *index.shape)


def flat_index(cells: Sequence[Shaped[Tensor, "*shape"]], sides: Sequence[int]) -> Int[Tensor, "*shape"]:
    """Row-major numbers of cells."""
    index = cells[0]
    for cell, side in zip(cells[1:], sides[1:], strict=True):
        index = index * side + cell
    return index


def _read(take: Callable[[Sequence[Tensor]], Tensor], places: Sequence[Tensor], sides: Sequence[int]) -> Tensor:
    """What ``take`` finds in cells, with NaN outside of the table."""
    outside = (places[0] < 0) | ~(places[0] <= sides[0] - 1)  # so NaN is outside
    for place, side in zip(places[1:], sides[1:], strict=True):
        outside = outside | (place < 0) | ~(place <= side - 1)
    # What is outside reads some cell, each axis by itself: compiled into a kernel, a step is computed at each use.
    if not any(place.is_floating_point() for place in places):
        cells = [place.clamp(0, side - 1) for place, side in zip(places, sides, strict=True)]
        return take(cells).masked_fill(outside, torch.nan)
    around = [_around(place, side) for place, side in zip(places, sides, strict=True)]
    total = None
    for corner in product(*around):
        cells, shares = zip(*corner, strict=True)
        found = take(cells) * reduce(mul, shares).float()
        total = found if total is None else total + found
    assert total is not None
    return total.masked_fill(outside, torch.nan)


def _around(place: Tensor, side: int) -> list[tuple[Tensor, Tensor]]:
    """The cells below and above a place on one axis, and their shares."""
    place = place.where(place >= 0, 0)  # 0 for NaN, whose share would reach the table's gradient
    cell, share = place.detach().floor().long(), place.remainder(1)
    # At the far edge the upper cell has the share 0 and would lie outside.
    return [(cell.clamp(0, side - 1), 1 - share), ((cell + 1).clamp(0, side - 1), share)]
