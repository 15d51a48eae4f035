"""Regular series: their frequency, whether one fits, and the instants that it leads to next."""

from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from ..calendar import Frequency, parse_frequency
from ..calendar.steps import MONTHS
from ..calendar.timestamps import NANOSECONDS
from .instants import from_wall, show_timestamps, to_wall


def find_frequency(times: Int64[Tensor, " n"], unit: str, timezone: str | None = None) -> Frequency | None:
    """The frequency of instants that are regular in physical time, or else on the clock of the zone; None of others."""
    for ticks in (times, to_wall(times, timezone, unit)):
        try:
            return parse_frequency(ticks, unit=unit)
        except ValueError:
            continue
    return None


def check_frequency(times: Int64[Tensor, " n"], frequency: Frequency, unit: str, timezone: str | None = None) -> None:
    """Refuses a frequency whose steps do not lead to all instants; it may lead to others between them, as in gaps.

    Raises:
        ValueError: If one lies between two steps from the first.
    """
    local = _is_local(frequency)
    instants = _datetimes(to_wall(times, timezone, unit) if local else times, unit)
    wrong = _after(instants, instants[0], _count(instants, frequency), frequency) != instants
    if wrong.any():
        row = int(wrong.argmax())
        texts = show_timestamps(times[[0, max(row - 1, 0), row]], unit, timezone)
        raise ValueError(
            f"frequency ({frequency.count} {frequency.unit}) contradicts {int(wrong.sum())} of {len(times)} "
            f"timestamps: its steps from {texts[0]} do not lead to {texts[2]}, which follows {texts[1]}"
        )


def continue_times(
    times: Int64[Tensor, " n"], frequency: Frequency, count: int, unit: str, timezone: str | None = None
) -> Int64[Tensor, " count"]:
    """The instants that follow: physical time for steps of hours and less, the clock of the zone for days and more.

    Months have their true lengths. If all instants are last days of months, so are those that follow; else they have
    the day of the month that is the largest among them, or the last where a month is shorter.

    Example:
        >>> ends = torch.tensor([1703980800, 1706659200])  # 2023-12-31 and 2024-01-31
        >>> show_timestamps(continue_times(ends, parse_frequency("ME"), 2, "s"), "s")
        ['2024-02-29 00:00:00', '2024-03-31 00:00:00']
    """
    local = _is_local(frequency)
    instants = _datetimes(to_wall(times, timezone, unit) if local else times, unit)
    later = torch.from_numpy(_after(instants, instants[-1], np.arange(1, count + 1), frequency).view(np.int64))
    return from_wall(later, timezone, unit)[0] if local and timezone is not None else later


def _is_local(frequency: Frequency) -> bool:
    """Whether steps are equal on the clock on the wall, not in physical time."""
    return NANOSECONDS.get(frequency.unit, NANOSECONDS["d"]) >= NANOSECONDS["d"]


def _datetimes(ticks: Int64[Tensor, " n"], unit: str) -> Any:
    return ticks.numpy().view(f"datetime64[{unit}]")


def _count(instants: Any, frequency: Frequency) -> Any:
    """Whole steps from the first instant to each, not more than there are."""
    if frequency.unit in NANOSECONDS:
        return (instants - instants[0]) // _step(instants, frequency)
    if frequency.unit == "business day":
        days = instants.astype("datetime64[D]")
        return np.busday_count(days[0], days) // frequency.count
    months = instants.astype("datetime64[M]").astype(np.int64)
    return (months - months[0]) // _months(frequency)


def _after(instants: Any, start: Any, numbers: Any, frequency: Frequency) -> Any:
    """So many steps after a start, which is one of the instants."""
    if frequency.unit in NANOSECONDS:
        return start + numbers * _step(instants, frequency)
    days = instants.astype("datetime64[D]")
    day = start.astype("datetime64[D]")
    if frequency.unit == "business day":
        return np.busday_offset(day, numbers * frequency.count, roll="backward") + (start - day)
    number, length = _day_of_month(days)
    month = day.astype("datetime64[M]") + numbers * _months(frequency)
    _, last = _day_of_month(month.astype("datetime64[D]"))
    number = last if (number == length).all() else np.minimum(number.max(), last)
    return month.astype("datetime64[D]") + (number - 1) + (start - day)


def _day_of_month(days: Any) -> tuple[Any, Any]:
    """Days of the month, from 1, and how many days their months have."""
    months = days.astype("datetime64[M]")
    first = months.astype("datetime64[D]")
    following = (months + np.timedelta64(1, "M")).astype("datetime64[D]")
    return (days - first).astype(np.int64) + 1, (following - first).astype(np.int64)


def _months(frequency: Frequency) -> int:
    if frequency.unit not in MONTHS:
        raise ValueError(f"frequency in {frequency.unit}s cannot be continued; leave it out, or give one in days")
    return frequency.count * MONTHS[frequency.unit]


def _step(instants: Any, frequency: Frequency) -> Any:
    """The step in the unit of the instants."""
    unit, _ = np.datetime_data(instants.dtype)
    step, rest = divmod(frequency.count * NANOSECONDS[frequency.unit], NANOSECONDS[unit])
    if rest:
        raise ValueError(f"frequency ({frequency.count} {frequency.unit}) must be whole {unit}, as the timestamps are")
    return np.timedelta64(step, unit)
