"""Transforms of coordinates: to another scale or range, and at random for training.

Each takes coordinates ``(..., n, a)`` and returns new ones in float64. Random ones draw once for each row of a batch.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int, Integer, Shaped
from torch import Tensor

from .arguments import (
    check_choice,
    check_count,
    check_flag,
    check_generator,
    check_integers,
    check_mask,
    check_positions,
    check_real,
    check_same_device,
    is_sequence,
)


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
    check_positions("coords", coords)
    check_choice("by", by, ("separate", "max", "min"))
    if not isinstance(size, Sequence) or isinstance(size, str | bytes):
        raise TypeError(f"size must be a sequence of numbers, got {size!r}")
    for side in size:
        check_real("size", side)
    if len(size) != coords.shape[-1] or not all(side > 0 for side in size):
        raise ValueError(f"size must have a positive number for each of {coords.shape[-1]} axes, got {tuple(size)}")
    sides = size if by == "separate" else [max(size) if by == "max" else min(size)] * len(size)
    return (coords.double() + 0.5) / _row(sides, coords) * 2 - 1


def normalise_padded(
    coords: Shaped[Tensor, "b n a"], mask: Bool[Tensor, "b *grid"], *, offset: float = 1.0, eps: float = 1e-6
) -> Float[Tensor, "b n a"]:
    """Maps positions in padded rows to their share of what is real: ``(coord + offset) / (count + eps)``; pads get 0.

    ``count`` is the number of real cells on the line along an axis through the token. So an image that fills a part
    of its row covers the range from 0 to 1, as one that fills all of it does.

    Args:
        coords: Positions of real cells, counted from 0: ``padded_coords(mask)``.
        mask: True where a token is real.
        offset: 1, where DETR begins to count, or 0.5, the centres of cells, as Deformable DETR has it.
        eps: Added to the count.

    Raises:
        TypeError: If the mask is not boolean.
        ValueError: If the mask is not one of these coordinates.

    Example:
        >>> mask = torch.tensor([[True, True, False, False], [True, True, True, True]])
        >>> normalise_padded(padded_coords(mask), mask, offset=0.5, eps=0)[..., 0]
        tensor([[0.2500, 0.7500, 0.0000, 0.0000],
                [0.1250, 0.3750, 0.6250, 0.8750]], dtype=torch.float64)

    Reference:
        Carion et al., End-to-end object detection with transformers, 2020, sec. A.4, and its released code.
        https://arxiv.org/abs/2005.12872
    """
    check_positions("coords", coords)
    check_mask("mask", mask, "is a real token")
    check_real("offset", offset)
    check_real("eps", eps)
    check_same_device("mask", mask, "coords", coords)
    grid = mask.shape[1:]
    if mask.ndim < 2 or coords.shape != (len(mask), math.prod(grid), len(grid)):
        raise ValueError(f"mask of shape {tuple(mask.shape)} does not fit coords of shape {tuple(coords.shape)}")
    counts = [mask.double().sum(axis, keepdim=True).expand_as(mask) for axis in range(1, mask.ndim)]
    shares = (coords.double() + offset) / (torch.stack(counts, dim=-1).flatten(1, -2) + eps)
    return shares.where(mask.flatten(1)[..., None], 0)


def rescale(coords: Shaped[Tensor, "*batch n a"], factor: float | Sequence[float]) -> Float[Tensor, "*batch n a"]:
    """Multiplies coordinates by a factor, one for all axes or one for each.

    ``rescale(grid_coords(28, 28), 14 / 28)`` puts a finer grid where one of 14 x 14 was.

    Raises:
        ValueError: If the factors are not one for each axis.
    """
    check_positions("coords", coords)
    factors: list[Any] = list(factor) if is_sequence(factor) else [factor] * coords.shape[-1]
    for number in factors:
        check_real("factor", number)
    if len(factors) != coords.shape[-1]:
        raise ValueError(f"factor must be one number or one for each of {coords.shape[-1]} axes, got {factor}")
    return coords.double() * _row(factors, coords)


def shift(
    coords: Shaped[Tensor, "*batch n a"],
    reach: float,
    *,
    whole: bool = False,
    per_token: bool = False,
    generator: torch.Generator | None = None,
) -> Shaped[Tensor, "*batch n a"]:
    """Adds a random number from ``-reach`` to ``reach`` to each axis, or a whole one from 0 to ``reach``.

    Args:
        coords: Coordinates.
        reach: Largest shift in coordinate units.
        whole: Whether the number is whole and not negative, as SHAPE has it; integer coordinates stay integers.
        per_token: Whether every token moves by itself, as CAPE's local shift has it, and not a row as a whole.
        generator: Source of random numbers.

    Raises:
        ValueError: If ``reach`` is negative.

    Reference:
        Kiyono et al., SHAPE, 2021, sec. 3. https://arxiv.org/abs/2109.05644
        Likhomanenko et al., CAPE, 2021, sec. 3. https://arxiv.org/abs/2106.03143
        Siméoni et al., DINOv3, 2025, sec. 3.2. https://arxiv.org/abs/2508.10104
    """
    check_positions("coords", coords)
    check_real("reach", reach)
    check_flag("whole", whole)
    check_flag("per_token", per_token)
    check_generator(generator)
    if reach < 0 or (whole and reach >= 2**63 - 1):
        raise ValueError(f"reach must not be negative{', and less than 2^63' * whole}, got {reach}")
    shape = coords.shape if per_token else (*coords.shape[:-2], 1, coords.shape[-1])
    if whole:
        steps = torch.randint(int(reach) + 1, shape, generator=generator, device=coords.device)
        return (coords.double() if coords.is_floating_point() else coords.long()) + steps
    return coords.double() + _uniform(coords, shape, generator) * reach


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
    check_positions("coords", coords)
    check_real("factor", factor)
    check_flag("shared", shared)
    check_generator(generator)
    if factor < 1:
        raise ValueError(f"factor must be at least 1, got {factor}")
    axes = 1 if shared else coords.shape[-1]
    return coords.double() * (_uniform(coords, (*coords.shape[:-2], 1, axes), generator) * math.log(factor)).exp()


def subsample(
    coords: Integer[Tensor, "*batch n 1"], length: int, *, generator: torch.Generator | None = None
) -> Int[Tensor, "*batch n 1"]:
    """Replaces positions by a random subset of ``0 ... length - 1`` in order: position ``i`` becomes its ``i``-th.

    A model that learns so has seen all positions of a longer range. Equal positions stay equal, so packed and padded
    rows keep their meaning.

    Args:
        coords: Positions from 0 to less than the number of tokens.
        length: Size of the longer range, at least the number of tokens.
        generator: Source of random numbers.

    Raises:
        ValueError: If ``length`` is less than the number of tokens, or a position is out of range.
        TypeError: If the positions are not integers.

    Example:
        >>> subsample(sequence_coords(5), 5)[:, 0]
        tensor([0, 1, 2, 3, 4])

    Reference:
        Ruoss et al., Randomized positional encodings boost length generalization of transformers, 2023, sec. 3.
        https://arxiv.org/abs/2305.16843
    """
    tokens = _check_positions(coords, length, generator)
    ranks = torch.rand(*coords.shape[:-2], length, generator=generator, device=coords.device).argsort(dim=-1)
    chosen = ranks[..., :tokens].sort(dim=-1).values
    return chosen.gather(-1, coords[..., 0].long())[..., None]


def skip(
    coords: Integer[Tensor, "*batch n 1"], length: int, *, chunks: int = 2, generator: torch.Generator | None = None
) -> Int[Tensor, "*batch n 1"]:
    """Cuts positions into chunks at random and skips a random number of positions before each but the first.

    Within a chunk positions stay neighbours, and a short row reaches up to ``length - 1``.

    Args:
        coords: Positions from 0 to less than the number of tokens.
        length: Size of the range to be reached, at least the number of tokens.
        chunks: Number of chunks, at most the number of tokens.
        generator: Source of random numbers.

    Raises:
        ValueError: If ``length`` is less than the number of tokens, ``chunks`` not from 1 to that number, or a
            position out of range.
        TypeError: If the positions are not integers.

    Example:
        >>> skip(sequence_coords(5), 5)[:, 0]
        tensor([0, 1, 2, 3, 4])

    Reference:
        Zhu et al., PoSE, 2023, sec. 3.2. https://arxiv.org/abs/2309.10400
    """
    tokens = _check_positions(coords, length, generator)
    check_count("chunks", chunks)
    if not 1 <= chunks <= max(tokens, 1):
        raise ValueError(f"chunks ({chunks}) must be from 1 to the number of tokens ({tokens})")
    rows, options = coords.shape[:-2], {"generator": generator, "device": coords.device}
    starts = torch.rand(*rows, max(tokens - 1, 0), **options).argsort(dim=-1)[..., : chunks - 1].sort(dim=-1).values + 1
    skipped, skips = torch.zeros(*rows, 1, dtype=torch.int64, device=coords.device), []
    for share in torch.rand(chunks - 1, *rows, 1, dtype=torch.float64, **options):
        skipped = skipped + (share * (length - tokens + 1 - skipped)).long()
        skips.append(skipped)
    own = (coords >= starts[..., None, :]).sum(-1)  # the chunk of each token
    return coords.long() + torch.cat([torch.zeros_like(skipped), *skips], dim=-1).gather(-1, own)[..., None]


def _check_positions(coords: Tensor, length: int, generator: torch.Generator | None) -> int:
    """The number of tokens of coordinates that are positions below it."""
    check_integers("coords", coords)
    check_positions("coords", coords)
    check_count("length", length)
    check_generator(generator)
    tokens = coords.shape[-2]
    if coords.shape[-1] != 1:
        raise ValueError(f"coords must have one axis, got shape {tuple(coords.shape)}")
    if length < tokens:
        raise ValueError(f"length ({length}) must be at least the number of tokens ({tokens})")
    if (
        coords.numel()
        and not torch.compiler.is_compiling()
        and not coords.is_meta
        and not 0 <= coords.min() <= coords.max() < tokens
    ):
        raise ValueError(
            f"coords must be from 0 to {tokens - 1}, less than the number of tokens, got "
            f"{coords.min().item()} to {coords.max().item()}"
        )
    return tokens


def _row(numbers: Sequence[float], coords: Tensor) -> Float[Tensor, " a"]:
    return torch.tensor(numbers, dtype=torch.float64, device=coords.device)


def _uniform(coords: Tensor, shape: Sequence[int], generator: torch.Generator | None) -> Float[Tensor, "..."]:
    """Random numbers from -1 to 1."""
    return torch.rand(*shape, generator=generator, dtype=torch.float64, device=coords.device) * 2 - 1
