import datetime as dt
import zoneinfo
from fractions import Fraction

import numpy as np
import pytest
import torch

from mmpos.calendar import calendar_fields, time_coords
from tests.calendar.reference import NOTHING, PER_SECOND, seconds

NAT = -(2**63)
NANOSECONDS = {
    "ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9, "h": 3600 * 10**9, "d": 86_400 * 10**9,
    "w": 604_800 * 10**9,
}  # fmt: skip
BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize("unit", PER_SECOND)
@pytest.mark.parametrize("per", NANOSECONDS)
def test_the_dtype_follows_from_units_and_the_value_is_right(unit, per):
    size = PER_SECOND[unit]
    times = torch.tensor([[3 * size + 1, -5 * size, 0], [86_400 * size, 7, -1]])
    coords = time_coords(times, unit, per=per)
    assert coords.shape == (2, 3, 1)
    share = Fraction(NANOSECONDS[unit], NANOSECONDS[per])
    assert coords.dtype == (torch.int64 if share.denominator == 1 else torch.float64)
    assert coords[..., 0].tolist() == [[float(tick * share) for tick in row] for row in times.tolist()]


@pytest.mark.parametrize("unit", PER_SECOND)
def test_neighbours_stay_apart_far_from_1970(unit):
    # The difference is taken in integers: in float64, nanoseconds since 1970 lie 256 ns apart.
    origin = seconds(2026, 11, 29) * PER_SECOND[unit]
    times = origin + torch.tensor([0, 1, 2, 3 * PER_SECOND[unit] + 1])
    coords = time_coords(times, unit, origin=origin, per="d")[:, 0]
    day = 86_400 * PER_SECOND[unit]
    assert coords.tolist() == [0, 1 / day, 2 / day, (3 * PER_SECOND[unit] + 1) / day]
    assert time_coords(times, unit, origin=origin, per=unit)[:, 0].tolist() == (times - origin).tolist()


def test_the_origin_is_the_epoch_and_never_the_window():
    times = torch.arange(seconds(2024, 3, 1), seconds(2024, 3, 2), 3600)
    whole = time_coords(times, per="h")
    assert torch.equal(time_coords(times[5:9], per="h"), whole[5:9])
    assert whole[0, 0] == seconds(2024, 3, 1) / 3600


@pytest.mark.parametrize(
    "origin",
    [
        seconds(2024, 3, 31, 1),
        torch.tensor(seconds(2024, 3, 31, 1)),
        torch.tensor([[seconds(2024, 3, 31, 1)]], dtype=torch.int32),
        np.datetime64("2024-03-31T01", "h"),
        np.datetime64("2024-03-31T01", "ns"),
        np.array("2024-03-31T01", dtype="datetime64[m]"),
        dt.datetime(2024, 3, 31, 1),
        dt.datetime(2024, 3, 31, 3, tzinfo=BERLIN),
        dt.datetime(2024, 3, 30, 20, tzinfo=dt.timezone(dt.timedelta(hours=-5))),
    ],
)
def test_an_origin_of_any_type(origin):
    times = seconds(2024, 3, 31, 1) + torch.tensor([[0, 1, 90], [-1, -3600, 10**9]])
    coords = time_coords(times, origin=origin)
    assert coords.dtype == torch.int64
    assert coords[..., 0].tolist() == [[0, 1, 90], [-1, -3600, 10**9]]
    minutes = time_coords(times, origin=origin, per="min")
    assert minutes[..., 0].tolist() == [[0, 1 / 60, 1.5], [-1 / 60, -60, 10**9 / 60]]


def test_an_origin_for_each_row():
    times = torch.tensor([[100, 160, 190], [5000, 5001, 5060]])
    assert time_coords(times, origin=times[:, :1])[..., 0].tolist() == [[0, 60, 90], [0, 1, 60]]
    with pytest.raises(
        ValueError, match=r"origin must be one instant or one for each row of \(2, 3\), got shape \(2,\)"
    ):
        time_coords(times, origin=times[:, 0])


def test_a_float_origin_and_one_between_two_ticks():
    times = torch.tensor([10, 11])
    assert time_coords(times, origin=0.25)[:, 0].tolist() == [9.75, 10.75]
    between = np.datetime64("1970-01-01T00:00:00.250", "ms")
    assert time_coords(times, origin=between, per="min")[:, 0].tolist() == [9.75 / 60, 10.75 / 60]
    with pytest.raises(ValueError, match="origin must be a whole number of s, as the timestamps are, got"):
        time_coords(times, origin=between)
    millis = np.array(["1970-01-01T00:00:01.500"], dtype="datetime64[ms]")
    assert time_coords(millis, origin=0.25, per="ms").item() == 1250


def test_a_day_is_24_hours_over_a_change_of_the_clock():
    times = [dt.datetime(2024, 3, 30, 12, tzinfo=BERLIN), dt.datetime(2024, 3, 31, 12, tzinfo=BERLIN)]
    assert time_coords(times, per="h").diff(dim=0).item() == 23
    assert calendar_fields(times, ["hour_of_day"], timezone=BERLIN)[:, 0].tolist() == [12, 12]


def test_missing_is_nan_and_never_a_number():
    times = torch.tensor([[60, NAT], [NAT, 90]])
    minutes = time_coords(times, per="min")[..., 0]
    assert minutes.isnan().tolist() == [[False, True], [True, False]]
    assert minutes[~minutes.isnan()].tolist() == [1, 1.5]
    with pytest.raises(
        ValueError, match="2 missing of 4, which int64 s cannot hold; leave them out, or count in a unit"
    ):
        time_coords(times)
    with pytest.raises(ValueError, match="2 missing of 4"):
        time_coords(times, origin=5)
    floats = torch.tensor([1.5, torch.nan, torch.inf, -torch.inf, 1e30], dtype=torch.float64)
    assert time_coords(floats, per="ms")[:, 0].isnan().tolist() == [False, True, True, True, True]
    with pytest.raises(ValueError, match="origin must not be missing"):
        time_coords(torch.tensor([5]), origin=NOTHING)


def test_nothing_wraps():
    far = torch.tensor([2**62, 5])
    with pytest.raises(ValueError, match=r"must be less than 2\^63 s from the origin"):
        time_coords(far, origin=-(2**62) - 1)
    with pytest.raises(ValueError, match=r"must be less than 2\^63 us from the origin"):
        time_coords(far, per="us")
    days = time_coords(far, origin=-(2**62) - 1, per="d")[:, 0]
    assert days.isnan().tolist() == [True, False]
    assert time_coords(torch.tensor([2**63 - 1]), "ns", per="w").item() == (2**63 - 1) / NANOSECONDS["w"]
    with pytest.raises(ValueError, match="origin must fit into int64 ns"):
        time_coords(np.array([0], dtype="datetime64[ns]"), origin=np.datetime64("1500-01-01", "s"))


def test_floats_are_exact_and_pass_gradients_on():
    times = torch.tensor([[1.75e9 + 0.25, 3.5]], dtype=torch.float64, requires_grad=True)
    coords = time_coords(times, origin=1_750_000_000, per="min")
    assert coords.dtype == torch.float64
    assert coords[0, 0, 0] == 0.25 / 60
    coords.sum().backward()
    assert times.grad is not None
    assert times.grad.tolist() == [[1 / 60, 1 / 60]]
    single = torch.tensor([0.5, 3.0], dtype=torch.float32)
    assert time_coords(single).dtype == torch.float64
    assert time_coords(single, per="ms")[:, 0].tolist() == [500, 3000]


def test_float32_is_refused_where_it_cannot_tell_seconds_apart():
    with pytest.raises(ValueError, match=r"timestamps reach past 2\^24 s in float32"):
        time_coords(torch.tensor([1.7e9, 5.0], dtype=torch.float32))
    assert time_coords(torch.tensor([2.0**24 - 1], dtype=torch.float32)).item() == 2**24 - 1


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"unit": "sec"}, "unknown unit 'sec'; known: s, ms, us, ns"),
        ({"per": "m"}, "unknown unit 'm'.*known: ns, us, ms, s, min, h, d, w"),
        ({"per": "hour"}, "unknown unit 'hour'"),
    ],
)
def test_units_are_known(arguments, message):
    with pytest.raises(ValueError, match=r"(?i)" + message):
        time_coords(torch.arange(3), **arguments)


@pytest.mark.parametrize("per, origin", [("s", None), ("d", 7), ("min", dt.datetime(2024, 1, 1)), ("ms", 0)])
def test_compiled_in_one_graph(per, origin):
    torch._dynamo.reset()
    times = torch.tensor([[5, 2**40], [-9, 60]])

    def coords(times):
        return time_coords(times, origin=origin, per=per)

    compiled = torch.compile(coords, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(times), coords(times))
    times[0, 0] = NAT
    missing = compiled(times)[0, 0, 0]
    assert missing.isnan() if missing.is_floating_point() else missing == NAT
    meta = coords(times.to("meta"))
    assert (meta.shape, meta.device.type) == ((2, 2, 1), "meta")


def test_another_origin_in_compiled_code_is_not_mistaken_for_the_first():
    torch._dynamo.reset()
    compiled = torch.compile(lambda times, origin: time_coords(times, origin=origin), fullgraph=True, backend="eager")
    for origin in (dt.datetime(2024, 1, 1), dt.datetime(2025, 1, 1), dt.date(2026, 1, 1), 5, None):
        assert torch.equal(compiled(torch.tensor([60]), origin), time_coords(torch.tensor([60]), origin=origin))


def test_unsigned_integers_past_int64_in_compiled_code():
    torch._dynamo.reset()
    compiled = torch.compile(lambda times: time_coords(times, per="min"), fullgraph=True, backend="eager")
    minutes = compiled(torch.tensor([60, 2**63], dtype=torch.uint64))[:, 0]
    assert minutes[0] == 1
    assert minutes[1].isnan()
