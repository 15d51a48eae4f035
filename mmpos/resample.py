"""Learned tables on a new grid."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


def resample_table(
    table: Float[Tensor, "*size dim"], size: Sequence[int], *, mode: str = "bicubic", antialias: bool = True
) -> Float[Tensor, "*new dim"]:
    """Resamples a table of one to three axes to another size, with cells as areas (corners are not aligned).

    A third axis (time) is resampled by itself, after height and width. The work is done in float32 at least, and a
    table that has the size already is returned as it is, to the bit.

    Args:
        table: One vector per cell.
        size: The new number of cells on each axis.
        mode: "bicubic" or "bilinear".
        antialias: Whether cells are averaged when the grid shrinks.

    Raises:
        ValueError: If ``size`` does not have one positive number per axis of the table, or the mode is unknown.

    Example:
        >>> resample_table(torch.randn(14, 10, 384), (16, 12)).shape
        torch.Size([16, 12, 384])
    """
    old, size = list(table.shape[:-1]), list(size)
    for side in size:
        if isinstance(side, bool) or not isinstance(side, int):
            raise TypeError(f"size must be made of integers, got {size}")
    if not 1 <= len(old) <= 3 or len(size) != len(old) or min(size) < 1:
        raise ValueError(f"size must be {len(old)} positive numbers, as many as the table's axes, got {size}")
    if mode not in ("bicubic", "bilinear"):
        raise ValueError(f"mode must be 'bicubic' or 'bilinear', got {mode!r}")
    if old == size:
        return table
    exact = table if table.dtype == torch.float64 else table.float()

    def resize(images: Float[Tensor, "b c h w"], new: tuple[int, int]) -> Float[Tensor, "b c h2 w2"]:
        if images.shape[-1] == 1:  # PyTorch 2.14 gets antialiased columns of width 1 wrong
            return (
                resize(images.mT, (new[1], new[0])).mT
                if images.shape[-2] > 1
                else images.expand(*images.shape[:2], *new)
            )
        return F.interpolate(images, new, mode=mode, antialias=antialias, align_corners=False)

    if len(size) > 1:
        height, width = size[-2], size[-1]
        exact = resize(exact.reshape(-1, *exact.shape[-3:]).permute(0, 3, 1, 2), (height, width)).permute(0, 2, 3, 1)
    if len(size) != 2:
        rows = exact.reshape(old[0], -1).mT[None, :, None, :]
        exact = resize(rows, (1, size[0]))[0, :, 0, :].mT
    return exact.reshape(*size, -1).to(table.dtype)
