from datetime import UTC, date, datetime, timedelta, timezone
from fractions import Fraction
from zoneinfo import ZoneInfo

import numpy as np
import pytest
import torch

from mmpos import event_coords

from .reference import PER_SECOND, seconds

SECONDS = {"ns": Fraction(1, 10**9), "us": Fraction(1, 10**6), "ms": Fraction(1, 1000), "s": 1, "min": 60, "h": 3600,
           "d": 86400, "w": 604800}  # fmt: skip
NOW = 1_700_000_000


def since_nearest(time, events):
    """The difference to the nearest event, of two as near the earlier one; in exact numbers."""
    return time - min(events, key=lambda event: (abs(time - event), event))


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("per", ["ms", "h", "d"])
def test_the_nearest_event_of_each_kind(unit, per):
    second = PER_SECOND[unit]
    times = NOW * second + torch.randint(-(10**7) * second, 10**7 * second, (2, 150))
    tables = {"rare": [NOW * second], "often": (NOW * second + torch.randint(-(10**7) * second, 10**7 * second, (40,)))}
    tables["often"] = torch.cat([tables["often"], tables["often"][:3], times[0, :5]])
    got = event_coords(times, tables, unit=unit, per=per)
    assert (got.shape, got.dtype) == ((2, 150, 2), torch.float64)
    size = SECONDS[per] * second
    for column, table in enumerate((tables["rare"], tables["often"].tolist())):
        want = [[float(since_nearest(time, table) / Fraction(size)) for time in row] for row in times.tolist()]
        torch.testing.assert_close(got[..., column], torch.tensor(want, dtype=torch.float64), rtol=2**-51, atol=0)


def test_halfway_counts_from_the_earlier_one():
    assert event_coords([5, 6, 4], {"event": [10, 0]}, per="s")[:, 0].tolist() == [5, -4, 4]
    assert event_coords([5.0, 5.25, 4.75], {"event": [0, 10]}, per="s")[:, 0].tolist() == [5, -4.75, 4.75]


def test_before_the_first_and_after_the_last():
    assert event_coords([-100, 100], {"event": [3, 7]}, per="s")[:, 0].tolist() == [-103, 93]


def test_units_of_timestamps_and_events_need_not_be_the_same():
    noon = datetime(2024, 12, 25, 12)
    tables = {
        "date": [date(2024, 12, 25)],
        "day": np.array(["2024-12-25"], dtype="datetime64[D]"),
        "datetime": noon + timedelta(microseconds=250),
        "nanoseconds": np.array(["2024-12-25T11:59:59.999999999"], dtype="datetime64[ns]"),
        "seconds": [seconds(2024, 12, 25, 6)],
    }
    for times in ([noon], [seconds(2024, 12, 25, 12)], [float(seconds(2024, 12, 25, 12))]):
        got = event_coords(times, tables, per="us")
        assert got.tolist() == [[43_200_000_000, 43_200_000_000, -250, 0.001, 21_600_000_000]]
    assert event_coords([NOW + 0.25], {"event": np.array([NOW * 1000 + 125], "datetime64[ms]")}, per="ms").item() == 125


def test_whole_seconds_in_nanoseconds_leave_far_timestamps_alone():
    table = {"event": np.array(["2024-12-25"], dtype="datetime64[ns]")}
    assert event_coords([date(2600, 12, 25)], table).item() == (date(2600, 12, 25) - date(2024, 12, 25)).days
    early, late = -(2**63) + 1, 2**63 - 1
    got = event_coords([early, late], {"event": [late]}, unit="ns", per="ns")[:, 0]
    assert got.tolist() == [float(early) - float(late), 0]


def test_a_day_is_a_day_on_the_clock_on_the_wall():
    zone = ZoneInfo("America/New_York")
    table = {"labor day": [date(2024, 9, 2)], "christmas": [date(2024, 12, 25)]}
    times = [datetime(2024, 12, 20, tzinfo=zone), datetime(2024, 10, 10, 18, tzinfo=zone)]  # summer time ends between
    for given in (times, [int(time.timestamp()) for time in times]):
        assert event_coords(given, table, timezone=zone).tolist() == [[109, -5], [38.75, -75.25]]
    assert event_coords(times, table).tolist() == [[109 + 5 / 24, -5 + 5 / 24], [38.75 + 4 / 24, -75.25 + 4 / 24]]


def test_events_with_a_zone_and_numbers_are_instants():
    berlin, instant = ZoneInfo("Europe/Berlin"), datetime(2024, 7, 1, 12, tzinfo=UTC)
    tables = {
        "zoned": [instant.astimezone(timezone(timedelta(hours=-7)))],
        "number": [int(instant.timestamp())],
        "numpy number": [np.int64(instant.timestamp())],
        "single": int(instant.timestamp()),
        "tensor": torch.tensor([int(instant.timestamp())]),
        "wall": [datetime(2024, 7, 1, 14)],
        "numpy wall": [np.datetime64("2024-07-01T14:00")],
    }
    assert event_coords([instant], tables, per="h", timezone="Europe/Berlin").tolist() == [[0] * 7]
    winter = event_coords([datetime(2024, 12, 1, 12, tzinfo=berlin)], tables, timezone=berlin)
    assert winter.tolist() == [[153 - 2 / 24] * 7]


def test_pandas():
    pd = pytest.importorskip("pandas", reason="pandas is not installed")
    days = pd.DatetimeIndex(["2024-12-25", "2023-12-25"])
    tables = {"index": days, "series": pd.Series(days), "list": list(days), "zoned": days.tz_localize("Asia/Tokyo")}
    got = event_coords(pd.DatetimeIndex(["2024-12-26"]).tz_localize("Asia/Tokyo"), tables, timezone="Asia/Tokyo")
    assert got.tolist() == [[1, 1, 1, 1]]


def test_what_is_missing_is_nan():
    tables = {"event": [date(2024, 1, 1)], "other": [0]}
    times = np.array(["NaT", "2024-01-03"], dtype="datetime64[s]")
    got = event_coords(times, tables, timezone="Europe/Berlin")
    assert got.isnan().tolist() == [[True, True], [False, False]]
    assert event_coords([float("nan"), 86400.0], tables)[:, 1].isnan().tolist() == [True, False]


def test_gradients_reach_real_times():
    times = torch.tensor([100.5, 86400.0 * 3], dtype=torch.float64, requires_grad=True)
    event_coords(times, {"event": [0, 86400 * 5]}, per="h").sum().backward()
    torch.testing.assert_close(times.grad, torch.full((2,), 1 / 3600, dtype=torch.float64))


def test_compiled_with_tables_of_tensors():
    times, table = NOW + torch.randint(0, 10**7, (3, 20)), torch.tensor([NOW + 5_000_000, NOW])
    compiled = torch.compile(lambda times, table: event_coords(times, {"event": table}, timezone="Europe/Berlin"),
                             fullgraph=True, backend="aot_eager")  # fmt: skip
    assert torch.equal(compiled(times, table), event_coords(times, {"event": table}, timezone="Europe/Berlin"))


def test_on_the_meta_device():
    got = event_coords(torch.empty(3, 5, dtype=torch.int64, device="meta"), {"event": [0], "other": [date(2024, 1, 1)]})
    assert (got.shape, got.device.type) == ((3, 5, 2), "meta")


@pytest.mark.parametrize(
    "events, error, message",
    [
        ([date(2024, 1, 1)], TypeError, "events must be a mapping from names to instants, got list"),
        ({}, ValueError, "events must have a kind or more, got none"),
        ({"storm": []}, ValueError, "events 'storm' must have one event or more, got none"),
        ({"storm": [0, None]}, ValueError, "events 'storm' has 1 missing of 2; leave them out"),
        ({"storm": [0.5]}, ValueError, "events 'storm' must be whole s; give them in a finer unit"),
        ({"storm": ["2024-01-01"]}, TypeError, "events 'storm' must be"),
        ({"storm": [date(2024, 1, 1), datetime(2024, 1, 1, tzinfo=UTC)]}, ValueError, "events 'storm' mix zones"),
        ({"storm": np.array([1], "datetime64[ns]")}, ValueError, "timestamps must fit into int64 ns, the finest unit"),
    ],
)
def test_bad_tables_are_named(events, error, message):
    with pytest.raises(error, match=message):
        event_coords([10**12], events)


def test_bad_units_and_shapes():
    with pytest.raises(ValueError, match="unknown unit 'day'"):
        event_coords([0], {"event": [0]}, per="day")
    with pytest.raises(ValueError, match="unknown timezone 'Berlin'"):
        event_coords([0], {"event": [0]}, timezone="Berlin")
    with pytest.raises(ValueError, match="got a single one; put it into a list"):
        event_coords(0, {"event": [0]})
