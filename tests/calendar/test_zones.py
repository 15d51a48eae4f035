"""Zones against the standard library's zoneinfo, which reads the same files and tells one offset at a time."""

import datetime as dt
import io
import random
import struct
import zoneinfo

import pytest
import torch

from mmpos.calendar import calendar_fields
from mmpos.calendar.zones import Zone, offset_at, read_zone, read_zone_data, zone_in_ticks
from tests.calendar.reference import PER_SECOND, seconds, wall

NAMES = sorted(zoneinfo.available_timezones())
CYCLE = 146_097 * 86_400


def offsets(zone: dt.tzinfo, times: list[int]) -> list[int]:
    found = [wall(time, zone).utcoffset() for time in times]
    return [offset // dt.timedelta(seconds=1) for offset in found if offset is not None]


@pytest.mark.parametrize("part", range(8))
def test_every_zone_of_the_world(part):
    random.seed(part)
    for name in NAMES[part::8]:
        zone = read_zone(name)
        near = [start + step for start in zone.starts[:300:3] + zone.starts[-800::80] for step in (-1, 0, 1)]
        times = [time for time in near if abs(time) < 10**11 // 2]
        times += [random.randint(seconds(1800, 1, 1), seconds(2600, 1, 1)) for _ in range(40)]
        found = offset_at(zone, torch.tensor(times))
        found = found.tolist() if isinstance(found, torch.Tensor) else [found] * len(times)
        assert found == offsets(zoneinfo.ZoneInfo(name), times), name


@pytest.mark.parametrize("unit", PER_SECOND)
def test_every_tick_of_a_change(unit):
    per_second, change = PER_SECOND[unit], seconds(2024, 3, 31, 1)
    ticks = change * per_second + torch.tensor([[-per_second, -1], [0, 1]])
    zone = read_zone("Europe/Berlin", per_second)
    assert offset_at(zone, ticks, per_second).tolist() == [[3600, 3600], [7200, 7200]]
    fields = calendar_fields(ticks, ["hour_of_day"], unit=unit, timezone="Europe/Berlin")
    assert fields[..., 0].tolist() == [[1, 1], [3, 3]]


def test_a_rule_goes_on_after_its_table_ends():
    zone, times = read_zone("Europe/Berlin"), [seconds(2500 + i, 3, 31, 12) + 3600 * i for i in range(60)]
    expected = offsets(zoneinfo.ZoneInfo("Europe/Berlin"), times)
    assert {*expected} == {3600, 7200} or expected.count(7200) > 50
    for cycles in (0, 1, 1000, 700_000_000):
        later = torch.tensor([time + cycles * CYCLE for time in times])
        assert offset_at(zone, later).tolist() == expected


def test_changes_that_nanoseconds_do_not_reach():
    # Some zone files begin with the big bang.
    zone = zone_in_ticks(Zone((-(2**59), -(10**10), 0, 10**10), (1, 2, 3, 4, 5)), 10**9)
    ticks = torch.tensor([-(2**63) + 1, -1, 0, 2**63 - 1])
    assert offset_at(zone, ticks, 10**9).tolist() == [3, 3, 4, 4]


def zone_file(times: list[int], kinds: list[int], types: list[tuple[int, int]], rule: str) -> bytes:
    """A zone file of version 2 with 64-bit transitions only."""
    head = b"TZif2" + bytes(15)
    old = head + struct.pack(">6l", 0, 0, 0, 0, 1, 4) + struct.pack(">lbb", 0, 0, 0) + b"AAA\0"
    body = struct.pack(f">{len(times)}q", *times) + bytes(kinds)
    body += b"".join(struct.pack(">lbb", offset, summer, 0) for offset, summer in types) + b"AAA\0"
    return old + head + struct.pack(">6l", 0, 0, 0, len(times), len(types), 4) + body + b"\n" + rule.encode() + b"\n"


@pytest.mark.parametrize(
    "rule",
    [
        "AAA-1BBB,J60,J300/3",
        "AAA3BBB2:30,M2.1.3/-5,M11.5.6/100",
        "AAA10:15:30BBB,M9.5.0/2:30,M4.1.0",
        "<+0330>-3:30<+0430>,J79/24,J263/24",
        "AAA5",
        "",
    ],
)
def test_rules_of_every_form(rule):
    standard = {"AAA-1BBB": 3600, "AAA3BBB2": -10_800, "AAA10:15": -36_930, "<+0330>-": 12_600, "AAA5": -18_000}
    types = [(7 * 60, 0), (standard.get(rule[:8], 3600), 0)]
    data = zone_file([seconds(1995, 5, 3)], [1], types, rule)
    random.seed(0)
    times = [random.randint(seconds(1990, 1, 1), seconds(2450, 1, 1)) for _ in range(3000)]
    zone = read_zone_data(data)
    assert offset_at(zone, torch.tensor(times)).tolist() == offsets(
        zoneinfo.ZoneInfo.from_file(io.BytesIO(data)), times
    )


def test_a_rule_that_counts_leap_days():
    # POSIX counts days from 0; zoneinfo, up to Python 3.11 at least, from 1. So the dates stand here.
    zone = read_zone_data(zone_file([seconds(1995, 1, 1)], [0], [(3600, 0)], "AAA-1BBB,59/1,299/3:30"))
    for spring, autumn in [
        ((2001, 3, 1), (2001, 10, 27)),
        ((2004, 2, 29), (2004, 10, 26)),
        ((2100, 3, 1), (2100, 10, 27)),
    ]:
        changes = torch.tensor([seconds(*spring), seconds(*autumn, 1, 30)])
        assert offset_at(zone, changes).tolist() == [7200, 3600]
        assert offset_at(zone, changes - 1).tolist() == [3600, 7200]


def test_files_that_cannot_be_read():
    data = zone_file([0], [0], [(0, 0)], "A")
    with pytest.raises(ValueError, match="the zone's rule 'A' is none that POSIX has"):
        read_zone_data(data)
    with pytest.raises(ValueError, match="of version 1"):
        read_zone_data(data.replace(b"TZif2", b"TZif\0"))


def test_zones_as_objects():
    berlin = read_zone("Europe/Berlin")
    assert read_zone(zoneinfo.ZoneInfo("Europe/Berlin")) == berlin

    class Named(dt.tzinfo):
        zone = "Europe/Berlin"  # as pytz has it

    class Nameless(dt.tzinfo):
        def utcoffset(self, dt):
            return None

    assert read_zone(Named()) == berlin
    for offset in (dt.timedelta(hours=-3, minutes=-30), dt.timedelta(hours=14), dt.timedelta(seconds=-30)):
        assert read_zone(dt.timezone(offset)).offsets == (offset // dt.timedelta(seconds=1),)
    with pytest.raises(TypeError, match="timezone must have a name or a fixed offset"):
        read_zone(Nameless())


@pytest.mark.parametrize("name", ["", "Europe", "../UTC", "Europe/Berlin ", "+1:2:3:4", "GMT+25", "utc+1x"])
def test_no_such_zone(name):
    with pytest.raises(ValueError, match="unknown timezone"):
        read_zone(name)
