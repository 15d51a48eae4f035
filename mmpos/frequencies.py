"""Spectra: how fast each channel pair turns on each axis, and which axis owns which pair.

A recipe (`Axial`, `Sections`, ...) makes the `Spectrum` of a given width, a value made of Python numbers alone; a
scaling maps a spectrum to a spectrum; `Spectrum.cos_sin` evaluates it exactly.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from decimal import Decimal, localcontext
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from .phases import DIGITS, TURN, Steps, exact_cos_sin, phase_steps

ROUNDING = Decimal("1e-40")  # of a turn, far above that of 60 digits and far below what int64 can tell


class Place(NamedTuple):
    """The place of a pair in a geometric series, ``base ** (-2 number / width)``: what NTK and YaRN go by."""

    number: int
    base: float
    width: int


class Pair(NamedTuple):
    """A channel pair: radians per coordinate unit on each axis, its place in a series, its attention factor."""

    freqs: tuple[Decimal, ...]
    place: Place | None = None
    factor: float = 1.0


@dataclass(frozen=True)
class Spectrum:
    """The pairs of each head; one head stands for all.

    An axis on which every pair repeats after a whole number of units has that as its period, others have 0.
    """

    heads: tuple[tuple[Pair, ...], ...]
    steps: Steps = field(init=False, repr=False, compare=False)
    floats: tuple[tuple[tuple[float, ...], ...], ...] = field(init=False, repr=False, compare=False)
    periods: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self):
        if not self.heads or not self.heads[0]:
            raise ValueError("the spectrum has no pair that turns")
        object.__setattr__(self, "steps", phase_steps(self.rows()))
        floats = tuple(tuple(tuple(map(float, row)) for row in head) for head in self.rows())
        object.__setattr__(self, "floats", floats)
        axes = zip(*(pair.freqs for head in self.heads for pair in head), strict=True)
        object.__setattr__(self, "periods", tuple(map(_whole_period, axes)))

    def rows(self) -> list[list[tuple[Decimal, ...]]]:
        """The frequencies ``(h, a, p)`` in radians per coordinate unit."""
        return [list(zip(*(pair.freqs for pair in head), strict=True)) for head in self.heads]

    def tensor(self, dtype: torch.dtype, device: torch.device) -> Float[Tensor, "h a p"]:
        """The frequencies as floats."""
        return torch.tensor(self.floats, dtype=dtype, device=device)

    def factors(self) -> list[list[float]] | None:
        """The attention factors ``(h, p)``; None where all are 1."""
        factors = [[pair.factor for pair in head] for head in self.heads]
        return factors if any(factor != 1 for head in factors for factor in head) else None

    def map(self, change: Callable[[Pair], Pair]) -> "Spectrum":
        """The spectrum with every pair changed."""
        return Spectrum(tuple(tuple(map(change, head)) for head in self.heads))

    def cos_sin(
        self, coords: Shaped[Tensor, "*batch n a"], length: int | Int[Tensor, "*rows"] | None = None
    ) -> tuple[Float[Tensor, "*batch h n p"], Float[Tensor, "*batch h n p"]]:
        """Cosine and sine of every angle in float32, exact at any coordinate, with gradients to float ones."""
        cos, sin = exact_cos_sin(self._wrap(coords.detach()), self.steps)
        if not coords.requires_grad:
            return cos, sin
        # Turn by an angle that is 0 and has the derivatives of the true one, of every order.
        coords = coords.where(coords.isfinite(), 0)
        zero = angles(coords - coords.detach(), self.tensor(coords.dtype, coords.device))
        zero_cos, zero_sin = zero.cos(), zero.sin()
        return (cos * zero_cos - sin * zero_sin).float(), (sin * zero_cos + cos * zero_sin).float()

    def _wrap(self, coords: Shaped[Tensor, "*batch n a"]) -> Shaped[Tensor, "*batch n a"]:
        """Integer coordinates modulo the periods, without which a seam of 2^-33 turns would show in the last bits."""
        if coords.is_floating_point() or not any(self.periods):
            return coords
        columns = zip(coords.to(torch.int64).unbind(-1), self.periods, strict=True)
        return torch.stack([column % period if period else column for column, period in columns], dim=-1)


def angles(coords: Float[Tensor, "*batch n a"], freqs: Float[Tensor, "*#batch h a p"]) -> Float[Tensor, "*batch h n p"]:
    """``sum_a coords[a] * freqs[a, p]`` by elementwise products, which autocast leaves alone."""
    coords = coords[..., None, :, :]
    total = coords[..., 0, None] * freqs[..., None, 0, :]
    for axis in range(1, coords.shape[-1]):
        total = total + coords[..., axis, None] * freqs[..., None, axis, :]
    return total


class Series(ABC):
    """The frequencies of a block of pairs."""

    @abstractmethod
    def pairs(self, num_pairs: int) -> list[tuple[Decimal, Place | None]]:
        """Frequency in radians per coordinate unit, and place in a geometric series by base if it is one."""


@dataclass(frozen=True)
class Geometric(Series):
    """Pair ``i`` of ``width`` channels turns by ``base ** (-2i / width)`` radians per coordinate unit.

    Args:
        base: The ratio of the first frequency to the one that would follow the last.
        endpoint: Whether the last pair turns by ``1 / base`` itself, pair ``i`` of ``n`` by ``base ** (-i / (n - 1))``,
            as tensor2tensor, big_vision, Whisper and TimesFM have it. NTK and YaRN do not know such a series.
        width: The width in the exponent, for the first pairs of a wider series or an odd number of channels; twice
            the pairs if None.

    Raises:
        ValueError: If the base is not positive and finite, the width is not positive, or both last are given.

    Reference:
        Vaswani et al., Attention is all you need, 2017, sec. 3.5. https://arxiv.org/abs/1706.03762
    """

    base: float = 10000.0
    endpoint: bool = False
    width: int | None = None

    def __post_init__(self):
        check_base(self.base)
        if self.width is not None and self.width < 1:
            raise ValueError(f"width must be positive, got {self.width}")
        if self.width is not None and self.endpoint:
            raise ValueError(f"give endpoint or width, not both; got width={self.width}")

    def pairs(self, num_pairs: int) -> list[tuple[Decimal, Place | None]]:
        with localcontext(prec=DIGITS):
            base = Decimal(self.base)
            if self.endpoint:
                return [(base ** (-Decimal(i) / max(num_pairs - 1, 1)), None) for i in range(num_pairs)]
            width = self.width or 2 * num_pairs
            return [(base ** (Decimal(-2 * i) / width), Place(i, self.base, width)) for i in range(num_pairs)]


@dataclass(frozen=True)
class Periods(Series):
    """Periods spaced geometrically from ``min_period`` to ``max_period``, in coordinate units.

    With ``endpoint=False`` the last pair stays one step short of ``max_period``; ``Periods(1, 100, endpoint=False)``
    on coordinates from -1 to 1 is DINOv3's spectrum of base 100.

    Reference:
        Siméoni et al., DINOv3, 2025, sec. 3.2. https://arxiv.org/abs/2508.10104
    """

    min_period: float
    max_period: float
    endpoint: bool = True

    def __post_init__(self):
        if not 0 < self.min_period < self.max_period < math.inf:
            raise ValueError(
                f"periods must satisfy 0 < min_period < max_period, got {self.min_period} and {self.max_period}"
            )

    def pairs(self, num_pairs: int) -> list[tuple[Decimal, Place | None]]:
        with localcontext(prec=DIGITS):
            shortest, ratio = Decimal(self.min_period), Decimal(self.max_period) / Decimal(self.min_period)
            steps = max(num_pairs - 1, 1) if self.endpoint else num_pairs
            return [(TURN / shortest * ratio ** (-Decimal(i) / steps), None) for i in range(num_pairs)]


@dataclass(frozen=True)
class Bands(Series):
    """Rising frequencies from ``pi`` to ``pi * max_freq / 2``, for coordinates from -1 to 1.

    Args:
        max_freq: Twice the highest frequency in half turns per unit; the resolution that it can still tell apart.
        spacing: "linear" or "octaves", equal steps of the frequency or of its logarithm.
    """

    max_freq: float
    spacing: Literal["linear", "octaves"] = "linear"

    def __post_init__(self):
        if not 2 <= self.max_freq < math.inf:
            raise ValueError(f"max_freq must be at least 2, got {self.max_freq}")
        if self.spacing not in ("linear", "octaves"):
            raise ValueError(f"spacing must be 'linear' or 'octaves', got {self.spacing!r}")

    def pairs(self, num_pairs: int) -> list[tuple[Decimal, Place | None]]:
        with localcontext(prec=DIGITS):
            top, steps = Decimal(self.max_freq) / 2, max(num_pairs - 1, 1)
            shares = [Decimal(i) / steps for i in range(num_pairs)]
            if self.spacing == "linear":
                return [(TURN / 2 * (1 + share * (top - 1)), None) for share in shares]
            return [(TURN / 2 * top**share, None) for share in shares]


@dataclass(frozen=True)
class Harmonics(Series):
    """Pair ``i`` turns ``i + 1`` times per period: a Fourier series, for an axis that closes on itself without a seam.

    With a whole ``period`` integer coordinates a period apart have the same bits, over all of int64; otherwise they
    agree as well as all phases do, within 1e-7 of the true value.

    Args:
        period: Coordinate units after which all repeats: 360 for degrees, 24 for hours.

    Raises:
        ValueError: If the period is not positive and finite.
        TypeError: If it is not a number.

    Example:
        >>> hours = Sinusoidal(dim=8, spectrum=Axial(series=Harmonics(24)))
        >>> torch.equal(hours(torch.tensor([[5]])), hours(torch.tensor([[5 + 24 * 365]])))
        True
    """

    period: float

    def __post_init__(self):
        _check_number("period", self.period)

    def pairs(self, num_pairs: int) -> list[tuple[Decimal, Place | None]]:
        with localcontext(prec=DIGITS):
            return [(TURN * (i + 1) / Decimal(self.period), None) for i in range(num_pairs)]


def check_base(base: float) -> None:
    """Refuses a base that gives no geometric series of frequencies."""
    _check_number("base", base)


def _check_number(name: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be positive and finite, got {value}")


def _whole_period(freqs: Iterable[Decimal]) -> int:
    """The whole number of units after which all frequencies, in radians per unit, repeat; 0 if there is none."""
    with localcontext(prec=DIGITS):
        turns = [abs(freq) / TURN for freq in freqs if freq]
        period = int((1 / min(turns)).to_integral_value()) if turns else 0
        counts = [share * period for share in turns]
        whole = all(abs(count - count.to_integral_value()) < ROUNDING for count in counts)
        return period if whole and period < 2**63 else 0
