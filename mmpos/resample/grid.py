"""A table with one vector per cell of a grid, on another grid."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ..arguments import check_choice, check_flag, check_tensor


def resample_table(
    table: Float[Tensor, "*size dim"],
    size: Sequence[int],
    *,
    mode: str = "bicubic",
    antialias: bool = True,
    align_corners: bool = False,
    keep: int = 0,
) -> Float[Tensor, "*new dim"]:
    """Resamples a table of one to three axes to another size.

    Cells are areas: new cell ``i`` of an axis lies at the old coordinate ``(i + 1/2) * old / new - 1/2``, or with
    ``align_corners`` at ``i * (old - 1) / (new - 1)``, so that the outermost cells agree. A third axis (time) is
    resampled by itself, after height and width.

    The work is done in float32 at least and rounded once to the table's dtype. A table that has the size already is
    returned as it is, to the bit. A sharded table (DTensor) is gathered, resampled and sharded alike. Gradients flow.

    Args:
        table: One vector per cell.
        size: The new number of cells on each axis.
        mode: "bicubic" or "bilinear", which is cubic or linear along each axis.
        antialias: Whether the filter is widened where the grid shrinks. It is another cubic too, with the parameter
            -1/2 instead of -3/4, so it matters to growing tables as well.
        align_corners: Whether the outermost cells keep their place; only without ``antialias``.
        keep: First rows of a sequence that stay as they are, to the bit; only the rest is stretched. Long-CLIP keeps
            20 of 77 and stretches the 57 others to 228. (It places them linearly at ``20 + i / 4`` and extrapolates
            the last three; here they are placed as said above.)

    Raises:
        ValueError: If ``size`` does not have one positive number per axis of the table, the mode is unknown, corners
            are to be aligned with antialiasing, or ``keep`` leaves nothing to stretch.
        TypeError: If the table is not floating point, or a size no integer.

    Example:
        >>> resample_table(torch.randn(14, 10, 384), (16, 12)).shape
        torch.Size([16, 12, 384])
        >>> resample_table(torch.randn(77, 512), (248,), mode="bilinear", keep=20).shape
        torch.Size([248, 512])

    Reference:
        Dosovitskiy et al., An image is worth 16x16 words, 2020, sec. 3.2. https://arxiv.org/abs/2010.11929
        Zhang et al., Long-CLIP, 2024, sec. 3.2. https://arxiv.org/abs/2403.15378
    """
    check_table("table", table)
    if not 2 <= table.ndim <= 4:
        raise ValueError(f"table must have one to three axes and then channels, got shape {tuple(table.shape)}")
    new = check_size("size", size, table.ndim - 1)
    check_choice("mode", mode, ("bicubic", "bilinear"))
    check_flag("antialias", antialias)
    check_flag("align_corners", align_corners)
    if antialias and align_corners:
        raise ValueError("align_corners=True needs antialias=False: no antialiased filter aligns corners")
    old = tuple(table.shape[:-1])
    _check_keep(keep, len(old), min(old[0], new[0]))
    if old == new:
        return table
    rest = (new[0] - keep, *new[1:])
    return in_one_piece(table, partial(_resample, keep, rest, mode, antialias, align_corners))


def check_size(
    name: str, size: Sequence[int], axes: int | None = None, like: str = "the table's axes"
) -> tuple[int, ...]:
    """Refuses a size that is not made of one to three positive integers, or not of as many as said."""
    if not isinstance(size, Sequence) or isinstance(size, str):
        raise TypeError(f"{name} must be a sequence of integers, got {size!r}")
    if any(isinstance(side, bool) or not isinstance(side, int) for side in size):
        raise TypeError(f"{name} must be made of integers, got {tuple(size)}")
    if axes is None and not 1 <= len(size) <= 3:
        raise ValueError(f"{name} must be one to three positive numbers, got {tuple(size)}")
    if len(size) != (axes or len(size)) or min(size) < 1:
        rule = f"{axes} positive number{'s' * (axes != 1)}, as many as {like}" if axes else "made of positive numbers"
        raise ValueError(f"{name} must be {rule}, got {tuple(size)}")
    return tuple(size)


def check_table(name: str, table: Tensor) -> None:
    """Refuses a table that cannot be filtered."""
    check_tensor(name, table)
    if not table.is_floating_point():
        raise TypeError(f"{name} must be floating point, got {table.dtype}")


def in_one_piece(table: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """What ``change`` makes of a table; a sharded one is gathered for it and the result sharded over the same mesh."""
    if type(table) in (Tensor, nn.Parameter) or not torch.distributed.is_available():
        return change(table)
    from torch.distributed.tensor import DTensor, Replicate  # takes longer to import than all of mmpos

    if not isinstance(table, DTensor):
        return change(table)
    mesh = table.device_mesh
    whole = DTensor.from_local(change(table.full_tensor()), mesh, [Replicate()] * mesh.ndim, run_check=False)
    return whole.redistribute(mesh, table.placements)


def _check_keep(keep: int, axes: int, rows: int) -> None:
    if isinstance(keep, bool) or not isinstance(keep, int):
        raise TypeError(f"keep must be an integer, got {keep!r}")
    if keep and axes > 1:
        raise ValueError(f"keep ({keep}) is for tables of one axis, got one of {axes}")
    if not 0 <= keep < rows:
        raise ValueError(f"keep must be from 0 to less than the rows of both tables ({rows}), got {keep}")


def _resample(
    keep: int, new: tuple[int, ...], mode: str, antialias: bool, align_corners: bool, table: Tensor
) -> Tensor:
    """The table with all but its first ``keep`` rows resampled to the new size."""
    rest = table[keep:]
    old, axes = tuple(rest.shape[:-1]), rest.ndim - 1
    exact = rest if rest.dtype == torch.float64 else rest.float()
    if axes > 1 and old[-2:] != new[-2:]:
        images = exact.reshape(-1, *exact.shape[-3:]).permute(0, 3, 1, 2)
        exact = _filter(images, new[-2:], mode, antialias, align_corners).permute(0, 2, 3, 1)
    if axes != 2 and old[0] != new[0]:
        rows = exact.reshape(old[0], -1).mT[None, :, None, :]
        exact = _filter(rows, (1, new[0]), mode, antialias, align_corners)[0, :, 0, :].mT
    rest = exact.reshape(*new, table.shape[-1]).to(table.dtype)
    return torch.cat([table[:keep], rest]) if keep else rest


def _filter(
    images: Float[Tensor, "b c h w"], new: tuple[int, ...], mode: str, antialias: bool, align_corners: bool
) -> Float[Tensor, "b c h2 w2"]:
    # On CPUs PyTorch 2.14 gets antialiased images wrong that become one column, and their gradients, unless channels
    # lie last in memory; with a single channel that says nothing, so those are turned.
    if antialias and new[1] == 1 < new[0] and images.shape[1] == 1:
        return _filter(images.mT, (1, new[0]), mode, antialias, align_corners).mT
    images = images.contiguous(memory_format=torch.channels_last)
    return F.interpolate(images, new, mode=mode, antialias=antialias, align_corners=align_corners)
