"""Every form of an instant is the same instant."""

import datetime as dt
import zoneinfo

import numpy as np
import pytest
import torch

from mmpos.calendar import calendar_coords, time_coords
from tests.calendar.reference import FIELDS, NOTHING, PER_SECOND, seconds, turns, wall

DATES = [(2024, 2, 29, 12, 30, 15), (1969, 7, 20, 20, 17, 40), (2038, 1, 19, 3, 14, 8)]
TIMES = [seconds(*date) for date in DATES]
NAIVE = [dt.datetime(*date) for date in DATES]
UTC = [time.replace(tzinfo=dt.UTC) for time in NAIVE]
ZONES = [dt.UTC, zoneinfo.ZoneInfo("Asia/Tokyo"), dt.timezone(dt.timedelta(hours=-3))]
TEXT = [time.isoformat() for time in NAIVE]
FORMS = {
    "list": TIMES,
    "tuple": tuple(TIMES),
    "floats": [float(time) for time in TIMES],
    "int64": torch.tensor(TIMES),
    "float64": torch.tensor(TIMES, dtype=torch.float64),
    "numpy": np.array(TIMES),
    "big-endian": np.array(TIMES, dtype=">i8"),
    "strided": np.repeat(np.array(TIMES), 2)[::2],
    "naive": NAIVE,
    "aware": UTC,
    "zones": [time.astimezone(zone) for time, zone in zip(UTC, ZONES, strict=True)],
    "scalars": [np.datetime64(text) for text in TEXT],
    "mixed units": [np.datetime64(TEXT[0], "s"), np.datetime64(TEXT[1], "ns"), np.datetime64(TEXT[2], "us")],
    "objects": np.array(NAIVE, dtype=object),
    "read-only": np.array(TEXT, dtype="datetime64[s]"),
    "datetime64[>ms]": np.array(TEXT, dtype=">M8[ms]"),
} | {f"datetime64[{unit}]": np.array(TEXT, dtype=f"datetime64[{unit}]") for unit in PER_SECOND}  # fmt: skip
FORMS["read-only"].flags.writeable = False


@pytest.mark.parametrize("form", FORMS)
def test_all_forms_are_the_same_instants(form):
    minutes = time_coords(FORMS[form], per="min")[:, 0]
    assert minutes.dtype == torch.float64
    assert minutes.tolist() == [time / 60 for time in TIMES]
    assert calendar_coords(FORMS[form], FIELDS).tolist() == [turns(wall(time)) for time in TIMES]


@pytest.mark.parametrize(
    "unit, text",
    [
        ("Y", "2024"),
        ("M", "2024-03"),
        ("W", "2024-03-28"),
        ("D", "2024-03-31"),
        ("h", "2024-03-31T05"),
        ("m", "1969-12-31T23:59"),
    ],
)
def test_units_of_numpy_that_are_coarser(unit, text):
    times = np.array([[text, "NaT"]], dtype=f"datetime64[{unit}]")
    second = int(times.astype("datetime64[s]").astype(np.int64)[0, 0])
    assert time_coords(times, per="h")[0, 0, 0] == second / 3600
    assert calendar_coords(times, FIELDS)[0, 0].tolist() == turns(wall(second))
    assert calendar_coords(times, FIELDS)[0, 1].isnan().all()


def test_units_of_numpy_that_are_finer_or_multiples():
    for unit, size in [("ps", 10**12), ("fs", 10**15), ("as", 10**18)]:
        ticks = np.array([size + size // 4, -size // 4, -(2**63)]).astype(f"datetime64[{unit}]")
        coords = time_coords(ticks)[:, 0]
        assert coords[:2].tolist() == [1.25, -0.25]
        assert coords[2].isnan()
        assert time_coords(np.array([5], dtype=f"datetime64[{unit}]"), per="ns").item() == 5 / (size // 10**9)
    quarter_hours = np.array([4, 5, -1]).astype("datetime64[15m]")
    assert time_coords(quarter_hours)[:, 0].tolist() == [3600, 4500, -900]


def test_bare_numbers_count_the_unit():
    for unit, size in PER_SECOND.items():
        assert time_coords([90 * size, 30 * size], unit, per="min")[:, 0].tolist() == [1.5, 0.5]
        assert time_coords([0.5 * size], unit).item() == 0.5
    # What brings its own unit keeps it.
    assert time_coords(NAIVE, "ns", per="h").equal(time_coords(NAIVE, per="h"))


@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.uint16, torch.uint32, torch.uint64]
)
def test_integers_of_any_width(dtype):
    assert time_coords(torch.tensor([0, 100, 27]).to(dtype), per="min")[:, 0].tolist() == [0, 100 / 60, 27 / 60]
    assert time_coords(torch.tensor([100]).to(dtype)).dtype == torch.int64


def test_large_unsigned_integers_do_not_wrap():
    with pytest.raises(ValueError, match=r"timestamps must be less than 2\^63, the end of int64; use a coarser unit"):
        time_coords(np.array([2**63, 5], dtype=np.uint64), "ns")
    with pytest.raises(ValueError, match=f"must fit into int64, got {2**70}"):
        time_coords([2**70, 1])
    with pytest.raises(ValueError, match=f"must fit into int64, got {2**63}"):
        time_coords([2**63, 1])
    with pytest.raises(ValueError, match=f"origin must fit into int64, got {-(2**64)}"):
        time_coords([1], origin=-(2**64))
    with pytest.raises(ValueError, match=r"timestamps of datetime64\[D\] must fit into int64 as datetime64\[s\]"):
        time_coords(np.array([2**62]).astype("datetime64[D]"))
    # numpy gives all the finest unit, in which the year 9999 would become 1815.
    late, fine = np.datetime64("9999-01-01", "s"), np.datetime64(1, "ns")
    for times in ([late, fine], [[late], [fine]], [[late, fine]], [dt.datetime(9999, 1, 1), fine], [late, fine, None]):
        with pytest.raises(ValueError, match=r"must fit into int64 as datetime64\[ns\]"):
            time_coords(times)


def test_missing_in_lists():
    for times in (
        [NAIVE[0], None],
        [UTC[0], NOTHING],
        [np.datetime64(TEXT[0]), None],
        [NAIVE[0], float("nan")],
    ):
        coords = time_coords(times, per="d")[:, 0]
        assert coords[0] == TIMES[0] / 86_400
        assert coords[1].isnan()
    assert time_coords([TIMES[0], None], per="d")[:, 0].isnan().tolist() == [False, True]
    assert time_coords([0.5, None])[:, 0].isnan().tolist() == [False, True]
    assert time_coords([float("nan")] * 3).isnan().all()
    assert time_coords([NOTHING], per="d").isnan().all()
    # An integer beyond 2^53 stays exact beside a missing one.
    assert time_coords([2**60 + 1, None], "ns", origin=2**60, per="us")[0, 0] == 0.001


def test_nested_lists_give_batches():
    assert time_coords([TIMES, TIMES[::-1]], per="d").shape == (2, 3, 1)
    assert calendar_coords([NAIVE, UTC[::-1]][:1], ["hour_of_day"]).shape == (1, 3, 1)
    assert time_coords(range(0, 180, 60), per="min")[:, 0].tolist() == [0, 1, 2]
    assert time_coords([]).shape == (0, 1)
    with pytest.raises(ValueError, match="timestamps must have rows of equal length"):
        time_coords([[1, 2], [3]])


def test_nanoseconds_of_years_that_datetime_has_and_int64_does_not():
    ends = [dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31)]
    assert time_coords(ends, per="d")[:, 0].tolist() == [-719_162, 2_932_896]
    east = dt.datetime(1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=2)))
    assert time_coords([east], per="h").item() == -719_162 * 24 - 2
    assert time_coords([dt.date(1600, 2, 29)], per="d").item() == (dt.date(1600, 2, 29) - dt.date(1970, 1, 1)).days


@pytest.mark.parametrize(
    "times, error, message",
    [
        (torch.tensor([True]), TypeError, "timestamps must be integers or floats, got torch.bool"),
        (torch.tensor([1j]), TypeError, "got torch.complex64"),
        (torch.tensor([1.0]).half(), TypeError, "must not be in half precision, got torch.float16"),
        (torch.tensor([1.0]).bfloat16(), TypeError, "must not be in half precision, got torch.bfloat16"),
        (np.array([1], dtype=np.float16), TypeError, "must not be in half precision"),
        ([True, False], TypeError, "got bool"),
        (["2024-01-01"], TypeError, "got <U10; parse text first"),
        ("2024-01-01", TypeError, "got <U10; parse text first"),
        (np.array([5], dtype="timedelta64[s]"), TypeError, "timedelta64"),
        ([dt.timedelta(hours=1)], TypeError, "timedelta"),
        ([NAIVE[0], 5], TypeError, "must be instants or numbers of one kind, got 5 of int"),
        ({1, 2}, TypeError, "must be a tensor, an array, a list or a pandas object, got set"),
        ([NAIVE[0], UTC[0], None, UTC[1]], ValueError, "timestamps mix zones: 2 of 3 have one and the others none"),
        (5, ValueError, r"must be \(..., n\), got a single one"),
        (NAIVE[0], ValueError, r"must be \(..., n\), got a single one"),
    ],
)
def test_what_is_no_instant_is_refused(times, error, message):
    for call in (time_coords, lambda times: calendar_coords(times, ["hour_of_day"])):
        with pytest.raises(error, match=message):
            call(times)


def test_the_device_is_the_callers():
    assert time_coords(TIMES, device="meta").device.type == "meta"
    assert (
        time_coords(np.array(TEXT, dtype="datetime64[ps]"), device="meta", per="d", origin=NAIVE[0]).device.type
        == "meta"
    )
    assert calendar_coords(torch.tensor(TIMES), FIELDS, device="meta", timezone="Europe/Berlin").device.type == "meta"
