"""The frequency of a series, from a text or from its timestamps.

pandas renamed its abbreviations in 2.2 and removed the old ones in 3.0; here old and new mean the same.
"""

import re
from datetime import timedelta
from fractions import Fraction
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from .civil import Clock, date_of, days_before, read_clock, weekday_of
from .names import unknown
from .steps import DAY, MONTHS, YEAR, Frequency, calendar_step, fixed_step
from .timestamps import NANOSECONDS, Instants, count_missing, is_pandas, read_timestamps

SPELLINGS = {
    "ns": "ns N nano nanosecond nanoseconds",
    "us": "us U micro microsecond microseconds",
    "ms": "ms L milli millisecond milliseconds",
    "s": "s S sec secs second seconds secondly",
    "min": "min T mins minute minutes minutely",
    "h": "h H hr hrs hour hours hourly",
    "d": "D day days daily",
    "w": "W week weeks weekly",
    "business hour": "bh BH cbh CBH",
    "business day": "B C",
    "half month": "SME SMS SM",
    "month": "ME MS M BME BMS BM CBME CBMS CBM WOM LWOM month months monthly",
    "quarter": "QE QS Q BQE BQS BQ quarter quarters quarterly",
    "half year": "HYE HYS",
    "year": "YE YS Y A AS BYE BYS BY BA BAS year years yearly annual",
}
UNIT_OF = {spelling: unit for unit, spellings in SPELLINGS.items() for spelling in spellings.split()}
ANCHORED = ("w", "half month", *MONTHS)  # units that a day or month may follow, as in W-SUN and QS-OCT
TERM = re.compile(r"\s*([+-]?\d*\.?\d*)\s*([A-Za-z]+)(-[A-Za-z0-9-]+)?\s*")


def parse_frequency(frequency: Any, *, unit: str = "s") -> Frequency:
    """The frequency that a text says or that timestamps have.

    Args:
        frequency: Text in the spelling of any pandas, such as "15min" or "15T", "h" or "H", "MS", "W-SUN" or "1h30min",
            or in words ("3 hours"); a pandas offset; a timedelta; or at least three regular, ascending timestamps
            ``(n,)`` of any type that `time_coords` takes.
        unit: What timestamps that are bare numbers count: "s", "ms", "us" or "ns".

    Raises:
        ValueError: If the text is unknown or ambiguous, or the timestamps are unsorted, repeated, missing, irregular or
            too few; the message says how many.
        TypeError: If it is none of these.

    Example:
        >>> parse_frequency("H") == parse_frequency(torch.arange(5) * 3600)
        True
        >>> list(parse_frequency("1h30min").fields)[:3]
        ['minute_of_hour', 'hour_of_day', 'day_of_week']

    Reference:
        Abbreviations: https://pandas.pydata.org/docs/user_guide/timeseries.html#offset-aliases
    """
    if is_pandas(frequency):
        frequency = getattr(frequency, "freqstr", frequency) if _is_scalar(frequency) else frequency
    if isinstance(frequency, str):
        return _parse(frequency)
    if type(frequency).__name__ in ("timedelta", "Timedelta", "timedelta64"):
        return fixed_step(_nanoseconds(frequency), repr(frequency))
    if frequency is None or isinstance(frequency, int | float):
        raise TypeError(f"frequency must be text such as '15min', or timestamps, got {frequency!r}")
    return _infer(read_timestamps(frequency, unit))


def _parse(text: str) -> Frequency:
    steps, end = [], 0
    while match := TERM.match(text, end):
        number, name, anchor = match.groups()
        steps.append((_number(number, text), _unit(name, anchor, text)))
        end = match.end()
    if not steps or end < len(text):
        raise ValueError(
            f"unknown frequency {text!r}; it is a number and a unit, such as '15min', 'h', 'W-SUN' or 'MS'"
        )
    if all(unit in NANOSECONDS for _, unit in steps):
        return fixed_step(sum(number * NANOSECONDS[unit] for number, unit in steps), text)
    count, unit = steps[0]
    if len(steps) > 1 or count.denominator > 1 or count < 1:
        raise ValueError(f"frequency must be a positive whole number of one unit of the calendar, got {text!r}")
    return calendar_step(int(count), unit)


def _number(text: str, whole: str) -> Fraction:
    try:
        return Fraction(text if text.strip("+-") else f"{text}1")
    except ValueError as error:
        raise ValueError(f"unknown frequency {whole!r}: {text!r} is no number") from error


def _unit(name: str, anchor: str | None, text: str) -> str:
    if name == "m":
        raise ValueError(f"ambiguous frequency {text!r}: 'min' is minutes, 'ME' is the end of months, 'MS' their start")
    same = {unit for spelling, unit in UNIT_OF.items() if spelling.lower() == name.lower()}
    unit = UNIT_OF.get(name) or (same.pop() if len(same) == 1 else None)
    if unit is None and same:
        raise ValueError(f"ambiguous frequency {text!r}: 'ms' is milliseconds, 'MS' is the start of months")
    if unit is None:
        known = "ns, us, ms, s, min, h, D, W, bh, B, SME, SMS, ME, MS, QE, QS, YE, YS and their older spellings"
        raise ValueError(unknown("frequency", name, UNIT_OF, known))
    if anchor and unit not in ANCHORED:
        raise ValueError(f"unknown frequency {text!r}: {name!r} takes no {anchor!r}")
    return unit


def _infer(instants: Instants) -> Frequency:
    """The common step of ascending timestamps."""
    ticks = instants.ticks
    if ticks.ndim != 1 or len(ticks) < 3:
        raise ValueError(
            f"timestamps must be one row of at least 3 to have a frequency, got shape {tuple(ticks.shape)}"
        )
    missing = count_missing(instants)
    if missing:
        raise ValueError(f"timestamps has {missing} missing of {len(ticks)}; leave them out")
    gaps, size = ticks.diff(), NANOSECONDS[instants.unit]
    if instants.part is not None:
        gaps, size = gaps * size + (instants.part.diff() * size).round().to(torch.int64), 1
    backward, repeated = int((gaps < 0).sum()), int((gaps == 0).sum())
    if backward or repeated:
        raise ValueError(
            f"timestamps must ascend, but {backward} of {len(ticks)} lie before the one in front of them and "
            f"{repeated} repeat it; sort them and leave repeated ones out"
        )
    months = _months(instants, gaps.double() * size)
    if months:
        return calendar_step(months, "month")
    steps, counts = gaps.unique(return_counts=True)
    if len(steps) == 1:
        return fixed_step(int(steps) * size, "theirs")
    if _are_business_days(instants, gaps.double() * size):
        return calendar_step(1, "business day")
    common = int(steps[counts.argmax()]) * size
    raise ValueError(
        f"timestamps have no regular step: {len(gaps) - int(counts.max())} of {len(gaps)} gaps differ from the most "
        f"common one, {common / NANOSECONDS['s']:.12g} s; fill the gaps, or give the frequency as text"
    )


def _clock(instants: Instants) -> Clock | None:
    """The days of instants; None if they lie at several times of the day."""
    clock = read_clock(instants.ticks, instants.part, instants.per_second)
    parts = [clock.second] if clock.ticks is None else [clock.second, clock.ticks]
    return clock if all((part == part[0]).all() for part in parts) else None


def _months(instants: Instants, gaps: Float[Tensor, " gaps"]) -> int:
    """Months in a step between the same days, or the last days, of months; 0 if it is none."""
    clock = _clock(instants) if gaps.min() >= 28 * DAY else None
    if clock is None:
        return 0
    date = date_of(clock.day)
    number = (gaps / (YEAR / 12)).round()
    day = date.day_of_year - days_before(date.month, date.leap)
    last = days_before(date.month + 1, date.leap) - date.day_of_year == 1
    same = (day == day[0]).all() or last.all()
    return int(number[0]) if same and (number == number[0]).all() else 0


def _are_business_days(instants: Instants, gaps: Float[Tensor, " gaps"]) -> bool:
    clock = _clock(instants)
    if clock is None:
        return False
    weekday = weekday_of(clock.day)[:-1]
    return bool(((weekday < 5) & (gaps == torch.where(weekday == 4, 3 * DAY, DAY))).all())


def _is_scalar(frequency: Any) -> bool:
    """Whether a pandas object is an offset or a timedelta, not a column or an index."""
    return getattr(frequency, "dtype", None) is None


def _nanoseconds(step: Any) -> int:
    import numpy as np

    if isinstance(step, np.timedelta64):
        return int(step.astype("timedelta64[ns]").astype(np.int64))
    if is_pandas(step):
        return int(step.as_unit("ns").value)
    return step // timedelta(microseconds=1) * 1000
