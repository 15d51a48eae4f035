"""Calendar fields: where in its minute, hour, day, week, month, quarter or year an instant lies."""

from collections.abc import Callable, Iterable
from datetime import tzinfo
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .civil import CYCLE, Clock, Date, after, date_of, days_before, quotient, read_clock, remainder, weekday_of
from .names import check_name
from .timestamps import Instants, check_shape, count_missing, read_timestamps, values_at_hand, values_known
from .zones import Zone, offset_at, read_zone

BELOW_ONE = 1 - 2**-53  # the largest float64 below 1
BLOCK = 2**15  # timestamps that a processor works through in its cache, and torch in one thread


class Moment:
    """A reading of the clock and what follows from its day, worked out when first needed and once."""

    def __init__(self, clock: Clock):
        self.clock = clock
        self._date: Date | None = None
        self._weekday: Tensor | None = None

    @property
    def date(self) -> Date:
        """The date."""
        if self._date is None:
            self._date = date_of(self.clock.day)
        return self._date

    @property
    def weekday(self) -> Tensor:
        """The day of the week, Monday 0."""
        if self._weekday is None:
            self._weekday = weekday_of(self.clock.day)
        return self._weekday

    def days(self, period: str) -> tuple[Tensor, Tensor | int]:
        """Days since a week, month, quarter or year began, and days in it."""
        if period == "week":
            return self.weekday, 7
        day, month, leap = self.date
        if period == "year":
            return day, 365 + leap
        span = 3 if period == "quarter" else 1
        first = month if span == 1 else span * quotient(month, span)
        before = days_before(first, leap)
        return day - before, days_before(first + span, leap) - before

    def week(self) -> tuple[Tensor, Tensor]:
        """The ISO week from 0 and the weeks in its year: a week belongs to the year that has its Thursday."""
        day, _, leap = date_of(remainder(self.clock.day - self.weekday + 3, CYCLE))
        return quotient(day, 7), 52 + after(remainder(day, 7), leap + 1)

    def seconds(self, period: str) -> tuple[Tensor, Tensor | int]:
        """Whole seconds since a period began, and seconds in it."""
        second = self.clock.second.double()
        if period == "hour":
            return remainder(second, 3600), 3600
        if period == "day":
            return second, 86_400
        days, length = self.days(period)
        return days.double() * 86_400 + second, _double(length) * 86_400


# Number of the unit, from 0, and how many there are in this period.
WHOLE: dict[str, Callable[[Moment], tuple[Tensor, Tensor | int]]] = {
    "second_of_minute": lambda moment: (remainder(moment.clock.second, 60), 60),
    "minute_of_hour": lambda moment: (quotient(remainder(moment.clock.second, 3600), 60), 60),
    "hour_of_day": lambda moment: (quotient(moment.clock.second, 3600), 24),
    "day_of_week": lambda moment: moment.days("week"),
    "day_of_month": lambda moment: moment.days("month"),
    "day_of_year": lambda moment: moment.days("year"),
    "week_of_year": lambda moment: moment.week(),
    "month_of_year": lambda moment: (moment.date.month, 12),
    "quarter_of_year": lambda moment: (quotient(moment.date.month, 3), 4),
}
SHARES = {f"fraction_of_{period}": period for period in ("hour", "day", "week", "month", "quarter", "year")}


def calendar_fields(
    timestamps: Any,
    fields: Iterable[str],
    *,
    unit: str = "s",
    timezone: str | tzinfo | None = None,
    device: torch.device | str | None = None,
) -> Int[Tensor, "*batch n f"]:
    """Calendar fields as whole numbers from 0, for tables: Monday is 0, January is 0, the first of a month is 0.

    Args:
        timestamps: Instants ``(..., n)`` of any type that `time_coords` takes.
        fields: Any of "second_of_minute" (0 to 59), "minute_of_hour" (0 to 59), "hour_of_day" (0 to 23), "day_of_week"
            (0 to 6), "day_of_month" (0 to 30), "day_of_year" (0 to 365), "week_of_year" (ISO 8601, 0 to 52),
            "month_of_year" (0 to 11) and "quarter_of_year" (0 to 3).
        unit: What bare numbers count: "s", "ms", "us" or "ns".
        timezone: The clock on the wall to read: an IANA name such as "Europe/Berlin", an offset such as "+05:30", or
            a `datetime.tzinfo`. None reads the timestamps as they are written, or in UTC if they have a zone.
        device: Where the result lies; a tensor's own device unless given.

    Returns:
        ``(..., n, f)``. Where values cannot be looked at, as under compile, what is missing is -1.

    Raises:
        ValueError: If a field, unit or timezone is unknown, or timestamps are missing.
        TypeError: If timestamps are bool, half precision, text or durations.

    Example:
        >>> times = torch.tensor([1709164800, 1711846800])  # 2024-02-29 00:00 and 2024-03-31 01:00 UTC
        >>> calendar_fields(times, ["hour_of_day", "day_of_month", "month_of_year"], timezone="Europe/Berlin")
        tensor([[ 1, 28,  1],
                [ 3, 30,  2]])

    Reference:
        Weeks: ISO 8601:2004, sec. 3.2.2.
    """
    names = field_names(fields, WHOLE)
    instants = read_timestamps(timestamps, unit, device)
    check_shape(instants)
    if values_known(instants.ticks):
        missing = count_missing(instants)
        if missing:
            raise ValueError(
                f"timestamps has {missing} missing of {instants.ticks.numel()}, which have no date; leave them out, or "
                "use calendar_coords, which gives NaN"
            )
    return _columns(_number, names, instants, timezone, torch.int64)


def calendar_coords(
    timestamps: Any,
    fields: Iterable[str],
    *,
    unit: str = "s",
    timezone: str | tzinfo | None = None,
    device: torch.device | str | None = None,
) -> Float[Tensor, "*batch n f"]:
    """Calendar fields as turns from 0 to less than 1: December and January are neighbours on the circle.

    A field such as "day_of_month" is its whole number (see `calendar_fields`) over how many there are in this period:
    29 in a February with a leap day, 53 ISO weeks in 2020. A "fraction_of_hour", "fraction_of_day",
    "fraction_of_week", "fraction_of_month", "fraction_of_quarter" or "fraction_of_year" is the exact share of the
    period that has gone by on the calendar and the clock on the wall: noon is half of a day of 23 hours too, and both
    halves of an hour that is repeated have the same share. For physical time use `time_coords`.

    Args:
        timestamps: Instants ``(..., n)`` of any type that `time_coords` takes.
        fields: Names of fields, one for each axis of the result.
        unit: What bare numbers count: "s", "ms", "us" or "ns".
        timezone: The clock on the wall to read, as in `calendar_fields`.
        device: Where the result lies; a tensor's own device unless given.

    Returns:
        Turns in float64. What is missing (NaT, the least int64, or NaN) is NaN.

    Raises:
        ValueError: If a field, unit or timezone is unknown.
        TypeError: If timestamps are bool, half precision, text or durations.

    Example:
        >>> times = torch.tensor([1709164800, 1711846800])  # 2024-02-29 00:00 and 2024-03-31 01:00 UTC
        >>> calendar_coords(times, ["hour_of_day", "fraction_of_day", "month_of_year"])
        tensor([[0.0000, 0.0000, 0.0833],
                [0.0417, 0.0417, 0.1667]], dtype=torch.float64)
    """
    names = field_names(fields, [*WHOLE, *SHARES])
    instants = read_timestamps(timestamps, unit, device)
    check_shape(instants)
    return _columns(_turn, names, instants, timezone, torch.float64)


def field_names(fields: Iterable[str], known: Iterable[str]) -> list[str]:
    """The names of fields in a list, all of which are known."""
    if isinstance(fields, str):
        raise TypeError(f"fields must be a list of names, got {fields!r}; put it into a list")
    if not isinstance(fields, Iterable) or isinstance(fields, Tensor):
        raise TypeError(f"fields must be a list of names, got {fields!r}")
    names = list(fields)
    for name in names:
        if name in SHARES and name not in known:
            raise ValueError(f"fields has {name}: {name} is no whole number; calendar_coords has it")
        check_name("calendar field", name, known)
    return names


def _columns(
    column: Callable[[Moment, str], Tensor],
    names: list[str],
    instants: Instants,
    timezone: str | tzinfo | None,
    dtype: torch.dtype,
) -> Tensor:
    """The columns of these names beside each other."""
    ticks = instants.ticks
    zone = None if timezone is None else read_zone(timezone, instants.per_second)
    if not names:
        return torch.zeros(*ticks.shape, 0, dtype=dtype, device=ticks.device)
    if not values_at_hand(ticks) or ticks.numel() <= BLOCK:
        moment = _moment(instants, zone)
        return torch.stack([column(moment, name).to(dtype) for name in names], dim=-1)
    result = torch.empty(ticks.numel(), len(names), dtype=dtype)
    ticks, part = ticks.flatten(), None if instants.part is None else instants.part.flatten()
    for start in range(0, len(ticks), BLOCK):
        rows = slice(start, start + BLOCK)
        moment = _moment(instants._replace(ticks=ticks[rows], part=None if part is None else part[rows]), zone)
        for place, name in enumerate(names):
            result[rows, place] = column(moment, name)
    return result.view(*instants.ticks.shape, len(names))


def _moment(instants: Instants, zone: Zone | None) -> Moment:
    ticks, per_second = instants.ticks, instants.per_second
    offset = 0 if zone is None else offset_at(zone, ticks, per_second)
    return Moment(read_clock(ticks, instants.part, per_second, offset))


def _number(moment: Moment, name: str) -> Tensor:
    number, _ = WHOLE[name](moment)
    return number if values_known(number) else number.nan_to_num(-1)


def _turn(moment: Moment, name: str) -> Float[Tensor, "*batch n"]:
    if name in WHOLE:
        number, length = WHOLE[name](moment)
        return number.double().div_(_double(length))
    seconds, length = moment.seconds(SHARES[name])
    ticks, per_second = moment.clock.ticks, moment.clock.per_second
    if ticks is None:
        return seconds / length
    # In nanoseconds a year is past 2^53, and the last one would round to a whole turn.
    return ((seconds * per_second + ticks) / (length * per_second)).clamp(max=BELOW_ONE)


def _double(length: Tensor | int) -> Tensor | int:
    return length.double() if isinstance(length, Tensor) else length
