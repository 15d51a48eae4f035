"""Seasons: waves that turn a whole number of times in a day, a week, a year or any other period."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from typing import Any

from ..phases import DIGITS, TURN
from .series import Series
from .spectrum import Place


@dataclass(frozen=True)
class Seasons(Series):
    """Exact seasons: for each period pairs that turn 1, 2, ..., ``harmonics`` times in it, so that it has no seam.

    There must be as many pairs as waves, ``rotary_dim = 2 * periods * harmonics``, unless a series is named for the
    ``rest`` of them.

    Args:
        periods: Periods in coordinate units, one or several: 86400, 604800 and 31556952 for a day, a week and a year of
            the Gregorian calendar (365.2425 days) in seconds. Pairs are in the order of periods and harmonics.
        harmonics: Waves of each period, or a number for each.
        rest: The frequencies of the pairs that are left over, such as `Periods` or `Geometric`.

    Raises:
        ValueError: If a period or a number of harmonics is not positive, there are not as many harmonics as periods,
            or there are not as many pairs as waves.
        TypeError: If periods or harmonics are not numbers.

    Example:
        >>> days = RoPE(head_dim=64, rotary_dim=12, spectrum=Axial(series=Seasons((86400, 604800), harmonics=3)))
        >>> now = torch.tensor([[1_700_000_000]])
        >>> torch.equal(days(now).cos, days(now + 52 * 604800).cos)
        True
    """

    periods: float | Decimal | Sequence[float | Decimal]
    harmonics: int | Sequence[int] = 1
    rest: Series | None = None

    def __post_init__(self):
        (periods,) = periods_of_axes(self.periods, 1)
        object.__setattr__(self, "periods", periods)
        if isinstance(self.harmonics, Sequence):
            object.__setattr__(self, "harmonics", tuple(self.harmonics))
        self.waves()
        if not isinstance(self.rest, Series | None):
            raise TypeError(f"rest must be a series such as Periods or Geometric, got {self.rest!r}")

    def waves(self) -> list[Decimal]:
        """The frequencies of all waves in radians per coordinate unit."""
        (waves,) = season_waves(periods_of_axes(self.periods, 1), self.harmonics)
        return waves

    def pairs(self, num_pairs: int) -> list[tuple[Decimal, Place | None]]:
        waves = self.waves()
        left = num_pairs - len(waves)
        if left < 0 or (left and self.rest is None):
            hint = f"; name a series for the rest of them, or turn {2 * len(waves)} channels" if left > 0 else ""
            raise ValueError(f"Seasons has {len(waves)} waves, but there are {num_pairs} pairs{hint}")
        return [(wave, None) for wave in waves] + (self.rest.pairs(left) if self.rest and left else [])


def periods_of_axes(periods: Any, axes: int) -> tuple[tuple[float | Decimal, ...], ...]:
    """The periods of each axis: from one number for all axes, a sequence where there is one axis, or one for each."""
    if not isinstance(periods, Sequence) or isinstance(periods, str):
        periods = [(periods,)] * axes
    nested = [isinstance(each, Sequence) and not isinstance(each, str) for each in periods]
    rows: list[Any] = list(periods) if any(nested) else [periods]
    if (any(nested) and not all(nested)) or len(rows) != axes:
        raise ValueError(f"periods must be a sequence for each of {axes} axes, got {periods}")
    found = tuple(map(tuple, rows))
    for period in [period for row in found for period in row]:
        if isinstance(period, bool) or not isinstance(period, int | float | Decimal):
            raise TypeError(f"periods must be numbers, got {period!r}")
        if not 0 < period < math.inf:
            raise ValueError(f"periods must be positive and finite, got {period}")
    if not any(found):
        raise ValueError(f"periods must not be empty, got {periods}")
    return found


def season_waves(periods: Sequence[Sequence], harmonics: int | Sequence[int]) -> list[list[Decimal]]:
    """Radians per unit of the waves of each axis, in the order of its periods and their harmonics.

    ``harmonics`` is one number for all periods, or one for each of them over all axes.
    """
    total = sum(map(len, periods))
    if not isinstance(harmonics, int | Sequence) or isinstance(harmonics, str | bytes):
        raise TypeError(f"harmonics must be an integer or a sequence of them, got {harmonics!r}")
    counts = [harmonics] * total if isinstance(harmonics, int) else list(harmonics)
    if len(counts) != total:
        raise ValueError(f"harmonics must be one number or one for each of {total} periods, got {harmonics}")
    for count in counts:
        if isinstance(count, bool) or not isinstance(count, int):
            raise TypeError(f"harmonics must be an integer, got {count!r}")
        if count < 1:
            raise ValueError(f"harmonics must be positive, got {count}")
    number = iter(counts)
    with localcontext(prec=DIGITS):
        return [[TURN * k / Decimal(period) for period in row for k in range(1, next(number) + 1)] for row in periods]
