"""Position embeddings as models save them: a flat list of rows, those of prefix tokens in front."""

from collections.abc import Callable, Sequence
from functools import partial
from math import prod

import torch
from jaxtyping import Float
from torch import Tensor

from .grid import check_size, check_table, in_one_piece, resample_table


def split_pos_embed(
    pos_embed: Float[Tensor, "*one rows dim"], size: Sequence[int], *, num_prefix_tokens: int
) -> tuple[Float[Tensor, "prefix dim"], Float[Tensor, "*grid dim"]]:
    """Splits a flat position embedding into the rows of prefix tokens and the table of a grid, row-major.

    The table is the ``weight`` of a `LearnedTable` of that size. Nothing is guessed: 196 rows may be 14 x 14 cells,
    or 195 and a class token.

    Args:
        pos_embed: ``(prefix + n, dim)`` or ``(1, prefix + n, dim)``.
        size: The grid that it was learned for, of one to three axes.
        num_prefix_tokens: Rows in front of the grid's: 1 for a class token alone, 0 where prefix tokens have no
            position.

    Raises:
        ValueError: If the rows are not as many as ``size`` and ``num_prefix_tokens`` make.
        TypeError: If a number is no integer.

    Example:
        >>> prefix, table = split_pos_embed(torch.randn(1, 141, 384), (14, 10), num_prefix_tokens=1)
        >>> prefix.shape, table.shape
        (torch.Size([1, 384]), torch.Size([14, 10, 384]))
    """
    grid = _check_rows(pos_embed, size, "size", num_prefix_tokens)
    rows = pos_embed.reshape(pos_embed.shape[-2:])
    return rows[:num_prefix_tokens], rows[num_prefix_tokens:].unflatten(0, grid)


def resample_pos_embed(
    pos_embed: Float[Tensor, "*one rows dim"],
    size: Sequence[int],
    *,
    old_size: Sequence[int],
    num_prefix_tokens: int,
    mode: str = "bicubic",
    antialias: bool = True,
    align_corners: bool = False,
) -> Float[Tensor, "*one new dim"]:
    """Resamples a flat position embedding, such as timm's and DINO's ``pos_embed``, to another grid.

    Rows of prefix tokens are kept to the bit; the others are resampled as `resample_table` does. The result has the
    form and dtype of what was given. What others do::

        timm; DINOv2 with registers      mode="bicubic", antialias=True
        ViT and DINOv2 of transformers   mode="bicubic", antialias=False
        SigLIP 2                         mode="bilinear", antialias=True
        Qwen3-VL, CLIP of torchtune      mode="bilinear", antialias=False, align_corners=True

    (The released code of DINO, and of DINOv2 without registers, takes ``new + 0.1`` for the new number of cells where
    it computes places, which moves them by a tenth of a new cell at the far edge. That is not offered.)

    Args:
        pos_embed: ``(prefix + n, dim)`` or ``(1, prefix + n, dim)``.
        size: The new grid, of one to three axes.
        old_size: The grid that it was learned for.
        num_prefix_tokens: Rows in front of the grid's: 1 for a class token alone, 0 where prefix tokens have no
            position.
        mode: "bicubic" or "bilinear".
        antialias: Whether the filter is widened where the grid shrinks.
        align_corners: Whether the outermost cells keep their place; only without ``antialias``.

    Raises:
        ValueError: If the rows are not as many as ``old_size`` and ``num_prefix_tokens`` make, or as
            `resample_table`.
        TypeError: If the embedding is not floating point, or a number no integer.

    Example:
        >>> pos_embed = torch.randn(1, 1 + 14 * 10, 384)
        >>> resample_pos_embed(pos_embed, (16, 12), old_size=(14, 10), num_prefix_tokens=1).shape
        torch.Size([1, 193, 384])
    """
    old = _check_rows(pos_embed, old_size, "old_size", num_prefix_tokens)
    new = check_size("size", size, len(old), "old_size")
    if old == new:
        return pos_embed
    change = partial(resample_table, size=new, mode=mode, antialias=antialias, align_corners=align_corners)
    return in_one_piece(pos_embed, partial(_resample, old, num_prefix_tokens, change))


def _resample(
    old: tuple[int, ...], num_prefix_tokens: int, change: Callable[[Tensor], Tensor], pos_embed: Tensor
) -> Tensor:
    prefix, table = split_pos_embed(pos_embed, old, num_prefix_tokens=num_prefix_tokens)
    rows = torch.cat([prefix, change(table).flatten(0, -2)])
    return rows.reshape(*pos_embed.shape[:-2], *rows.shape)


def _check_rows(pos_embed: Tensor, size: Sequence[int], name: str, num_prefix_tokens: int) -> tuple[int, ...]:
    check_table("pos_embed", pos_embed)
    grid = check_size(name, size)
    if isinstance(num_prefix_tokens, bool) or not isinstance(num_prefix_tokens, int):
        raise TypeError(f"num_prefix_tokens must be an integer, got {num_prefix_tokens!r}")
    if num_prefix_tokens < 0:
        raise ValueError(f"num_prefix_tokens must not be negative, got {num_prefix_tokens}")
    if pos_embed.ndim not in (2, 3) or (pos_embed.ndim == 3 and len(pos_embed) != 1):
        raise ValueError(
            f"pos_embed must be (prefix + n, dim) or (1, prefix + n, dim), got shape {tuple(pos_embed.shape)}"
        )
    rows = pos_embed.shape[-2]
    if rows != prod(grid) + num_prefix_tokens:
        raise ValueError(
            f"pos_embed has {rows} rows, but {name} {' x '.join(map(str, grid))} and num_prefix_tokens "
            f"({num_prefix_tokens}) make {prod(grid) + num_prefix_tokens}"
        )
    return grid
