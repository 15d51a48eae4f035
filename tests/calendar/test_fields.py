import random
import zoneinfo
from datetime import UTC, datetime, timedelta, timezone

import pytest
import torch

from mmpos.calendar import calendar_coords, calendar_fields, time_coords
from tests.calendar.reference import FIELDS, PER_SECOND, WHOLE, numbers, seconds, turns, wall

CYCLE = 146_097 * 86_400  # seconds in 400 years
NAT = -(2**63)
EDGES = [
    seconds(*date)
    for date in [
        (1, 1, 8), (1600, 2, 29), (1600, 3, 1), (1700, 2, 28, 23, 59, 59), (1700, 3, 1), (1900, 2, 28), (1900, 3, 1),
        (1969, 12, 31, 23, 59, 59), (1970, 1, 1), (2000, 2, 29, 12), (2000, 12, 31), (2020, 12, 31), (2021, 1, 3),
        (2021, 1, 4), (2023, 12, 31), (2024, 2, 29), (2024, 12, 29), (2024, 12, 30), (2100, 2, 28), (2100, 3, 1),
        (2400, 2, 29), (2400, 12, 31, 23, 59, 59), (9999, 12, 24),
    ]
]  # fmt: skip


def instants(number: int, first: int = 1, last: int = 9999) -> list[int]:
    """Random seconds of these years."""
    return [random.randint(seconds(first, 1, 2), seconds(last, 12, 30)) for _ in range(number)]


@pytest.fixture(autouse=True)
def same_instants():
    random.seed(0)


def test_whole_fields_are_those_of_the_calendar():
    times = EDGES + instants(3000) + instants(2000, 1600, 2400)
    fields = calendar_fields(torch.tensor(times), WHOLE)
    assert fields.dtype == torch.int64
    assert fields.tolist() == [numbers(wall(time)) for time in times]


def test_every_day_of_four_centuries():
    days = torch.arange(seconds(1999, 12, 30), seconds(2400, 3, 2), 86_400)
    names = ["day_of_week", "day_of_month", "day_of_year", "week_of_year", "month_of_year", "quarter_of_year"]
    assert len(days) > 146_097
    expected = [numbers(wall(day))[3:] for day in days.tolist()]
    assert torch.equal(calendar_fields(days, names), torch.tensor(expected))


@pytest.mark.parametrize("unit", ["s", "ms", "us"])
def test_turns_are_exact(unit):
    times, per_second = EDGES + instants(400), PER_SECOND[unit]
    ticks = [random.randrange(per_second) for _ in times[:-3]] + [0, 1 % per_second, per_second - 1]
    coords = calendar_coords(
        torch.tensor([t * per_second + k for t, k in zip(times, ticks, strict=True)]), FIELDS, unit=unit
    )
    assert coords.dtype == torch.float64
    assert coords.tolist() == [turns(wall(t), k, per_second) for t, k in zip(times, ticks, strict=True)]


def test_turns_of_nanoseconds_are_exact_and_of_a_year_within_its_last_digit():
    times, ticks = instants(400, 1678, 2261), [random.randrange(10**9) for _ in range(400)]
    coords = calendar_coords(
        torch.tensor([t * 10**9 + k for t, k in zip(times, ticks, strict=True)]), FIELDS, unit="ns"
    )
    expected = torch.tensor([turns(wall(t), k, 10**9) for t, k in zip(times, ticks, strict=True)], dtype=torch.float64)
    assert torch.equal(coords[:, :-1], expected[:, :-1])
    assert (coords[:, -1] - expected[:, -1]).abs().max() <= 2**-53


@pytest.mark.parametrize(
    "tick, date",
    [
        (-(2**63) + 1, (1677, 9, 21, 0, 12, 43)),
        (-1, (1969, 12, 31, 23, 59, 59)),
        (0, (1970, 1, 1)),
        (2**63 - 1, (2262, 4, 11, 23, 47, 16)),
    ],
)
@pytest.mark.parametrize(
    "name, zone",
    [
        (None, UTC),
        ("+14:00", timezone(timedelta(hours=14))),
        ("-12:00", timezone(timedelta(hours=-12))),
        ("Asia/Kathmandu", zoneinfo.ZoneInfo("Asia/Kathmandu")),
    ],
)
def test_the_ends_of_nanoseconds(tick, date, name, zone):
    time = datetime(*date, tzinfo=UTC).astimezone(zone)
    assert calendar_fields(torch.tensor([tick]), WHOLE, unit="ns", timezone=name).tolist() == [numbers(time)]
    coords = calendar_coords(torch.tensor([tick]), FIELDS, unit="ns", timezone=name)[0]
    expected = torch.tensor(turns(time, tick % 10**9, 10**9), dtype=torch.float64)
    assert torch.equal(coords[:-1], expected[:-1])
    assert (coords[-1] - expected[-1]).abs() <= 2**-53


@pytest.mark.parametrize("unit", ["s", "ms", "us"])
def test_the_calendar_repeats_every_400_years_to_the_ends_of_int64(unit):
    ticks, cycle = torch.tensor(EDGES[6:-2]) * PER_SECOND[unit], CYCLE * PER_SECOND[unit]
    last = (2**63 - 1 - int(ticks.max())) // cycle
    for zone in (None, "Europe/Berlin"):  # whose rule goes on for ever
        expected = calendar_coords(ticks + 2 * cycle, FIELDS, unit=unit, timezone=zone)
        assert torch.equal(calendar_coords(ticks + last * cycle, FIELDS, unit=unit, timezone=zone), expected)
    expected = calendar_coords(ticks, FIELDS, unit=unit)
    assert torch.equal(calendar_coords(ticks - last * cycle, FIELDS, unit=unit), expected)


@pytest.mark.parametrize("unit", PER_SECOND)
def test_turns_begin_at_0_and_stay_below_1(unit):
    # Midnight of 1 January 2018 began a year, a quarter, a month, a week, a day and an hour.
    begin = seconds(2018, 1, 1) * PER_SECOND[unit]
    before, first = calendar_coords(torch.tensor([begin - 1, begin]), FIELDS, unit=unit)
    assert not first.any()
    assert (before < 1).all()
    tick = 1 / PER_SECOND[unit]
    lengths = [3600, 86_400, 7 * 86_400, 31 * 86_400, 92 * 86_400, 365 * 86_400]
    assert (1 - before[-6:]).tolist() == pytest.approx([tick / length for length in lengths], abs=2**-53)
    leap = calendar_coords(torch.tensor([seconds(2025, 1, 1) * PER_SECOND[unit] - 1]), FIELDS, unit=unit)
    assert (leap < 1).all()
    late = torch.tensor([-(2.0**-30)], dtype=torch.float64)
    assert (calendar_coords(late, FIELDS, unit=unit) < 1).all()


def test_december_and_january_are_neighbours():
    # 23:00 and 00:00, Sunday and Monday, December and January lie one step apart on the circle.
    times = torch.tensor([seconds(2023, 12, 31, 23), seconds(2024, 1, 1, 0)])
    last, first = calendar_coords(times, ["hour_of_day", "day_of_week", "day_of_year", "month_of_year"])
    assert (first == 0).all()
    assert (1 - last).tolist() == pytest.approx([1 / 24, 1 / 7, 1 / 365, 1 / 12], abs=1e-15)


def test_periods_are_fixed_and_not_short_by_one():
    # Over 6 instead of 7, Sunday would be Monday; sine alone would give different weekdays the same value.
    week = torch.tensor([seconds(2024, 1, 1 + day) for day in range(7)])
    angle = 2 * torch.pi * calendar_coords(week, ["day_of_week"])[:, 0]
    points = torch.stack([angle.sin(), angle.cos()], dim=-1)
    assert points[0].tolist() == [0, 1]
    assert points[6].tolist() == pytest.approx([-0.7818314824680298, 0.6234898018587335], abs=1e-15)
    assert torch.cdist(points, points).fill_diagonal_(9).min() > 0.8
    for part in (week[:1], week[2:4], week.flip(0)):
        assert torch.equal(
            calendar_coords(part, ["day_of_week"])[0], calendar_coords(week, ["day_of_week"])[week == part[0]][0]
        )


def test_the_last_minute_day_and_month_are_legal():
    fields = calendar_fields(torch.tensor([seconds(2023, 12, 31, 23, 59, 59)]), WHOLE)
    assert fields.tolist() == [[59, 59, 23, 6, 30, 364, 51, 11, 3]]


def test_a_date_does_not_depend_on_the_window_around_it():
    alone = calendar_coords(torch.tensor([seconds(2023, 12, 31)]), FIELDS)
    window = calendar_coords(torch.tensor([seconds(2023, 12, 31), seconds(2024, 12, 31)]), FIELDS)
    assert torch.equal(window[:1], alone)
    assert window[:, FIELDS.index("day_of_year")].tolist() == [364 / 365, 365 / 366]


@pytest.mark.parametrize(
    "field, date, turn",
    [
        ("day_of_month", (2023, 2, 28), 27 / 28),
        ("day_of_month", (2024, 2, 28), 27 / 29),
        ("day_of_year", (2024, 12, 31), 365 / 366),
        ("week_of_year", (2020, 12, 31), 52 / 53),
        ("week_of_year", (2021, 1, 3), 52 / 53),
        ("week_of_year", (2021, 1, 4), 0),
        ("week_of_year", (2024, 12, 31), 0),
        ("fraction_of_month", (2024, 2, 15, 12), 14.5 / 29),
        ("fraction_of_quarter", (2024, 3, 1), 60 / 91),
        ("fraction_of_quarter", (2023, 3, 1), 59 / 90),
        ("fraction_of_year", (2024, 7, 2), 0.5),
        ("fraction_of_year", (2023, 7, 2, 12), 0.5),
    ],
)
def test_periods_have_their_true_length(field, date, turn):
    assert calendar_coords(torch.tensor([seconds(*date)]), [field]).item() == turn


def test_gluonts_linear_features_follow_from_the_fields():
    # gluonts 0.16: index / (number - 1) - 0.5 with 60 seconds and minutes, 24 hours, 7 weekdays, 31, 366, 53 and 12.
    counts = [60, 60, 24, 7, 31, 366, 53, 12]
    times = EDGES + instants(500)
    features = calendar_fields(torch.tensor(times), WHOLE[:-1]) / (torch.tensor(counts, dtype=torch.float64) - 1) - 0.5
    expected = [[i / (n - 1) - 0.5 for i, n in zip(numbers(wall(t)), counts, strict=False)] for t in times]
    assert features.dtype == torch.float64
    assert features.tolist() == expected


def test_float_seconds_lose_what_turns_keep():
    # Seconds since 1970 lie 128 s apart in float32; sines of their cycles are off by the figures below.
    times = torch.arange(seconds(2023, 11, 15), seconds(2023, 11, 16, 4), 7)
    exact = calendar_coords(times, ["fraction_of_hour", "fraction_of_day"])
    since = time_coords(times, origin=times[0])[:, 0]
    for period, share, raw, shifted in [(3600, exact[:, 0], 0.2, 3e-5), (86_400, exact[:, 1], 8e-3, 2e-6)]:
        truth = torch.tensor([2 * torch.pi * (t % period) / period for t in times.tolist()], dtype=torch.float64).sin()
        assert ((2 * torch.pi * share).sin() - truth).abs().max() < 1e-15
        rate = torch.tensor(2 * torch.pi / period)
        assert ((times.float() * rate).sin() - truth).abs().max() > raw
        phase = 2 * torch.pi * (times[0] % period) / period
        assert ((since.float() * rate).double().add(phase).sin() - truth).abs().max() < shifted


@pytest.mark.parametrize(
    "name",
    [
        "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca", "Asia/Kathmandu",
        "America/Sao_Paulo", "Asia/Beirut", "America/Nuuk", "Asia/Gaza", "Europe/Dublin", "Pacific/Apia",
    ],
)  # fmt: skip
def test_the_clock_on_the_wall(name):
    # Half an hour in Lord Howe, midnight in Sao Paulo and Beirut, a day skipped in Apia.
    zone = zoneinfo.ZoneInfo(name)
    days = range(seconds(2009, 1, 1), seconds(2030, 1, 1), 86_400)
    changed = [day for day in days if wall(day, zone).utcoffset() != wall(day + 86_400, zone).utcoffset()]
    hours = [day + 1800 * i for day in changed for i in range(48)]
    changes = [hour for hour in hours if wall(hour, zone).utcoffset() != wall(hour + 1800, zone).utcoffset()]
    times = [change + around for change in changes for around in range(-5400, 9000, 1800)] + instants(200, 1850, 2400)
    fields = calendar_fields(torch.tensor(times), WHOLE, timezone=name)
    assert fields.tolist() == [numbers(wall(time, zone)) for time in times]
    coords = calendar_coords(torch.tensor(times) * 1000, FIELDS, timezone=zone, unit="ms")
    assert coords.tolist() == [turns(wall(time, zone)) for time in times]


@pytest.mark.parametrize(
    "date, hours",
    [((2024, 3, 30, 23), [0, 1, 3, 4, 5]), ((2024, 10, 26, 22), [0, 1, 2, 2, 3])],
    ids=["gap", "repeated"],
)
def test_summer_time_in_berlin(date, hours):
    times = seconds(*date) + 3600 * torch.arange(5)
    assert calendar_fields(times, ["hour_of_day"], timezone="Europe/Berlin")[:, 0].tolist() == hours
    shares = calendar_coords(times, ["fraction_of_day"], timezone="Europe/Berlin")[:, 0]
    assert shares.tolist() == [hour / 24 for hour in hours]  # noon is half a day, whatever its length
    assert time_coords(times)[:, 0].diff().tolist() == [3600] * 4  # elapsed time does not care
    assert calendar_fields(times, ["hour_of_day"])[:, 0].tolist() == [(date[3] + i) % 24 for i in range(5)]


@pytest.mark.parametrize(
    "zone, offset",
    [
        ("+05:30", 19_800),
        ("-0330", -12_600),
        ("+9", 32_400),
        ("UTC-08", -28_800),
        ("UTC", 0),
        ("Z", 0),
        ("+00:00:30", 30),
    ],
)
def test_fixed_offsets(zone, offset):
    times = torch.tensor(EDGES)
    assert torch.equal(calendar_fields(times, WHOLE, timezone=zone), calendar_fields(times + offset, WHOLE))
    if offset % 60 == 0:
        fixed = timezone(timedelta(seconds=offset))
        assert torch.equal(calendar_fields(times, WHOLE, timezone=fixed), calendar_fields(times + offset, WHOLE))


def test_missing_is_never_a_date():
    times = torch.tensor([[seconds(2024, 2, 29), NAT, 5], [NAT, NAT, seconds(1900, 1, 1)]])
    missing = times == NAT
    for zone in (None, "+05:30", "Europe/Berlin"):
        coords = calendar_coords(times, FIELDS, timezone=zone)
        assert torch.equal(coords.isnan(), missing[..., None].expand(2, 3, len(FIELDS)))
        assert torch.equal(coords[~missing], calendar_coords(times[~missing], FIELDS, timezone=zone))
    with pytest.raises(ValueError, match="3 missing of 6, which have no date; leave them out, or use calendar_coords"):
        calendar_fields(times, WHOLE)
    floats = times.double().masked_fill(missing, torch.nan)
    floats[0, 2] = torch.inf
    assert torch.equal(calendar_coords(floats, ["hour_of_day"])[..., 0].isnan(), missing | floats.isinf())


def test_floats_keep_their_fraction_and_pass_gradients_on():
    times = torch.tensor([[seconds(2024, 2, 29, 6) + 0.25, -0.5]], dtype=torch.float64, requires_grad=True)
    coords = calendar_coords(times, ["fraction_of_day", "hour_of_day", "fraction_of_year"])
    assert coords[0, :, 0].tolist() == [21_600.25 / 86_400, 86_399.5 / 86_400]
    assert coords[0, :, 1].tolist() == [6 / 24, 23 / 24]
    coords.sum().backward()
    rates = [1 / 86_400 + 1 / (366 * 86_400), 1 / 86_400 + 1 / (365 * 86_400)]
    assert times.grad is not None
    assert times.grad[0].tolist() == pytest.approx(rates, rel=1e-15)


@pytest.mark.parametrize("unit", PER_SECOND)
def test_floats_count_the_unit_too(unit):
    hour = 3600 * PER_SECOND[unit]
    ticks = torch.tensor([1.75, -0.25, hour - 0.5], dtype=torch.float64)
    shares = calendar_coords(ticks, ["fraction_of_hour"], unit=unit)[:, 0]
    assert shares.tolist() == [1.75 / hour, (hour - 0.25) / hour, (hour - 0.5) / hour]


def test_rows_of_a_batch_are_as_alone_and_the_input_stays():
    times = torch.tensor(EDGES[:20]).reshape(2, 5, 2)
    kept = times.clone()
    batch = calendar_coords(times, FIELDS, timezone="America/New_York")
    assert batch.shape == (2, 5, 2, len(FIELDS))
    for row in range(2):
        assert torch.equal(batch[row], calendar_coords(times[row], FIELDS, timezone="America/New_York"))
    turned = calendar_coords(times.transpose(0, 2), FIELDS, timezone="America/New_York")
    assert torch.equal(turned, batch.transpose(0, 2))
    assert torch.equal(times, kept)
    assert batch.is_contiguous()
    assert calendar_fields(times, WHOLE).is_contiguous()


def test_no_fields_and_no_timestamps():
    # A series without a meaningful calendar, of 5 kHz say, goes without.
    times = torch.arange(7) * 200
    assert calendar_coords(times, [], unit="us").shape == (7, 0)
    assert calendar_fields(times, [], unit="us").shape == (7, 0)
    assert time_coords(times, "us", per="ms")[:, 0].tolist() == pytest.approx([0.2 * i for i in range(7)])
    assert calendar_coords(times[:0], FIELDS).shape == (0, len(FIELDS))
    assert calendar_fields(times[:0], WHOLE, timezone="Europe/Berlin").shape == (0, len(WHOLE))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_the_default_dtype_and_autocast_change_nothing(dtype):
    times = torch.tensor(EDGES)
    expected = calendar_coords(times, FIELDS), calendar_fields(times, WHOLE)
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(dtype)
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(calendar_coords(times, FIELDS), expected[0])
            assert torch.equal(calendar_fields(times, WHOLE), expected[1])
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize(
    "unit, zone, backend",
    [("ns", "Europe/Berlin", "inductor"), ("s", None, "aot_eager"), ("us", timezone(timedelta(hours=-3)), "aot_eager")],
)
def test_compiled_in_one_graph(unit, zone, backend):
    torch._dynamo.reset()
    times = torch.tensor([[*EDGES[7:12], NAT], [*EDGES[12:17], NAT]]) * PER_SECOND[unit]
    times[:, -1] = NAT

    def both(times):
        coords = calendar_coords(times, FIELDS, unit=unit, timezone=zone)
        return coords, calendar_fields(times, WHOLE, unit=unit, timezone=zone)

    coords, fields = torch.compile(both, fullgraph=True, backend=backend)(times)
    assert torch.equal(coords[:, :-1], both(times[:, :-1])[0])
    assert torch.equal(fields[:, :-1], both(times[:, :-1])[1])
    assert coords[:, -1].isnan().all()
    assert (fields[:, -1] == -1).all()


def test_exported_and_on_the_meta_device():
    class Coords(torch.nn.Module):
        def forward(self, times):
            return calendar_coords(times, FIELDS, timezone="Australia/Lord_Howe")

    times = torch.tensor(EDGES).reshape(1, -1)
    exported = torch.export.export(Coords(), (times,)).module()
    assert torch.equal(exported(times + 99), Coords()(times + 99))
    meta = calendar_coords(times.to("meta"), FIELDS, timezone="Europe/Berlin")
    assert (meta.shape, meta.dtype, meta.device.type) == ((1, len(times[0]), len(FIELDS)), torch.float64, "meta")
    assert calendar_fields(times, WHOLE, device="meta").dtype == torch.int64


@pytest.mark.parametrize(
    "fields, timezone, error, message",
    [
        (["hour"], None, ValueError, "unknown calendar field 'hour'; did you mean .*'hour_of_day'"),
        (["day_of_weak"], None, ValueError, "did you mean 'day_of_week'"),
        ("hour_of_day", None, TypeError, "must be a list of names, got 'hour_of_day'"),
        ([3], None, TypeError, "calendar field must be text, got 3"),
        (["hour_of_day"], "Berlin", ValueError, "unknown timezone 'Berlin'; did you mean 'Europe/Berlin'"),
        (["hour_of_day"], "new york", ValueError, "did you mean 'America/New_York'"),
        (["hour_of_day"], "Europe/Berln", ValueError, "did you mean 'Europe/Berlin'"),
        (["hour_of_day"], "+25:00", ValueError, "less than a day from UTC, got '\\+25:00'"),
        (["hour_of_day"], 2, TypeError, "timezone must be a name, .*, got 2"),
    ],
)
def test_what_is_unknown_is_named(fields, timezone, error, message):
    with pytest.raises(error, match=message):
        calendar_coords(torch.arange(3), fields, timezone=timezone)


def test_shares_are_no_whole_numbers():
    with pytest.raises(ValueError, match="fraction_of_day is no whole number; calendar_coords has it"):
        calendar_fields(torch.arange(3), ["fraction_of_day"])
    with pytest.raises(ValueError, match=r"timestamps must be \(..., n\), got a single one"):
        calendar_fields(torch.tensor(3), WHOLE)


@pytest.mark.parametrize("floats", [False, True])
def test_many_timestamps_are_as_few(floats):
    # More than a block's worth, in which the processor works.
    times = torch.arange(3 * 33_000).reshape(3, 33_000) * 98_765 - 10**9
    times = times.double() + 0.25 if floats else times
    coords = calendar_coords(times, FIELDS, timezone="Europe/Berlin")
    fields = calendar_fields(times, WHOLE)
    assert coords.is_contiguous()
    for part in (slice(0, 100), slice(32_700, 32_800), slice(32_900, 33_000)):
        assert torch.equal(coords[:, part], calendar_coords(times[:, part], FIELDS, timezone="Europe/Berlin"))
        assert torch.equal(fields[:, part], calendar_fields(times[:, part], WHOLE))
