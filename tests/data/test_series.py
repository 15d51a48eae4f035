"""Time series as windows, and forecasts of a user's file."""

import csv
import gzip
from datetime import datetime, timedelta

import numpy as np
import pytest
import torch

from mmpos.calendar import parse_frequency
from mmpos.data.series import SeriesData
from mmpos.data.series_files import ASSETS, read_series
from tests.data.tables import hourly, seconds, write_table

SMALL = {"input_length": 5, "horizon": 3}


@pytest.fixture
def write(tmp_path):
    return lambda rows, name="table.csv", header="time,a,b": write_table(tmp_path / name, rows, header)


# Windows.


def test_windows_hold_the_rows_of_their_part(write):
    generator = np.random.default_rng(1)
    table = generator.normal(3, 20, (103, 2)).round(4)
    table[[2, 20, 71, 90], [0, 1, 0, 1]] = np.nan
    blank = np.vectorize(lambda number: "" if np.isnan(number) else str(number))(table)
    path = write(hourly(103, values=lambda row: ",".join(blank[row])))
    data = SeriesData(str(path), **SMALL)
    data.setup()
    assert data.parts == {"train": range(0, 72), "val": range(72, 83), "test": range(83, 103)}
    assert data.names == ("a", "b")
    mean, std = np.nanmean(table[:72], 0), np.nanstd(table[:72], 0)
    torch.testing.assert_close(data.mean, torch.from_numpy(mean).float())
    torch.testing.assert_close(data.std, torch.from_numpy(std).float())
    scaled = ((table - mean) / std).astype(np.float32)
    stamps = seconds(*(datetime(2020, 2, 28, 20) + timedelta(hours=row) for row in range(103)))
    for part, starts in (("train", range(65)), ("val", range(67, 76)), ("test", range(78, 96))):
        batch = data.windows(part)
        assert batch["values"].dtype == batch["targets"].dtype == torch.float32
        assert batch["times"].dtype == torch.int64
        for number, start in enumerate(starts):
            expected = {
                "values": torch.from_numpy(scaled[start : start + 5]),
                "targets": torch.from_numpy(scaled[start + 5 : start + 8]),
                "times": stamps[start : start + 8],
            }
            for name, tensor in expected.items():
                torch.testing.assert_close(batch[name][number], tensor, equal_nan=True)
        assert len(batch["values"]) == len(starts)
    assert data.windows("train")["values"].isnan().any()


def test_loaders_give_all_windows_in_order_but_for_training(write):
    data = SeriesData(str(write(hourly(103))), batch_size=4, stride=2, **SMALL)
    data.setup()
    torch.manual_seed(1)
    batches = list(data.train_dataloader())
    starts = torch.cat([batch["times"][:, 0] for batch in batches])
    assert [len(batch["values"]) for batch in batches] == [4] * 8 + [1]
    assert torch.equal(starts.sort().values, data.windows("train")["times"][:, 0])
    assert (starts.sort().values.diff() == 7200).all()
    assert not torch.equal(starts, starts.sort().values)
    for loader, part in ((data.val_dataloader(), "val"), (data.test_dataloader(), "test")):
        batches = list(loader)
        for name, tensor in data.windows(part).items():
            assert torch.equal(torch.cat([batch[name] for batch in batches]), tensor)


def test_a_limit_spreads_windows_over_the_part(write):
    data = SeriesData(str(write(hourly(1000))), limit=7, **SMALL)
    data.setup()
    every, some = data.windows("test")["times"][:, 0], next(iter(data.test_dataloader()))["times"][:, 0]
    assert len(some) == 7
    assert [int((every == start).nonzero()) * 7 // len(every) for start in some] == list(range(7))
    assert torch.equal(data.windows("test", limit=7)["times"][:, 0], some)
    assert len(data.windows("test", limit=5000)["times"]) == len(every)


def test_borders_of_the_ett_files(write):
    names = ["HUFL", "HULL", "MUFL", "MULL", "LUFL", "LULL", "OT"]
    rows = hourly(14_500, datetime(2016, 7, 1), values=lambda row: ",".join(str((row + k) % 11) for k in range(7)))
    path = write(rows, "ETTh1.csv", header=",".join(["date", *names]))
    data = SeriesData(str(path), split="ett_hour", input_length=96, horizon=24)
    data.setup()
    assert data.names == tuple(names)
    assert data.frequency == parse_frequency("h")
    assert data.parts == {"train": range(0, 8640), "val": range(8640, 11520), "test": range(11520, 14400)}
    test = data.windows("test")["times"]
    begin = datetime(2016, 7, 1)
    assert test.shape == (2880 - 23, 120)
    assert test[0, 96] == seconds(begin + timedelta(hours=11520))
    assert test[-1, -1] == seconds(begin + timedelta(hours=14399))
    with pytest.raises(ValueError, match=r"split 'ett_minute' needs 57600 rows, and the series has 14500"):
        SeriesData(str(path), split="ett_minute").setup()


def test_dropped_rows_leave_irregular_time_and_the_borders_where_they_are(write):
    path = str(write(hourly(1000)))
    whole, part, again, other = (
        SeriesData(path, drop=drop, drop_seed=seed, **SMALL) for drop, seed in ((0, 0), (0.4, 0), (0.4, 0), (0.4, 1))
    )
    for data in (whole, part, again, other):
        torch.manual_seed(len(data.parts))
        data.setup()
    assert sum(map(len, part.parts.values())) == 600
    assert part.frequency is None
    assert whole.frequency == parse_frequency("h")
    for name in ("train", "val", "test"):
        kept, full = part.windows(name)["times"], whole.windows(name)["times"]
        assert torch.isin(kept, full if name == "train" else whole._times).all()
        targets, border = kept[:, 5:], whole._times[whole.parts[name].start]
        assert targets.min() >= border
        assert targets.max() <= whole._times[whole.parts[name].stop - 1]
        assert torch.equal(kept, again.windows(name)["times"])
    assert not torch.equal(part._times, other._times)
    kept = SeriesData(path, drop=0.4, frequency="h", **SMALL)
    kept.setup()
    assert kept.frequency == parse_frequency("h")  # what is given stays


def test_the_series_of_the_package():
    for name, channels, rows, frequency in (
        ("sf_traffic", 1, 17_544, parse_frequency("h")),
        ("beijing_pm25", 7, 43_824, parse_frequency("h")),
        ("metro_traffic", 5, 40_575, None),
    ):
        data = SeriesData(name)
        data.setup()
        assert (len(data.names), data.parts["test"].stop, data.frequency) == (channels, rows, frequency)
        with gzip.open(ASSETS / f"{name}.csv.gz", "rt") as file:
            *_, last = csv.reader(file)
        window = data.windows("test")
        assert window["times"][-1, -1] == seconds(datetime.fromisoformat(last[0]))
        values = window["targets"][-1, -1].double() * data.std + data.mean
        torch.testing.assert_close(
            values, torch.tensor([float(cell) for cell in last[1:]]).double(), rtol=1e-5, atol=1e-4
        )
    missing = read_series(ASSETS / "beijing_pm25.csv.gz").values.isnan()
    assert missing.sum(0).tolist() == [2067, 0, 0, 0, 0, 0, 0]


def test_sources_that_there_are_not(tmp_path):
    with pytest.raises(ValueError, match=r"unknown source 'sf_trafic'; did you mean 'sf_traffic'"):
        SeriesData("sf_trafic").setup()
    with pytest.raises(FileNotFoundError, match=r"source has .*missing.csv, which is no file"):
        SeriesData(str(tmp_path / "missing.csv")).setup()


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"input_length": 0}, r"input_length \(0\) must be at least 1"),
        ({"limit": 0}, r"limit \(0\) must be at least 1"),
        ({"drop": 1.0}, r"drop \(1.0\) must be at least 0 and less than 1"),
        ({"split": (0.7, 0.2, 0.2)}, r"three positive shares that add up to 1, got \(0.7, 0.2, 0.2\)"),
        ({"split": "ett"}, r"split must be three shares, 'ett_hour' or 'ett_minute', got 'ett'"),
        ({"duplicates": "last"}, r"duplicates must be 'error' or 'first', got 'last'"),
        ({"timezone": "Europe/Berlim"}, r"unknown timezone 'Europe/Berlim'"),
        ({"frequency": "hourli"}, r"unknown frequency 'hourli'"),
    ],
)
def test_arguments_out_of_range(arguments, message):
    with pytest.raises(ValueError, match=message):
        SeriesData(**arguments)


def test_parts_that_are_too_short(write):
    path = str(write(hourly(40)))
    for arguments, message in (
        (
            {"input_length": 40, "horizon": 1},
            r"the series of .* has 40 rows, too few for input_length \(40\) \+ horizon",
        ),
        ({"input_length": 25, "horizon": 4}, r"training part of .* has 28 rows, too few for input_length \(25\) \+"),
        ({"input_length": 5, "horizon": 5}, r"validation part of .* has 4 rows, too few for horizon \(5\)"),
        ({"input_length": 5, "horizon": 5, "split": (0.7, 0.2, 0.1)}, r"test part of .* has 4 rows"),
    ):
        with pytest.raises(ValueError, match=message):
            SeriesData(path, **arguments).setup()
    late = write(hourly(40, values=lambda row: f"{row},{row if row > 30 else ''}"))
    with pytest.raises(ValueError, match=r"channel 'b' has no number in the training part"):
        SeriesData(str(late), **SMALL).setup()


def test_a_constant_channel_is_left_as_it_is(write):
    data = SeriesData(str(write(hourly(60, values=lambda row: f"{row},7.3"))), **SMALL)
    assert data.windows("train")["values"][..., 1].abs().max() < 1e-12
    assert data.std[1] == 1


def test_a_frequency_that_contradicts_the_data(write):
    rows = hourly(60)
    path = str(write(rows[:20] + [row.replace(":00:00", ":30:00") for row in rows[20:22]] + rows[25:]))
    message = r"frequency \(1 h\) contradicts 2 of 57 timestamps: its steps from 2020-02-28 20:00:00 do not lead to 2020-02-29 16:30:00, which follows 2020-02-29 15:00:00"  # noqa: E501
    with pytest.raises(ValueError, match=message):
        SeriesData(path, frequency="h", **SMALL).setup()
    data = SeriesData(path, frequency="30min", **SMALL)
    data.setup()  # gaps are legal
    assert data.frequency == parse_frequency("30min")
    data = SeriesData(path, **SMALL)
    data.setup()
    assert data.frequency is None


# Forecasts.


def test_a_forecast_of_a_users_file_and_back(write, tmp_path):
    start = datetime(2024, 10, 20)
    path = write(hourly(200, start), "train.csv")
    data = SeriesData(str(path), channels=["b", "a"], timezone="Asia/Tokyo", **SMALL)
    data.setup()
    new = write(hourly(30, datetime(2025, 1, 31, 0)), "new.csv")
    batch = data.forecast_window(new)
    assert batch["values"].shape == (1, 5, 2)
    raw = batch["values"][0].double() * data.std + data.mean
    expected = torch.tensor([[-row * row, row] for row in range(25, 30)]).double()
    torch.testing.assert_close(raw, expected, rtol=1e-5, atol=1e-2)
    stamps = [datetime(2025, 1, 31) + timedelta(hours=row - 9) for row in range(25, 33)]
    assert torch.equal(batch["times"][0], seconds(*stamps))

    forecast = torch.tensor([[0.0, 1.0], [2.0, 0.5], [-1.0, 0.0]])
    written = tmp_path / "folder" / "forecast.csv"
    data.write_forecast(written, batch["times"][0, -3:], forecast)
    assert written.read_text().splitlines()[:2] == [
        "time,b,a",
        f"2025-02-01 06:00:00+09:00,{data.mean[0]:.7g},{data.mean[1] + data.std[1]:.7g}",
    ]
    back = read_series(written)
    assert torch.equal(back.times, batch["times"][0, -3:])
    torch.testing.assert_close(back.values, forecast.double() * data.std + data.mean, rtol=1e-6, atol=1e-5)


def test_forecasts_of_months_end_where_months_end(write):
    starts = np.arange("2019-02", "2024-02", dtype="datetime64[M]").astype("datetime64[D]")
    ends = [f"{start - 1},{row}" for row, start in enumerate(starts)]
    path = write(ends, header="month,sales")
    data = SeriesData(str(path), input_length=6, horizon=3)
    later = data.forecast_window(path)["times"][0, -3:]
    assert torch.equal(later, seconds(datetime(2024, 1, 31), datetime(2024, 2, 29), datetime(2024, 3, 31)))
    data.write_forecast(path.with_name("out.csv"), later, torch.zeros(3, 1))
    assert path.with_name("out.csv").read_text().splitlines()[2].startswith("2024-02-29 00:00:00,")


def test_files_that_nothing_can_be_forecast_from(write):
    data = SeriesData(str(write(hourly(100), "train.csv")), **SMALL)
    cases = (
        (hourly(4), r"the series has 4 rows, too few for input_length \(5\)"),
        (hourly(20, step=timedelta(minutes=15)), r"step of 15 min, but the training data have one of 1 h"),
        (hourly(20, step=timedelta(days=1)), r"step of 1 d, but the training data have one of 1 h"),
        ([row.replace(":00:00", ":10:00") if row.endswith("-81") else row for row in hourly(20)], r"frequency \(1 h\) contradicts 1 of"),  # noqa: E501
        ([row.replace(":00:00", ":00:00.5") for row in hourly(20)], r"timestamps must be whole s"),
    )  # fmt: skip
    for rows, message in cases:
        with pytest.raises(ValueError, match=message):
            data.forecast_window(write(rows, "new.csv"))
    with pytest.raises(ValueError, match=r"unknown column of new.csv: 'b'"):
        data.forecast_window(write(["2020-01-01,1"], "new.csv", header="time,a"))
    with pytest.raises(FileNotFoundError, match=r"gone.csv is no file"):
        data.forecast_window("gone.csv")
    rows = hourly(100)
    irregular = write(rows[:50] + rows[53:], "gaps.csv")
    with pytest.raises(ValueError, match="the series is irregular, so what follows has no timestamps"):
        SeriesData(str(irregular), **SMALL).forecast_window(irregular)
    given = SeriesData(str(irregular), frequency="h", **SMALL).forecast_window(irregular)
    assert (given["times"].diff() == 3600).all()
