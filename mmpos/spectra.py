"""Recipes that share the channel pairs of a head out to the axes of the coordinates."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from numbers import Integral
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from .arguments import check_flag, check_int64, check_is_number, check_sequence, is_sequence
from .frequencies import Geometric, Pair, Series, Spectrum


class Recipe(ABC):
    """Makes the spectrum of ``width`` channels for coordinates of ``axes`` axes."""

    @abstractmethod
    def spectrum(self, width: int, axes: int, base: float, name: str = "width") -> Spectrum:
        """The spectrum; ``base`` serves where the recipe has no series of its own, ``name`` is for errors."""


def check_series(name: str, series: Series | None) -> None:
    """Refuses what is neither a series nor None."""
    if not isinstance(series, Series | None):
        raise TypeError(f"{name} must be a series such as Geometric or Periods, got {series!r}")


@dataclass(frozen=True)
class Axial(Recipe):
    """Blocks of pairs, each owned by one axis, with the series of its own width.

    Unless told otherwise all axes have blocks of the same width, in axis order, and must fill the head.

    Args:
        channels: Channels of each axis, even numbers; what they leave of the head passes through.
        weights: Shares of the pairs instead: axis ``a`` gets ``floor(pairs * weights[a] / sum(weights))`` pairs.
        remainder: The axis that gets the pairs which rounding leaves over; they pass through if None.
        order: The order of the blocks, a permutation of the axes; axis order if None.
        series: The frequencies of a block; geometric by the encoding's base if None.
        dealt: Whether the series of the whole width is dealt out to the axes in turn, as Pixtral does, instead of
            each block having a series of its own.

    Raises:
        ValueError: If both channels and weights are given, their number is not that of the axes, or they do not fit
            the head.

    Example:
        >>> RoPE(head_dim=64, axes=3, spectrum=Axial(weights=(2, 3, 3)))(video_coords(4, 3, 2)).cos.shape
        torch.Size([1, 24, 32])
    """

    channels: Sequence[int] | None = None
    weights: Sequence[float] | None = None
    remainder: int | None = None
    order: Sequence[int] | None = None
    series: Series | None = None
    dealt: bool = False

    def __post_init__(self):
        for name in ("channels", "weights", "order"):
            if getattr(self, name) is not None:
                check_sequence(name, getattr(self, name))
                object.__setattr__(self, name, tuple(getattr(self, name)))
        for name in ("channels", "order"):
            for number in getattr(self, name) or ():
                check_int64(name, number)
        for weight in self.weights or ():
            check_is_number("weights", weight)
        if self.remainder is not None:
            check_int64("remainder", self.remainder)
        check_series("series", self.series)
        check_flag("dealt", self.dealt)
        if self.channels is not None and self.weights is not None:
            raise ValueError("give channels or weights, not both")
        if self.channels is not None and any(count < 0 or count % 2 for count in self.channels):
            raise ValueError(f"channels must be even and not negative, got {self.channels}")
        if self.weights is not None and not (min(self.weights, default=0) >= 0 and 0 < sum(self.weights) < math.inf):
            raise ValueError(f"weights must not be negative or all 0, got {self.weights}")
        if self.remainder is not None and self.weights is None:
            raise ValueError("remainder says where the rounding of weights goes, but there are no weights")

    def spectrum(self, width: int, axes: int, base: float, name: str = "width") -> Spectrum:
        budget = self._budget(width, axes, name)
        order = range(axes) if self.order is None else self.order
        if sorted(order) != list(range(axes)):
            raise ValueError(f"order must be a permutation of the {axes} axes, got {self.order}")
        series = self.series or Geometric(base)
        if self.dealt:
            if len(set(budget)) > 1:
                raise ValueError(f"dealing out one series needs blocks of the same width, got {budget} pairs")
            whole = series.pairs(sum(budget))
            blocks = [whole[axis::axes] for axis in range(axes)]
        else:
            blocks = [series.pairs(count) for count in budget]
        return Spectrum((tuple(_owned(pair, axis, axes) for axis in order for pair in blocks[axis]),))

    def _budget(self, width: int, axes: int, name: str) -> list[int]:
        """Pairs of each axis."""
        given = self.channels if self.channels is not None else self.weights
        if given is None:
            if width % (2 * axes):
                raise ValueError(f"{name} ({width}) must be a multiple of 2 * axes ({2 * axes})")
            return [width // (2 * axes)] * axes
        if len(given) != axes:
            raise ValueError(f"the spectrum shares channels out to {len(given)} axes, but there are {axes}: {given}")
        if self.channels is not None:
            if sum(self.channels) > width:
                raise ValueError(f"channels {self.channels} add up to {sum(self.channels)}, more than {name} ({width})")
            return [count // 2 for count in self.channels]
        pairs, total = width // 2, sum(given)
        budget = [math.floor(pairs * weight / total) for weight in given]
        if self.remainder is not None:
            if not 0 <= self.remainder < axes:
                raise ValueError(f"remainder must be an axis from 0 to {axes - 1}, got {self.remainder}")
            budget[self.remainder] += pairs - sum(budget)
        return budget


@dataclass(frozen=True)
class Sections(Recipe):
    """One series over the whole width whose pairs are owned by the axes in sections (M-RoPE).

    Args:
        sections: Pairs of each axis; they add up to half the width.
        interleaved: False: contiguous sections, as Qwen2-VL has them. True: axis ``j`` of ``a`` owns pairs
            ``j, j + a, j + 2a, ...`` up to its number and the first axis all others, as Qwen3-VL has it.
        series: The frequencies; geometric by the encoding's base if None.

    Raises:
        ValueError: If the sections do not add up to the pairs, or cannot be laid out in turn.

    Reference:
        Wang et al., Qwen2-VL, 2024, sec. 2.1. https://arxiv.org/abs/2409.12191
    """

    sections: Sequence[int]
    interleaved: bool = False
    series: Series | None = None

    def __post_init__(self):
        if not isinstance(self.sections, Sequence):
            raise TypeError(f"sections must be integers, got {self.sections!r}")
        object.__setattr__(self, "sections", tuple(self.sections))
        check_flag("interleaved", self.interleaved)
        check_series("series", self.series)
        if any(isinstance(count, bool) or not isinstance(count, Integral) for count in self.sections):
            raise TypeError(f"sections must be integers, got {self.sections}")
        if any(count < 0 for count in self.sections):
            raise ValueError(f"sections must not be negative, got {self.sections}")

    def spectrum(self, width: int, axes: int, base: float, name: str = "width") -> Spectrum:
        if len(self.sections) != axes:
            raise ValueError(f"sections must have a number for each of the {axes} axes, got {self.sections}")
        if 2 * sum(self.sections) != width:
            raise ValueError(f"sections {self.sections} must add up to half of {name} ({width})")
        if self.interleaved:
            owners = [0] * (width // 2)
            for axis in range(1, axes):
                for place in range(axis, min(axes * self.sections[axis], len(owners)), axes):
                    owners[place] = axis
            counts = tuple(owners.count(axis) for axis in range(axes))
            if counts != self.sections:
                raise ValueError(f"sections {self.sections} cannot be interleaved; taking turns gives {counts}")
        else:
            owners = [axis for axis, count in enumerate(self.sections) for _ in range(count)]
        series = (self.series or Geometric(base)).pairs(width // 2)
        return Spectrum((tuple(_owned(pair, axis, axes) for pair, axis in zip(series, owners, strict=True)),))


@dataclass(frozen=True)
class Shared(Recipe):
    """Every pair turns with all axes: with the sum of the coordinates, or on each axis by a series of its own.

    Args:
        series: The frequencies; geometric by the encoding's base if None. One series serves all axes. With one for
            each, such as ``(Seasons(...), Geometric())`` for time and order, their angles are summed.

    Raises:
        ValueError: If the width is odd, or there are not as many series as axes.
    """

    series: Series | Sequence[Series] | None = None

    def __post_init__(self):
        if is_sequence(self.series):
            object.__setattr__(self, "series", tuple(self.series))
        every: Any = self.series
        for series in every if isinstance(every, tuple) else (every,):
            check_series("series", series)

    def spectrum(self, width: int, axes: int, base: float, name: str = "width") -> Spectrum:
        if width % 2:
            raise ValueError(f"{name} ({width}) must be even")
        if not isinstance(self.series, Sequence):
            series = (self.series or Geometric(base)).pairs(width // 2)
            return Spectrum((tuple(Pair((freq,) * axes, place) for freq, place in series),))
        if len(self.series) != axes:
            raise ValueError(f"series must be one or one for each of the {axes} axes, got {len(self.series)}")
        rows = [[freq for freq, _ in series.pairs(width // 2)] for series in self.series]
        return Spectrum((tuple(map(Pair, zip(*rows, strict=True))),))


@dataclass(frozen=True)
class Given(Recipe):
    """Frequencies as numbers in radians per coordinate unit, ``(a, p)`` or, for each head, ``(h, a, p)``.

    0 stands where an axis does not turn a pair.

    Example:
        >>> two_with_y_two_with_x = Given(((1.0, 0.5, 0.0, 0.0), (0.0, 0.0, 1.0, 0.5)))
    """

    freqs: Sequence

    def __post_init__(self):
        try:
            freqs = torch.as_tensor(self.freqs, dtype=torch.float64)
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise ValueError(f"freqs must be (axes, pairs) or (heads, axes, pairs), got {self.freqs}") from error
        if freqs.ndim not in (2, 3) or not freqs.numel():
            raise ValueError(f"freqs must be (axes, pairs) or (heads, axes, pairs), got shape {tuple(freqs.shape)}")
        if freqs.is_meta:
            raise ValueError("freqs must have values, got a tensor on the meta device")
        if not freqs.isfinite().all():
            raise ValueError(f"freqs must be finite, got {self.freqs}")
        rows = freqs.reshape(-1, *freqs.shape[-2:]).tolist()
        object.__setattr__(self, "freqs", tuple(tuple(tuple(row) for row in head) for head in rows))

    def spectrum(self, width: int, axes: int, base: float, name: str = "width") -> Spectrum:
        heads = [[tuple(map(Decimal, pair)) for pair in zip(*head, strict=True)] for head in self.freqs]
        if len(heads[0][0]) != axes:
            raise ValueError(f"freqs must have a row for each of the {axes} axes, got {len(heads[0][0])}")
        if 2 * len(heads[0]) > width:
            raise ValueError(f"freqs turn {2 * len(heads[0])} channels, more than {name} ({width})")
        return Spectrum(tuple(tuple(map(Pair, head)) for head in heads))


@dataclass(frozen=True)
class Learned:
    """Learned frequencies that start from a recipe and keep its owners: one number for each pair.

    Args:
        start: Where they start.
        log: Whether the logarithm of the frequency is what is learned, which keeps it positive.
        per_head: Whether each head learns its own.
    """

    start: Recipe = Axial()
    log: bool = False
    per_head: bool = False

    def __post_init__(self):
        if not isinstance(self.start, Recipe):
            raise TypeError(f"start must be a fixed spectrum: Axial, Sections, Shared or Given, got {self.start!r}")
        check_flag("log", self.log)
        check_flag("per_head", self.per_head)

    def draw(self, spectrum: Spectrum, num_heads: int | None) -> Float[Tensor, "h p"]:
        """What is learned, at its start."""
        if self.per_head and num_heads is None:
            raise ValueError("frequencies of each head need num_heads")
        values = []
        for head in spectrum.floats:
            columns = [{freq for freq in pair if freq} or {0.0} for pair in zip(*head, strict=True)]
            if any(len(column) > 1 for column in columns):
                raise ValueError("Learned has one number for each pair, but its start has other ones on other axes")
            values.append([freq for column in columns for freq in column])
        if self.log and min(map(min, values)) <= 0:
            raise ValueError(
                f"log needs frequencies above 0, but those of the start go down to {min(map(min, values))}"
            )
        freqs = torch.tensor(values, dtype=torch.float32)
        freqs = freqs.log() if self.log else freqs
        return freqs.expand(num_heads or 1, -1).clone() if self.per_head else freqs

    def on_axes(self, learned: Float[Tensor, "h p"], spectrum: Spectrum) -> Float[Tensor, "h a p"]:
        """The frequencies that the learned numbers stand for."""
        owned = [[[freq != 0 for freq in row] for row in head] for head in spectrum.floats]
        freqs = learned.exp() if self.log else learned
        return freqs[:, None] * torch.tensor(owned, device=learned.device)


@dataclass(frozen=True)
class Mixed:
    """Learned frequencies of each head on every axis, so that a pair turns along a direction of its own.

    A head starts with a random orthonormal frame of directions; the pairs of block ``j`` turn along its direction
    ``j`` with the geometric series of an axial encoding.

    Reference:
        Heo et al., Rotary position embedding for vision transformer, 2024, sec. 3.2. https://arxiv.org/abs/2403.13298
    """

    def draw(self, num_heads: int, axes: int, width: int, base: float) -> Float[Tensor, "h a p"]:
        """Initial frequencies of ``width // 2`` pairs in radians per coordinate unit."""
        frame, upper = torch.linalg.qr(torch.randn(num_heads, axes, axes, dtype=torch.float32))
        frame = frame * upper.diagonal(dim1=-2, dim2=-1).sign()[:, None]
        series = [float(freq) for freq, _ in Geometric(base).pairs(width // (2 * axes))]
        return (frame[..., None] * torch.tensor(series, dtype=torch.float32, device=frame.device)).flatten(-2)


def _owned(pair: tuple, axis: int, axes: int) -> Pair:
    freq, place = pair
    return Pair(tuple(freq if own == axis else Decimal(0) for own in range(axes)), place)
