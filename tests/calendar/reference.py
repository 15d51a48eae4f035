"""What a calendar shows, by Python's datetime: the reference of these tests, good for the years 1 to 9999."""

import calendar
import warnings
from datetime import UTC, datetime, timedelta, tzinfo

import numpy as np

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of NumPy 2.5 that something without a unit should have one
    NOTHING = np.datetime64("NaT")

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
WHOLE = (
    "second_of_minute", "minute_of_hour", "hour_of_day", "day_of_week", "day_of_month", "day_of_year", "week_of_year",
    "month_of_year", "quarter_of_year",
)  # fmt: skip
SHARES = ("hour", "day", "week", "month", "quarter", "year")
FIELDS = (*WHOLE, *(f"fraction_of_{period}" for period in SHARES))


def seconds(*date: int) -> int:
    """Seconds from 1970 to a date and time in UTC."""
    return (datetime(*date, tzinfo=UTC) - EPOCH) // timedelta(seconds=1)


def wall(second: int, zone: tzinfo = UTC) -> datetime:
    """What the clock of a zone shows."""
    return (EPOCH + timedelta(seconds=second)).astimezone(zone)


def whole(time: datetime) -> list[tuple[int, int]]:
    """Number of each whole field, from 0, and how many there are in this period."""
    year, month = time.year, time.month
    iso_year, week, weekday = time.isocalendar()
    return [
        (time.second, 60),
        (time.minute, 60),
        (time.hour, 24),
        (weekday - 1, 7),
        (time.day - 1, calendar.monthrange(year, month)[1]),
        (time.timetuple().tm_yday - 1, 365 + calendar.isleap(year)),
        (week - 1, datetime(iso_year, 12, 28).isocalendar().week),
        (month - 1, 12),
        ((month - 1) // 3, 4),
    ]


def numbers(time: datetime) -> list[int]:
    return [number for number, _ in whole(time)]


def turns(time: datetime, ticks: int = 0, per_second: int = 1) -> list[float]:
    """Every field as a turn, each rounded once; ``ticks`` have gone by since the second began."""
    time = time.replace(tzinfo=None)
    day = time.replace(hour=0, minute=0, second=0)
    start = time.replace(month=time.month - (time.month - 1) % 3, day=1, hour=0, minute=0, second=0)
    lengths = [calendar.monthrange(time.year, start.month + i)[1] for i in range(3)]
    periods = {
        "hour": (time.replace(minute=0, second=0), 3600),
        "day": (day, 86_400),
        "week": (day - timedelta(days=time.weekday()), 7 * 86_400),
        "month": (day.replace(day=1), 86_400 * calendar.monthrange(time.year, time.month)[1]),
        "quarter": (start, 86_400 * sum(lengths)),
        "year": (day.replace(month=1, day=1), 86_400 * (365 + calendar.isleap(time.year))),
    }
    shares = []
    for period in SHARES:
        begin, length = periods[period]
        elapsed = (time - begin) // timedelta(seconds=1) * per_second + ticks
        shares.append(min(elapsed / (length * per_second), 1 - 2**-53))
    return [number / length for number, length in whole(time)] + shares
