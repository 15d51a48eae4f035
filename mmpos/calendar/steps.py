"""The step of a regular series: the calendar fields that vary in it, and how many steps a season takes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple

from .timestamps import NANOSECONDS

MONTHS = {"month": 1, "quarter": 3, "half year": 6, "year": 12}


class Measure(NamedTuple):
    """How steps of one kind divide the calendar, in units of that kind.

    Args:
        fields: For each calendar field, the length of what it counts and that of its period.
        seasons: Lengths of seasons.
    """

    fields: dict[str, tuple[int, int]]
    seasons: dict[str, float]


MINUTE, HOUR, DAY, WEEK = (NANOSECONDS[unit] for unit in ("min", "h", "d", "w"))
YEAR = 365.25 * DAY
CLOCK = Measure(
    {
        "second_of_minute": (NANOSECONDS["s"], MINUTE),
        "minute_of_hour": (MINUTE, HOUR),
        "hour_of_day": (HOUR, DAY),
        "day_of_week": (DAY, WEEK),
    },
    {"minute": MINUTE, "hour": HOUR, "day": DAY, "week": WEEK, "month": YEAR / 12, "year": YEAR},
)
# The seasons of fixed steps counted in this unit.
SEASONS = {
    **dict.fromkeys(("ns", "us", "ms", "s"), ("minute", "hour", "day", "week", "year")),
    **dict.fromkeys(("min", "h"), ("day", "week", "year")),
    "d": ("week", "month", "year"),
    "w": ("year",),
}
BUSINESS = {
    "business hour": Measure(
        {"hour_of_day": (1, 8), "day_of_week": (8, 40)}, {"day": 8, "week": 40, "year": 40 * YEAR / WEEK}
    ),
    "business day": Measure(
        {"day_of_week": (1, 5)}, {"week": 5, "month": 5 * YEAR / WEEK / 12, "year": 5 * YEAR / WEEK}
    ),
}
# These differ in length, and steps of any fixed length meet all of them.
DATES = {"day_of_month": 31, "day_of_year": 366, "week_of_year": 53, "month_of_year": 12, "quarter_of_year": 4}
HALF_MONTHS = Measure({"day_of_month": (1, 2), "month_of_year": (2, 24), "quarter_of_year": (6, 24)}, {"year": 24})
WHOLE_MONTHS = Measure({"month_of_year": (1, 12), "quarter_of_year": (3, 12)}, {"year": 12})


@dataclass(frozen=True)
class Frequency:
    """The step of a regular series.

    Args:
        count: Units in a step.
        unit: The longest unit of which a step is a whole number: "ns", "us", "ms", "s", "min", "h", "d", "w", "month",
            "quarter" or "year"; or "half month", "business day" (Monday to Friday) or "business hour" (eight in each).
        fields: The calendar fields that take more than one value in such data, with how many they take at most: a step
            of 15 minutes has 4 minutes of the hour and no seconds. Of months there is no field finer than the step's
            unit, which would say the same.
        periods: Steps that a season takes, by its name; a year has 365.25 days. Seasons of less than two steps are left
            out.

    Example:
        >>> parse_frequency("15min").periods
        {'day': 96.0, 'week': 672.0, 'year': 35064.0}
    """

    count: int
    unit: str
    fields: dict[str, int] = field(hash=False)
    periods: dict[str, float] = field(hash=False)

    @property
    def seconds(self) -> float | None:
        """Length of a step; None where steps differ, as months do."""
        return self.count * NANOSECONDS[self.unit] / NANOSECONDS["s"] if self.unit in NANOSECONDS else None


def fixed_step(nanoseconds: Fraction | int, text: str) -> Frequency:
    """A step of a fixed length, in the longest unit that divides it."""
    step = Fraction(nanoseconds)
    if step <= 0 or step.denominator > 1:
        raise ValueError(f"frequency must be a positive whole number of nanoseconds, got {text}")
    step = int(step)
    unit = max((unit for unit in SEASONS if step % NANOSECONDS[unit] == 0), key=NANOSECONDS.__getitem__)
    measure = CLOCK._replace(seasons={name: CLOCK.seasons[name] for name in SEASONS[unit]})
    return _measured(step // NANOSECONDS[unit], unit, step, measure, DATES)


def calendar_step(count: int, unit: str) -> Frequency:
    """A step whose length varies."""
    if unit in BUSINESS:
        return _measured(count, unit, count, BUSINESS[unit], DATES)
    if unit == "half month" and count % 2:
        return _measured(count, unit, count, HALF_MONTHS)
    months = count // 2 if unit == "half month" else count * MONTHS[unit]
    unit = "year" if months % 12 == 0 else "quarter" if months % 3 == 0 else "month"
    coarser = {name: sizes for name, sizes in WHOLE_MONTHS.fields.items() if sizes[0] >= MONTHS[unit]}
    return _measured(months // MONTHS[unit], unit, months, WHOLE_MONTHS._replace(fields=coarser))


def _measured(count: int, unit: str, step: int, measure: Measure, dates: Mapping[str, int] | None = None) -> Frequency:
    """A field's values are the places in its period that steps lead to, or all that it has if steps are finer."""
    values = {name: period // max(math.gcd(step, period), size) for name, (size, period) in measure.fields.items()}
    fields = {name: number for name, number in {**values, **(dates or {})}.items() if number > 1}
    periods = {name: length / step for name, length in measure.seasons.items() if length >= 2 * step}
    return Frequency(count, unit, fields, periods)
