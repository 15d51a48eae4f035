"""Files of time series: timestamps, clocks, tables and frequencies."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
import torch

from mmpos.calendar import parse_frequency
from mmpos.data.instants import from_wall, in_unit, parse_timestamps, show_timestamps
from mmpos.data.regular import check_frequency, continue_times, find_frequency
from mmpos.data.series_files import read_series
from tests.data.tables import hourly, seconds, write_table


@pytest.fixture
def write(tmp_path):
    return lambda rows, name="table.csv", header="time,a,b": write_table(tmp_path / name, rows, header)


# Timestamps.


@pytest.mark.parametrize(
    "texts, ticks, unit, aware",
    [
        (["2016-07-01 02:03:04"], [datetime(2016, 7, 1, 2, 3, 4)], "s", False),
        (["2016-07-01T02:03", " 2016-07-01 "], [datetime(2016, 7, 1, 2, 3), datetime(2016, 7, 1)], "s", False),
        (["2016/7/1 2:03", "2016-07"], [datetime(2016, 7, 1, 2, 3), datetime(2016, 7, 1)], "s", False),
        (["1900-01-01T00:00:00Z"], [datetime(1900, 1, 1)], "s", True),
        (["2016-07-01 02:00+05:30"], [datetime(2016, 6, 30, 20, 30)], "s", True),
        (["2016-07-01 02:00-0800", "2016-07-01 10:00Z"], [datetime(2016, 7, 1, 10)] * 2, "s", True),
        (["2016-07-01 02:00:00.000000000"], [datetime(2016, 7, 1, 2)], "s", False),
        (["1969-12-31 23:59:59.25", "1970-01-01"], [-750, 0], "ms", False),
        (["1970-01-01 00:00:01.0000005"], [1_000_000_500], "ns", False),
        (["2016-02-29 00:00:00.123456 +01"], [1_456_700_400_123_456], "us", True),
    ],
)  # fmt: skip
def test_forms_of_timestamps(texts, ticks, unit, aware):
    ticks = [tick if isinstance(tick, int) else int(seconds(tick)) for tick in ticks]
    times, found, with_zone = parse_timestamps(texts)
    assert (times.tolist(), found, with_zone) == (ticks, unit, aware)


@pytest.mark.parametrize(
    "zone", ["Europe/Berlin", "America/St_Johns", "Australia/Lord_Howe", "Africa/Casablanca", "UTC"]
)
def test_a_clock_on_the_wall_is_read_as_zoneinfo_shows_it(write, zone):
    start = datetime(2022, 1, 1, tzinfo=UTC)
    instants = [start + timedelta(minutes=30 * row) for row in range(2 * 8760)]
    rows = [
        f"{instant.astimezone(ZoneInfo(zone)).replace(tzinfo=None)},1,{row}" for row, instant in enumerate(instants)
    ]
    series = read_series(write(rows), timezone=zone)
    assert series.times.tolist() == [int(instant.timestamp()) for instant in instants]
    assert find_frequency(series.times, "s", zone) == parse_frequency("30min")
    texts = show_timestamps(series.times, "s", zone, offsets=True)
    assert [datetime.fromisoformat(text) for text in texts] == instants
    assert torch.equal(parse_timestamps(texts)[0], series.times)


def test_a_repeated_hour_without_its_twin_is_the_first():
    wall, _, _ = parse_timestamps(["2024-10-27 01:30", "2024-10-27 02:30", "2024-10-27 03:30"])
    utc, skipped = from_wall(wall, "Europe/Berlin", "s")
    assert utc.diff().tolist() == [3600, 7200]
    assert not skipped.any()


def test_a_skipped_hour_is_refused_and_a_fixed_offset_reads_it(write):
    path = write(hourly(4, datetime(2024, 3, 31, 0)))
    with pytest.raises(ValueError, match=r"1 timestamps that the clock of Europe/Berlin skipped, the first in line 4: '2024-03-31 02:00:00'"):  # fmt: skip # noqa: E501
        read_series(path, timezone="Europe/Berlin")
    assert read_series(path, timezone="+01:00").times[0] == seconds(datetime(2024, 3, 30, 23))


def test_offsets_win_over_the_zone(write):
    path = write(["2024-07-01 12:00+02:00,1,2", "2024-07-01 12:00+00:00,3,4"])
    series = read_series(path, timezone="Asia/Tokyo")
    assert series.aware
    assert torch.equal(series.times, seconds(datetime(2024, 7, 1, 10), datetime(2024, 7, 1, 12)))


def test_units():
    times = torch.tensor([1_500, -2_000])
    assert in_unit(times, "ms", "us").tolist() == [1_500_000, -2_000_000]
    assert in_unit(times[1:], "ms", "s").tolist() == [-2]
    with pytest.raises(ValueError, match="must be whole s"):
        in_unit(times, "ms", "s")


# Files.


def test_separators_marks_and_columns_that_are_no_channels(write):
    rows = ["0;2020-01-01;1.5;NW;na", "1;2020-01-02;;SE;-2e3", "", "2;2020-01-03;NaN;;7"]
    path = write(rows, "table.csv.gz", header="\ufeff;day;a;wind; b ")
    series = read_series(path)
    assert (series.names, series.column) == (("a", "b"), "day")
    expected = torch.tensor([[1.5, torch.nan], [torch.nan, -2000], [torch.nan, 7]], dtype=torch.float64)
    torch.testing.assert_close(series.values, expected, equal_nan=True)
    assert read_series(path, channels=["b", "a"]).names == ("b", "a")


HEAD = ["2020-01-01 00:00,1,2", "2020-01-01 01:00,3,4"]


@pytest.mark.parametrize(
    "rows, arguments, message",
    [
        ([], {}, r"table.csv is empty: it has a line of names and no rows"),
        ([*HEAD, "2020-01-01 02:00,5"], {}, r"line 4 of .*table.csv has 2 cells, but there are 3 names"),
        ([*HEAD, HEAD[0], HEAD[0]], {}, r"1 of 4 timestamps of .* lie before the one in front of them, the first in line 4: '2020-01-01 00:00'; sort"),  # noqa: E501
        ([*HEAD, HEAD[1]], {}, r"1 of 3 timestamps of .* repeat the one in front of them, the first in line 4: .*duplicates='first'"),  # noqa: E501
        ([*HEAD, "2020-01-01 02:00Z,5,6"], {}, r"mixed: 1 of 3 timestamps have an offset.*'2020-01-01 00:00'"),
        ([*HEAD, "soon,5,6"], {}, r"column 'time' in line 4 of .*: 'soon' is no timestamp such as"),
        ([*HEAD, ",5,6"], {}, r"column 'time' in line 4 of .*: '' is no timestamp such as"),
        ([*HEAD, "2020-02-30,5,6"], {}, r"line 4 of .*: '2020-02-30' names no day or time that there is"),
        (["01/02/2020,5,6"], {}, r"no column of timestamps such as 2016-07-01 02:00:00; its columns are time, a, b"),
        (["2020-01-01,2020-01-02,6"], {}, r"2 columns of timestamps, 'time', 'a'; name one by timestamps="),
        (["2020-01-01,x,y"], {}, r"has no column of numbers; its columns are a, b"),
        (HEAD, {"timestamps": "tim"}, r"unknown timestamps column of table.csv: 'tim'; did you mean 'time'"),
        (HEAD, {"channels": ["a", "bb"]}, r"unknown column of table.csv: 'bb'"),
        (HEAD, {"channels": ["a", "a"]}, r"channels must be different names of columns, got \['a', 'a'\]"),
        (["2020-01-01,1,x"], {"channels": ["b"]}, r"column 'b' of .* has 'x' in line 2, which is no number"),
        (["2020-01-01,1,inf"], {"channels": ["b"]}, r"column 'b' of .* has 'inf' in line 2, which is not finite"),
        (["2020-01-01,1,"], {"channels": ["b"]}, r"column 'b' of .* has no number in it"),
        (["2500-01-01 00:00:00.000000001,1,2"], {}, r"timestamps must fit into int64 ns since 1970"),
    ],
)  # fmt: skip
def test_files_that_are_no_series(write, rows, arguments, message):
    with pytest.raises(ValueError, match=message):
        read_series(write(rows), **arguments)


def test_an_empty_file_a_repeated_name_and_no_text(tmp_path):
    path = tmp_path / "table.csv"
    for content, message in (
        (b"", r"is empty: it has no lines"),
        (b"time,a,a\n2020-01-01,1,2\n", r"several columns of the name 'a'"),
        (b"time,a\n2020-01-01,\xff\n", r"is no CSV file in UTF-8"),
    ):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            read_series(path)


def test_the_first_of_repeated_rows_is_kept_if_asked_for(write):
    series = read_series(write([HEAD[0], "2020-01-01 00:00,8,9", HEAD[1], HEAD[1]]), duplicates="first")
    assert series.values.tolist() == [[1, 2], [3, 4]]
    assert series.times.diff().tolist() == [3600]


# Frequencies.


@pytest.mark.parametrize(
    "name", ["15min", "h", "3h", "D", "W-SUN", "MS", "ME", "2ME", "QE", "QS", "YE", "YS-APR", "B", "3B", "250ms"]
)
def test_what_follows_is_what_pandas_says(name):
    pandas = pytest.importorskip("pandas", reason="pandas counts the same steps")
    dates = pandas.date_range("2023-03-15 00:00", periods=40, freq=name).as_unit("ms")
    times, frequency = torch.tensor(dates.asi8), parse_frequency(name)
    check_frequency(times, frequency, "ms")
    assert torch.equal(continue_times(times[:9], frequency, 31, "ms"), times[9:])
    assert find_frequency(times, "ms") == (frequency if name != "3B" else None)
    if frequency.unit != "ms":
        off = times.clone()
        off[5] += 60_001
        with pytest.raises(ValueError, match=r"contradicts 1 of 40 timestamps"):
            check_frequency(off, frequency, "ms")


def test_months_keep_their_day_where_there_is_one():
    times = seconds(*(datetime(2023, month, day, 6) for month, day in ((11, 30), (12, 31)))) - 86_400
    later = continue_times(times, parse_frequency("ME"), 3, "s")
    assert torch.equal(later, seconds(datetime(2024, 1, 30, 6), datetime(2024, 2, 29, 6), datetime(2024, 3, 30, 6)))


def test_ends_of_short_months_lead_to_ends_of_long_ones():
    times = seconds(datetime(2023, 9, 30), datetime(2023, 11, 30))
    later = continue_times(times, parse_frequency("2ME"), 3, "s")
    assert torch.equal(later, seconds(datetime(2024, 1, 31), datetime(2024, 3, 31), datetime(2024, 5, 31)))


def test_days_are_counted_on_the_clock_on_the_wall(write):
    berlin = ZoneInfo("Europe/Berlin")
    days = [datetime(2024, 3, 20, 6, tzinfo=berlin) + timedelta(days=day) for day in range(30)]
    times = torch.tensor([int(day.timestamp()) for day in days])
    assert find_frequency(times, "s") is None
    assert find_frequency(times, "s", "Europe/Berlin") == parse_frequency("D")
    assert torch.equal(continue_times(times[:5], parse_frequency("D"), 25, "s", "Europe/Berlin"), times[5:])
    hours = continue_times(times[:5], parse_frequency("24h"), 25, "s", "Europe/Berlin")
    assert torch.equal(hours, times[5:])  # 24 h is a day, as in the parsed frequency
    assert (continue_times(times[:5], parse_frequency("12h"), 60, "s", "Europe/Berlin").diff() == 43_200).all()


def test_steps_that_cannot_be_continued():
    times = seconds(datetime(2024, 1, 1), datetime(2024, 1, 15))
    with pytest.raises(ValueError, match="frequency in half months cannot be continued"):
        continue_times(times, parse_frequency("SMS"), 2, "s")
    with pytest.raises(ValueError, match=r"frequency \(250 ms\) must be whole s"):
        continue_times(times, parse_frequency("250ms"), 2, "s")
