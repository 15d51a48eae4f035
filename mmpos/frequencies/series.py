"""Series: the frequencies of a block of pairs."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from decimal import Decimal, localcontext
from typing import Literal

from ..arguments import check_choice, check_count, check_flag, check_is_number, check_number
from ..phases import DIGITS, TURN
from .spectrum import Place


class Series(ABC):
    """The frequencies of a block of pairs."""

    @abstractmethod
    def pairs(self, num_pairs: int) -> list[tuple[Decimal, Place | None]]:
        """Frequency in radians per coordinate unit, and place in a geometric series by base if it is one."""

    def freqs(self, num_pairs: int) -> list[float]:
        """The frequencies alone, as a row of `Given`."""
        return [float(freq) for freq, _ in self.pairs(num_pairs)]


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
        check_flag("endpoint", self.endpoint)
        if self.width is not None:
            check_count("width", self.width, 1)
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
        check_is_number("min_period", self.min_period)
        check_is_number("max_period", self.max_period)
        check_flag("endpoint", self.endpoint)
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
        check_number("max_freq", self.max_freq)
        if self.max_freq < 2:
            raise ValueError(f"max_freq must be at least 2, got {self.max_freq}")
        check_choice("spacing", self.spacing, ("linear", "octaves"))

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
        check_number("period", self.period)

    def pairs(self, num_pairs: int) -> list[tuple[Decimal, Place | None]]:
        with localcontext(prec=DIGITS):
            return [(TURN * (i + 1) / Decimal(self.period), None) for i in range(num_pairs)]


def check_base(base: float) -> None:
    """Refuses a base that gives no geometric series of frequencies."""
    check_number("base", base)
