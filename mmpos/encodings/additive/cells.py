"""The cells of a grid: which of them coordinates fall in, and their vectors."""

import math
from collections.abc import Callable, Sequence
from itertools import product

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from ..checks import check_positive


def sides(size: int | Sequence[int]) -> tuple[int, ...]:
    """The number of cells on each axis."""
    if isinstance(size, str):
        raise TypeError(f"size must be an integer or a sequence of them, got {size!r}")
    sides = tuple(size) if isinstance(size, Sequence) else (size,)
    if not 1 <= len(sides) <= 3:
        raise ValueError(f"size must have one to three axes, got {size}")
    for side in sides:
        check_positive("size", side)
    return sides


def example_cells(size: tuple[int, ...], n: int) -> Int[Tensor, "n a"]:
    """``n`` cells of a grid, in its order and again from the first."""
    cells = torch.tensor(list(product(*(range(side) for side in size))))
    return cells[torch.arange(n) % len(cells)]


def enclose(
    coords: Shaped[Tensor, "*batch n a"], size: tuple[int, ...], owner: str
) -> tuple[Shaped[Tensor, "*batch n a"], Bool[Tensor, "*batch n 1"]]:
    """Refuses coordinates outside the grid; where values cannot be read, such tokens get cell 0 and are marked."""
    outside = ((coords < 0) | (coords > torch.tensor(size, device=coords.device) - 1)).any(-1, keepdim=True)
    # Integers are not asked, which other runtimes do not answer.
    known = coords.isfinite() if coords.is_floating_point() else torch.ones_like(coords, dtype=torch.bool)
    finite = known.all(-1, keepdim=True)
    if not (torch.compiler.is_compiling() or coords.is_meta) and (outside & finite).any():
        raise ValueError(_outside_message(coords, size, owner))
    outside = outside | ~finite
    return coords.masked_fill(outside, 0), outside


def _outside_message(coords: Tensor, size: tuple[int, ...], owner: str) -> str:
    rows = coords.flatten(0, -2)
    rows = rows[rows.isfinite().all(-1)]
    low, high = (tuple(bound.tolist()) for bound in (rows.amin(0), rows.amax(0)))
    if min(low) < 0:
        return f"{owner} holds {spell(size)} positions, got coords from {low} to {high}; coords must not be negative"
    call = ", ".join(str(max(math.ceil(h) + 1, side)) for h, side in zip(high, size, strict=True))
    return f"{owner} holds {spell(size)} positions, got coords up to {high}; resize it with table.resize({call})"


def pick(weight: Float[Tensor, "*size dim"], coords: Shaped[Tensor, "*batch n a"]) -> Float[Tensor, "*batch n dim"]:
    """The vectors of cells."""
    index = coords[..., 0].long()
    for axis in range(1, coords.shape[-1]):
        index = index * weight.shape[axis] + coords[..., axis]
    return nn.functional.embedding(index, weight.flatten(0, -2))


def interpolate(
    cells: Callable[[Int[Tensor, "*batch n a"]], Float[Tensor, "*batch n dim"]],
    coords: Float[Tensor, "*batch n a"],
    size: tuple[int, ...],
) -> Float[Tensor, "*batch n dim"]:
    """Linear interpolation between the cells around each point, in float32 at least."""
    low = coords.detach().floor()
    share = coords - low
    last = torch.tensor(size, device=coords.device) - 1
    corners = []
    for corner in product((0, 1), repeat=len(size)):
        steps = torch.tensor(corner, device=coords.device)
        # At the far edge the upper corner has the weight 0 and would lie outside.
        vectors = cells(torch.minimum(low.long() + steps, last))
        weight = torch.where(steps == 1, share, 1 - share).prod(-1, keepdim=True)
        exact = torch.promote_types(vectors.dtype, torch.float32)
        corners.append(vectors.to(exact) * weight.to(exact))
    return torch.stack(corners).sum(0)


def spell(size: Sequence[int]) -> str:
    """A grid in words: ``14 x 10``."""
    return " x ".join(map(str, size))
