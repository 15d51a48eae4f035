"""Tables with an entry for each offset of a query from a key in a window, as `SwinBias` and `ERPE` learn them.

An axis of ``w`` tokens has the offsets ``1 - w`` to ``w - 1``; entry ``i`` of the table is that of ``i - (w - 1)``.
"""

import math
import warnings
from collections.abc import Sequence
from itertools import product

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from ...resample import resample_bias_table
from ..checks import check_positive
from .differences import Coord, subtract
from .lookup import read_entry, read_rows


def check_window(name: str, window: int | Sequence[int]) -> tuple[int, ...]:
    """The tokens on each of one to three axes, from one number for a sequence or one for each axis."""
    if isinstance(window, str):
        raise TypeError(f"{name} must be an integer or a sequence of them, got {window!r}")
    sides = tuple(window) if isinstance(window, Sequence) else (window,)
    if not 1 <= len(sides) <= 3:
        raise ValueError(f"{name} must have one to three axes, got {window}")
    for side in sides:
        check_positive(name, side)
    return sides


def table_shape(window: Sequence[int], num_heads: int) -> tuple[int, ...]:
    """The shape of the table of a window."""
    return (*(2 * side - 1 for side in window), num_heads)


def window_of(shape: Sequence[int]) -> tuple[int, ...]:
    """The window whose table has this shape."""
    return tuple((side + 1) // 2 for side in shape[:-1])


def cells_of(window: Sequence[int], n: int) -> Int[Tensor, "n a"]:
    """``n`` cells of a window, row by row and over again."""
    cells = torch.tensor(list(product(*(range(side) for side in window))))
    return cells[torch.arange(n) % len(cells)]


def offset_bias(
    table: Float[Tensor, "*offsets h"],
    q_coords: Shaped[Tensor, "*#batch q a"],
    k_coords: Shaped[Tensor, "*#batch k a"],
    owner: str,
) -> Float[Tensor, "*batch h q k"]:
    """The entries at the offsets of all pairs; an offset that the table lacks is an error in eager mode, NaN else."""
    axes = range(q_coords.shape[-1])
    steps = [subtract(q_coords[..., :, None, axis], k_coords[..., None, :, axis]) for axis in axes]
    _check_reach(steps, window_of(table.shape), owner)
    return read_rows(table, _places(steps, table))


def offset_score(
    table: Float[Tensor, "*offsets h"],
    head: Int[Tensor, ""],
    q_coord: Coord,
    k_coord: Coord,
) -> Float[Tensor, ""]:
    """One entry of `offset_bias`."""
    steps = [subtract(q_coord[axis], k_coord[axis]) for axis in range(table.ndim - 1)]
    return read_entry(table, head, _places(steps, table))


def _places(steps: Sequence[Tensor], table: Tensor) -> list[Tensor]:
    """Where offsets stand in a table, whose axes have an odd number of them and 0 in the middle."""
    return [step + side // 2 for step, side in zip(steps, table.shape[:-1], strict=True)]


def _check_reach(steps: Sequence[Tensor], window: Sequence[int], owner: str) -> None:
    if torch.compiler.is_compiling() or steps[0].is_meta or not steps[0].numel():
        return
    reach = torch.stack([step.detach().abs().nan_to_num(0).amax() for step in steps]).tolist()
    if any(far > side - 1 for far, side in zip(reach, window, strict=True)):
        needed = ", ".join(str(max(math.ceil(far) + 1, side)) for far, side in zip(reach, window, strict=True))
        raise ValueError(
            f"{owner} holds the offsets within {_by(window)} tokens, got coords that lie up to {_by(reach)} apart; "
            f"resize it with bias.resize({needed})"
        )


def resize_table(
    table: Float[Tensor, "*offsets h"], window: Sequence[int], *, mode: str = "bicubic", antialias: bool = False
) -> Float[Tensor, "*new h"]:
    """The table of another window; see `resample_bias_table`."""
    rows = resample_bias_table(
        table.flatten(0, -2), window, old_window=window_of(table.shape), mode=mode, antialias=antialias
    )
    return rows.unflatten(0, table_shape(window, table.shape[-1])[:-1])


def fit_table(found: Tensor, window: Sequence[int], num_heads: int, owner: str, resize: bool) -> Tensor:
    """A checkpoint's table as one of this window.

    It may be a flat list of rows in the same order, as Swin and ConvTran save it, if they are as many as this window
    has: of which window others are their number does not tell.

    Args:
        found: The table of the checkpoint.
        window: The window that it should be of.
        num_heads: The heads that it should have.
        owner: The encoding that loads it, for errors.
        resize: Whether a table of another window is resized, with a warning, instead of refused.

    Raises:
        ValueError: If the table does not fit.
    """
    shape = table_shape(window, num_heads)
    table = _unflatten(found, shape)
    if tuple(table.shape) == shape:
        return table
    sides = table.shape[:-1]
    if table.ndim == 2 < len(shape) and table.shape[-1] == num_heads:
        raise ValueError(
            f"has {len(table)} rows, this {owner} {math.prod(shape[:-1])}; resample it first: "
            f"resample_bias_table(table, {tuple(window)}, old_window=...)"
        )
    if table.ndim != len(shape) or table.shape[-1] != num_heads or any(side % 2 == 0 for side in sides):
        raise ValueError(f"has shape {tuple(found.shape)}, this {owner} {shape}")
    old, new = _by(window_of(table.shape)), _by(window)
    if not resize:
        call = ", ".join(map(str, window))
        raise ValueError(
            f"holds the offsets within {old} tokens, this {owner} those within {new}; load it into one of its own size "
            f"and call .resize({call}) on that, or build this one with resize_on_load=True"
        )
    warnings.warn(f"{owner} resized a table of {old} tokens to {new} on loading", stacklevel=2)
    return resize_table(table, window)


def _unflatten(rows: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Rows of a flat table on as many axes as ``shape`` has, if they are as many."""
    fits = rows.ndim == 2 < len(shape) and len(rows) == math.prod(shape[:-1])
    return rows.unflatten(0, shape[:-1]) if fits else rows


def _by(sides: Sequence[float]) -> str:
    return " x ".join(map(str, sides))
