import datetime as dt

import numpy as np
import pytest
import torch

from mmpos.calendar import calendar_fields, parse_frequency
from tests.calendar.reference import seconds

DATES = {"day_of_month": 31, "day_of_year": 366, "week_of_year": 53, "month_of_year": 12, "quarter_of_year": 4}
DAYS = {"day_of_week": 7} | DATES
HOURS = {"hour_of_day": 24} | DAYS

# Text, count, unit, fields, steps of each season.
TABLE = [
    ("1h", 1, "h", HOURS, {"day": 24, "week": 168, "year": 8766}),
    ("15min", 15, "min", {"minute_of_hour": 4} | HOURS, {"day": 96, "week": 672, "year": 35_064}),
    ("30T", 30, "min", {"minute_of_hour": 2} | HOURS, {"day": 48, "week": 336, "year": 17_532}),
    ("min", 1, "min", {"minute_of_hour": 60} | HOURS, {"day": 1440, "week": 10_080, "year": 525_960}),
    ("3H", 3, "h", HOURS | {"hour_of_day": 8}, {"day": 8, "week": 56, "year": 2922}),
    ("7h", 7, "h", HOURS, {"day": 24 / 7, "week": 24, "year": 8766 / 7}),
    ("36h", 36, "h", HOURS | {"hour_of_day": 2}, {"week": 168 / 36, "year": 243.5}),
    ("D", 1, "d", DAYS, {"week": 7, "month": 30.4375, "year": 365.25}),
    ("24h", 1, "d", DAYS, {"week": 7, "month": 30.4375, "year": 365.25}),
    ("2D", 2, "d", DAYS, {"week": 3.5, "month": 15.21875, "year": 182.625}),
    ("W-SUN", 1, "w", DATES, {"year": 365.25 / 7}),
    ("7D", 1, "w", DATES, {"year": 365.25 / 7}),
    ("2W", 2, "w", DATES, {"year": 365.25 / 14}),
    ("B", 1, "business day", DAYS | {"day_of_week": 5}, {"week": 5, "month": 30.4375 * 5 / 7, "year": 365.25 * 5 / 7}),
    (
        "bh", 1, "business hour", HOURS | {"hour_of_day": 8, "day_of_week": 5},
        {"day": 8, "week": 40, "year": 365.25 * 40 / 7},
    ),
    ("MS", 1, "month", {"month_of_year": 12, "quarter_of_year": 4}, {"year": 12}),
    ("2ME", 2, "month", {"month_of_year": 6, "quarter_of_year": 4}, {"year": 6}),
    ("SME", 1, "half month", {"day_of_month": 2, "month_of_year": 12, "quarter_of_year": 4}, {"year": 24}),
    ("2SMS-15", 1, "month", {"month_of_year": 12, "quarter_of_year": 4}, {"year": 12}),
    ("QS-OCT", 1, "quarter", {"quarter_of_year": 4}, {"year": 4}),
    ("6M", 2, "quarter", {"quarter_of_year": 2}, {"year": 2}),
    ("HYE", 2, "quarter", {"quarter_of_year": 2}, {"year": 2}),
    ("YE", 1, "year", {}, {}),
    ("12MS", 1, "year", {}, {}),
    (
        "10s", 10, "s", {"second_of_minute": 6, "minute_of_hour": 60} | HOURS,
        {"minute": 6, "hour": 360, "day": 8640, "week": 60_480, "year": 3_155_760},
    ),
    (
        "200us", 200, "us", {"second_of_minute": 60, "minute_of_hour": 60} | HOURS,
        {"minute": 300_000, "hour": 18e6, "day": 432e6, "week": 3024e6, "year": 157_788e6},
    ),
]  # fmt: skip


@pytest.mark.parametrize("text, count, unit, fields, periods", TABLE, ids=[row[0] for row in TABLE])
def test_what_a_step_says(text, count, unit, fields, periods):
    frequency = parse_frequency(text)
    assert (frequency.count, frequency.unit) == (count, unit)
    assert frequency.fields == fields
    assert frequency.periods == pytest.approx(periods, rel=1e-15)
    hash(frequency)


@pytest.mark.parametrize(
    "text, seconds", [("15min", 900), ("W", 604_800), ("250L", 0.25), ("MS", None), ("B", None), ("bh", None)]
)
def test_seconds_where_they_are_fixed(text, seconds):
    assert parse_frequency(text).seconds == seconds


@pytest.mark.parametrize(
    "spellings",
    [
        ("h", "H", "1h", "1H", "60min", "60T", "3600s", "hour", "hourly", "1 hour", "Hour"),
        ("15min", "15T", "15t", "15 minutes", "900S", "900s", "0.25h", "15Min", "900000ms", "900000L"),
        ("s", "S", "sec", "seconds", "1000ms", "1e0s".replace("e0", "")),
        ("ms", "L", "l", "1000us", "1000U", "1000000N", "1000000ns"),
        ("D", "d", "24h", "day", "daily", "1440min", "1D"),
        ("W", "w", "W-SUN", "W-WED", "7D", "weekly", "168h"),
        ("B", "b", "C"),
        ("bh", "BH", "cbh", "CBH"),
        ("M", "ME", "MS", "BM", "BME", "BMS", "CBMS", "1ME", "WOM-3FRI", "monthly", "me"),
        ("Q", "q", "QE", "QS", "QE-DEC", "QS-OCT", "BQ", "BQE", "3M", "3MS", "quarterly"),
        ("A", "a", "Y", "YE", "YS", "A-DEC", "AS-JAN", "YS-APR", "BYE", "12M", "4Q", "2HYS", "annual"),
        ("1h30min", "1.5h", "90min", "90T", "1H30T", "5400s", "1 hour 30 minutes"),
        ("1D12h", "36h", "1.5D"),
    ],
    ids=lambda spellings: spellings[0],
)
def test_old_and_new_spellings_are_the_same(spellings):
    first = parse_frequency(spellings[0])
    assert all(parse_frequency(text) == first for text in spellings)


@pytest.mark.parametrize(
    "text, message",
    [
        ("fortnight", "unknown frequency 'fortnight'; known: ns, us, ms, s, min, h, D, W"),
        ("minuts", "unknown frequency 'minuts'; did you mean 'minutes'"),
        ("annualy", "did you mean 'annual'"),
        ("m", "ambiguous frequency 'm': 'min' is minutes, 'ME' is the end of months"),
        ("15m", "ambiguous frequency '15m'"),
        ("Ms", "ambiguous frequency 'Ms': 'ms' is milliseconds, 'MS' is the start of months"),
        ("", "unknown frequency ''; it is a number and a unit"),
        ("5", "unknown frequency '5'; it is a number and a unit"),
        ("h/2", "unknown frequency 'h/2'"),
        ("h-3", "unknown frequency 'h-3': 'h' takes no '-3'"),
        (".h", "unknown frequency '.h': '.' is no number"),
        ("0h", "must be a positive whole number of nanoseconds, got 0h"),
        ("-1D", "must be a positive whole number of nanoseconds, got -1D"),
        ("0.5ns", "must be a positive whole number of nanoseconds, got 0.5ns"),
        ("1.5MS", "must be a positive whole number of one unit of the calendar, got '1.5MS'"),
        ("0QE", "must be a positive whole number of one unit of the calendar, got '0QE'"),
        ("1MS2D", "must be a positive whole number of one unit of the calendar, got '1MS2D'"),
    ],
)
def test_text_that_says_nothing(text, message):
    with pytest.raises(ValueError, match=message.replace("'.'", r"'\.'")):
        parse_frequency(text)


@pytest.mark.parametrize("value", [None, 5, 0.5, True, {"h": 1}])
def test_what_is_neither_text_nor_timestamps(value):
    with pytest.raises(TypeError):
        parse_frequency(value)


def test_durations():
    for step in (dt.timedelta(hours=3), np.timedelta64(3, "h"), np.timedelta64(180, "m")):
        assert parse_frequency(step) == parse_frequency("3h")
    with pytest.raises(ValueError, match="must be a positive whole number of nanoseconds"):
        parse_frequency(dt.timedelta(0))


def dates(text: str, step: int, number: int = 40) -> list[dt.datetime]:
    """The starts, or ends, of every so many months."""
    first = dt.datetime.fromisoformat(text)
    months = [first.year * 12 + first.month - 1 + step * i for i in range(number)]
    if first.day < 29:
        return [first.replace(year=month // 12, month=month % 12 + 1) for month in months]
    ends = [dt.datetime((month + 1) // 12, (month + 1) % 12 + 1, 1) - dt.timedelta(days=1) for month in months]
    return [end.replace(hour=first.hour) for end in ends]


WEEKDAYS = [day for day in (dt.datetime(2024, 1, 3) + dt.timedelta(days=i) for i in range(60)) if day.weekday() < 5]


@pytest.mark.parametrize(
    "text, timestamps",
    [
        ("h", torch.arange(50) * 3600 + 17),
        ("15min", (torch.arange(50) * 900 - 9000).double()),
        ("D", torch.arange(3) * 86_400),
        ("W", torch.arange(40) * 604_800),
        ("90min", np.arange(9) * np.timedelta64(90, "m") + np.datetime64("2024-03-31")),
        ("MS", dates("2023-11-01", 1)),
        ("MS", dates("2023-07-01T06:00", 1, 3)),  # gaps of 31 days each, but the firsts of months
        ("ME", dates("2023-11-30", 1)),
        ("ME", dates("2023-11-30T12:00", 1)),
        ("2MS", dates("2023-01-15", 2)),
        ("QS", dates("2023-10-01", 3)),
        ("QE", dates("2023-12-31", 3)),
        ("YS", dates("2021-01-01", 12, 3)),  # gaps of 365 days each
        ("YE", dates("1999-12-31", 12)),
        ("B", WEEKDAYS),
        ("28D", torch.arange(30) * 28 * 86_400),
        ("365D", torch.arange(30) * 365 * 86_400),
    ],
)
def test_the_step_of_timestamps(text, timestamps):
    assert parse_frequency(timestamps) == parse_frequency(text)


def test_the_step_of_numbers_in_another_unit():
    assert parse_frequency(torch.arange(9) * 200, unit="us") == parse_frequency("200us")
    assert parse_frequency(torch.arange(9, dtype=torch.float64) * 0.0002) == parse_frequency("200us")
    assert parse_frequency(torch.arange(4) * 400 * 365 * 86_400) == parse_frequency("146000D")  # past int64 in ns


def test_fields_that_do_not_vary_are_not_there():
    # Whatever a frequency lists takes more than one value in its data, the number that it says; the rest is constant.
    finer = ["second_of_minute", "minute_of_hour", "hour_of_day", "day_of_week"]
    for text in ("10s", "90s", "15min", "45min", "90min", "h", "3h", "7h", "36h", "D", "2D", "W"):
        frequency = parse_frequency(text)
        assert frequency.seconds is not None
        step = int(frequency.seconds)
        times = torch.arange(0, max(14 * 86_400, 60 * step), step)
        found = {name: len(calendar_fields(times, [name]).unique()) for name in finer}
        listed = {name: number for name, number in frequency.fields.items() if name in finer}
        assert listed == {name: number for name, number in found.items() if number > 1}, text


@pytest.mark.parametrize(
    "timestamps, message",
    [
        ([3, 2, 2, 1, 5], "must ascend, but 2 of 5 lie before the one in front of them and 1 repeat it; sort them"),
        (
            [0, 60, 120, 240, 300, 420],
            "no regular step: 2 of 5 gaps differ from the most common one, 60 s; fill the gaps",
        ),
        ([0, None, 120], "has 1 missing of 3; leave them out"),
        ([0, 60], r"must be one row of at least 3 to have a frequency, got shape \(2,\)"),
        (torch.arange(12).reshape(2, 6), r"got shape \(2, 6\)"),
        (dates("2023-01-15", 1)[:5] + dates("2023-06-16", 1)[:2], "no regular step"),
        (dates("2023-01-15", 1)[:5] + dates("2023-07-15", 1)[:2], "no regular step"),
        ([*WEEKDAYS[:7], *WEEKDAYS[8:20]], "no regular step"),
        ([*dates("2023-01-01", 1)[:4], dt.datetime(2023, 5, 1, 1)], "no regular step"),
    ],
)
def test_timestamps_without_a_step(timestamps, message):
    with pytest.raises(ValueError, match=message):
        parse_frequency(timestamps)


def test_hours_of_the_clock_on_the_wall_have_no_step():
    # Over a change of the clock, local times without their zone skip an hour, or repeat one.
    begin = seconds(2024, 3, 30)
    utc = begin + 3600 * torch.arange(48)
    assert parse_frequency(utc) == parse_frequency("h")
    local = utc + torch.where(utc < seconds(2024, 3, 31, 1), 3600, 7200)
    with pytest.raises(ValueError, match="1 of 47 gaps differ from the most common one, 3600 s"):
        parse_frequency(local)
