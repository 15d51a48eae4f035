"""Calendar fields, elapsed time and frequencies against pandas, fractions of periods against statsmodels."""

import numpy as np
import pytest
import torch

from mmpos import Seasonal
from mmpos.calendar import calendar_coords, calendar_fields, calendar_ramps, event_coords, parse_frequency, time_coords

pd = pytest.importorskip("pandas", reason="pandas is not installed")

WHOLE = [
    "second_of_minute", "minute_of_hour", "hour_of_day", "day_of_week", "day_of_month", "day_of_year", "week_of_year",
    "month_of_year", "quarter_of_year",
]  # fmt: skip
EDGES = [
    "1600-01-01", "1600-02-29T23:59:59", "1600-03-01", "1700-02-28T23:59:59", "1700-03-01", "1899-12-31T23:59:59",
    "1969-12-31T23:59:59", "1970-01-01", "2000-02-29", "2000-12-31T23:59:59", "2020-12-31", "2021-01-03", "2021-01-04",
    "2024-02-29T12:30:15", "2024-12-30", "2100-02-28", "2100-03-01", "2400-02-29", "2400-12-31T23:59:59",
]  # fmt: skip


def random_index(number, unit="s", first="1600-01-01", last="2401-01-01"):
    """Random instants of these years, and those where calendars go wrong."""
    first, last = (np.datetime64(date, unit).astype(np.int64) for date in (first, last))
    ticks = np.random.default_rng(0).integers(first, last, number)
    edges = np.array(EDGES, dtype=f"datetime64[{unit}]").astype(np.int64)
    edges = edges[(edges >= first) & (edges < last)]
    return pd.DatetimeIndex(np.concatenate([ticks, edges]).view(f"datetime64[{unit}]"))


def fields_of(index):
    """What pandas' accessors say, counted from 0."""
    week = index.isocalendar().week.to_numpy().astype(np.int64)
    one = [index.day, index.day_of_year, week, index.month, index.quarter]
    zero = [index.second, index.minute, index.hour, index.day_of_week]
    return torch.from_numpy(np.stack([*zero, *(np.asarray(field) - 1 for field in one)], axis=-1).astype(np.int64))


@pytest.mark.parametrize("unit", ["s", "ms", "us"])
def test_fields_of_eight_centuries(unit):
    index = random_index(20_000, unit)
    assert index.dtype == f"datetime64[{unit}]"
    assert torch.equal(calendar_fields(index, WHOLE), fields_of(index))
    assert torch.equal(calendar_fields(torch.tensor(index.asi8), WHOLE, unit=unit), fields_of(index))


def test_fields_of_all_nanoseconds():
    index = random_index(20_000, "ns", "1677-09-21T00:12:44", "2262-04-11T23:47:16")
    ends = pd.DatetimeIndex([pd.Timestamp.min, pd.Timestamp.max])
    for times in (index, ends):
        assert torch.equal(calendar_fields(times, WHOLE), fields_of(times))


@pytest.mark.parametrize("name", ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"])
def test_fields_on_the_clock_of_a_zone(name):
    local = random_index(5000).tz_localize("UTC").tz_convert(name)
    assert torch.equal(calendar_fields(local, WHOLE, timezone=name), fields_of(local))
    assert torch.equal(calendar_fields(local, WHOLE), fields_of(local.tz_convert("UTC")))
    assert torch.equal(calendar_fields(local, WHOLE, timezone=local.tz), fields_of(local))


def test_lengths_of_periods():
    index = random_index(5000)
    coords = calendar_coords(index, ["day_of_month", "day_of_year", "fraction_of_month", "fraction_of_quarter"])
    length = np.asarray(index.days_in_month)
    assert coords[:, 0].tolist() == ((index.day - 1) / length).tolist()
    assert coords[:, 1].tolist() == (fields_of(index)[:, 5].numpy() / (365 + index.is_leap_year)).tolist()
    for column, unit in ((2, "M"), (3, "Q")):
        period = index.to_period(unit)
        begin, end = period.start_time.as_unit("s"), (period + 1).start_time.as_unit("s")
        assert coords[:, column].tolist() == ((index - begin) / (end - begin)).tolist()


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_elapsed_time(unit):
    index = random_index(2000, unit, "1740-01-01", "2250-01-01")
    origin = pd.Timestamp("2024-03-31T01:00")
    since = (index - origin) // pd.Timedelta(1, unit)
    assert torch.equal(time_coords(index, origin=origin, per=unit)[:, 0], torch.tensor(since.to_numpy()))
    hours = (index - origin) / pd.Timedelta(1, "h")
    ours = time_coords(index, origin=origin, per="h")[:, 0]
    torch.testing.assert_close(ours, torch.tensor(hours.to_numpy()), rtol=2**-51, atol=0)


def test_every_form_of_pandas():
    utc = pd.DatetimeIndex(["2024-02-29T12:30:15", "1969-07-20T20:17:40"]).as_unit("us")
    seconds = utc.as_unit("s").asi8 / 60
    berlin = utc.tz_localize("UTC").tz_convert("Europe/Berlin")
    forms = [utc, berlin, utc.array, berlin.array, pd.Series(utc), pd.Series(berlin), list(utc), list(berlin)]
    forms += [utc.as_unit("ns"), pd.Series(list(berlin), dtype=object), berlin.to_pydatetime()]
    forms += [[berlin[0], berlin[1].tz_convert("Asia/Tokyo")]]
    for times in forms:
        assert time_coords(times, per="min")[:, 0].tolist() == seconds.tolist()
    for times in ([utc[0], pd.NaT], pd.Series([utc[0], pd.NaT]), pd.Series([berlin[0], pd.NaT]), [berlin[0], pd.NaT]):
        minutes = time_coords(times, per="min")[:, 0]
        assert minutes[0] == seconds[0]
        assert minutes[1].isnan()
    assert time_coords(pd.Series([60, 90]), per="min")[:, 0].tolist() == [1, 1.5]
    assert time_coords(pd.Series([60, None], dtype="Int64"), per="min")[:, 0].isnan().tolist() == [False, True]
    assert time_coords(list(utc + pd.Timedelta(1, "ns")), origin=utc[0], per="ns")[0, 0] == 1
    assert time_coords(utc, origin=berlin[1], per="us")[1, 0] == 0
    with pytest.raises(ValueError, match="mix zones: 1 of 2 have one"):
        time_coords([utc[0], berlin[0]])
    with pytest.raises(TypeError, match="got Period"):
        time_coords(utc.to_period("D"))
    with pytest.raises(TypeError, match="got DataFrame"):
        time_coords(pd.DataFrame({"time": utc}))


@pytest.mark.parametrize(
    "text",
    [
        "s",
        "10s",
        "min",
        "15min",
        "h",
        "3h",
        "36h",
        "D",
        "2D",
        "W-SUN",
        "B",
        "MS",
        "ME",
        "2MS",
        "QS-OCT",
        "QE",
        "YS",
        "YE",
        "200us",
    ],
)
def test_the_frequency_of_an_index(text):
    index = pd.date_range("2023-11-05", periods=40, freq=text)
    assert parse_frequency(index) == parse_frequency(text)
    assert parse_frequency(index.freq) == parse_frequency(text)
    assert parse_frequency(pd.Series(index)) == parse_frequency(text)


@pytest.mark.parametrize("text", ["bh", "2bh", "cbh", "SME", "SMS", "BMS", "BME", "BQE", "BYS", "C"])
def test_offsets_by_name(text):
    assert parse_frequency(pd.tseries.frequencies.to_offset(text)) == parse_frequency(text)


def test_a_timedelta():
    assert parse_frequency(pd.Timedelta("15min")) == parse_frequency("15T")
    assert parse_frequency(pd.Timedelta(1, "ns")) == parse_frequency("ns")


@pytest.mark.parametrize(
    "freq, period", [("h", "hour"), ("D", "day"), ("W", "week"), ("M", "month"), ("Q", "quarter"), ("Y", "year")]
)
def test_fractions_of_statsmodels(freq, period):
    deterministic = pytest.importorskip("statsmodels.tsa.deterministic", reason="statsmodels is not installed")
    index = random_index(2000, "s", "1700-01-01", "2250-01-01").sort_values()
    terms = deterministic.CalendarFourier({"M": "ME", "Q": "QE", "Y": "YE"}.get(freq, freq), order=2).in_sample(index)
    share = calendar_coords(index, [f"fraction_of_{period}"])
    seasonal = Seasonal(harmonics=2)(share).double()
    torch.testing.assert_close(seasonal, torch.tensor(terms.to_numpy()), rtol=0, atol=1e-7)
    angles = 2 * torch.pi * share * torch.tensor([1.0, 2.0])
    ours = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)
    torch.testing.assert_close(ours, torch.tensor(terms.to_numpy()), rtol=0, atol=1e-14)


def test_ramps_of_gluonts():
    """Its formulas, on the accessors of pandas that it reads: ``value / (num - 1) - 0.5``, from 0 on."""
    for index in (random_index(20_000), random_index(2000, "us").tz_localize("UTC").tz_convert("Asia/Kathmandu")):
        features = {
            "second_of_minute": index.second.values / 59.0 - 0.5,
            "minute_of_hour": index.minute.values / 59.0 - 0.5,
            "hour_of_day": index.hour.values / 23.0 - 0.5,
            "day_of_week": index.day_of_week.values / 6.0 - 0.5,
            "day_of_month": (index.day.values - 1) / 30.0 - 0.5,
            "day_of_year": (index.day_of_year.values - 1) / 365.0 - 0.5,
            "month_of_year": (index.month.values - 1) / 11.0 - 0.5,
            "week_of_year": (index.isocalendar().week.to_numpy().astype(np.int64) - 1) / 52.0 - 0.5,
        }
        ours = calendar_ramps(index, features, timezone=index.tz)
        assert torch.equal(ours, torch.tensor(np.stack(list(features.values()), axis=-1)))


def test_days_to_the_nearest_holiday():
    """GluonTS compares dates one by one; here of a whole year, with ties, by pandas' arithmetic."""
    days = pd.date_range("2023-07-01", "2024-12-31", freq="D").as_unit("s")
    holidays = pd.DatetimeIndex(["2024-05-01", "2023-12-25", "2024-12-25", "2024-01-01", "2024-01-05"])
    steps = (days.values[:, None] - holidays.sort_values().values[None]) // np.timedelta64(1, "D")
    nearest = np.abs(steps).argmin(axis=1)  # the first of two, which is the earlier one
    want = steps[np.arange(len(days)), nearest].astype(float)
    for zone in (None, "Europe/Berlin"):
        local = days if zone is None else days.tz_localize(zone)
        assert event_coords(local, {"holiday": holidays}, timezone=zone)[:, 0].tolist() == want.tolist()
