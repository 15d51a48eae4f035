"""How far the clock on the wall is ahead of UTC: fixed offsets, and the transitions of the world's time zones.

A zone's transitions are read from the zone data of the system or of the package ``tzdata``, where `zoneinfo` finds
them too. A file lists the transitions of the past; of the future it has a rule, which is written out for 400 years,
after which the calendar, and with it the rule, repeats.

Reference:
    RFC 8536 (the format of zone files) and POSIX.1-2017, base definitions, sec. 8.3 (the rule).
    https://www.rfc-editor.org/rfc/rfc8536
"""

import bisect
import importlib.resources
import re
import struct
import zoneinfo
from datetime import timedelta, tzinfo
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from .names import unknown
from .timestamps import constant

DAY = 86_400
CYCLE = 146_097 * DAY  # seconds in 400 years
FIXED = re.compile(r"(?:UTC)?([+-])(\d\d?)(?::?(\d\d))?(?::?(\d\d))?")


class Zone(NamedTuple):
    """Offsets from UTC over time.

    Args:
        starts: When each offset but the first begins, in ticks since 1970 UTC, ascending.
        offsets: The offsets in seconds, one more than ``starts``.
        cycle: Tick where 400 years begin that repeat for ever after; None where the last offset lasts.
    """

    starts: tuple[int, ...]
    offsets: tuple[int, ...]
    cycle: int | None = None


@constant
def read_zone(name: str | tzinfo, per_second: int = 1) -> Zone:
    """A zone by its IANA name, such as "Europe/Berlin", as a fixed offset "+05:30", or of a `datetime.tzinfo`.

    Args:
        name: Name, offset or zone.
        per_second: Ticks in a second.

    Raises:
        ValueError: If there is no such zone; the closest are suggested.
        TypeError: If it is neither a name nor a zone that has a name or a fixed offset.
    """
    if isinstance(name, tzinfo):
        name = _name_of(name)
    if not isinstance(name, str):
        raise TypeError(f"timezone must be a name, an offset such as '+05:30' or a tzinfo, got {name!r}")
    fixed = FIXED.fullmatch(name)
    if name in ("UTC", "Z") or fixed:
        return Zone((), (_fixed_offset(name, fixed) if fixed else 0,))
    try:
        zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ValueError(_unknown_zone(name)) from error
    return zone_in_ticks(read_zone_data(_zone_file(name)), per_second)


def offset_at(zone: Zone, ticks: Int[Tensor, "*shape"], per_second: int = 1) -> Int[Tensor, "*shape"] | int:
    """Seconds by which the clock on the wall is ahead of UTC at instants in ticks since 1970 UTC."""
    if not zone.starts:
        return zone.offsets[0]
    if zone.cycle is not None:
        later = (ticks - zone.cycle).remainder(CYCLE * per_second) + zone.cycle
        ticks = later.where(ticks > zone.cycle, ticks)
    starts = torch.tensor(zone.starts, dtype=torch.int64, device=ticks.device)
    offsets = torch.tensor(zone.offsets, dtype=torch.int64, device=ticks.device)
    return offsets[torch.bucketize(ticks.contiguous(), starts, right=True)]


def zone_in_ticks(zone: Zone, per_second: int) -> Zone:
    """A zone that counts seconds in ticks; what int64 does not reach is left out: it ends in 2262 in nanoseconds."""
    reach = 2**63 // per_second
    first, last = bisect.bisect_left(zone.starts, -reach), bisect.bisect_right(zone.starts, reach)
    starts = tuple(start * per_second for start in zone.starts[first:last])
    endless = zone.cycle is not None and zone.cycle + CYCLE < reach
    cycle = zone.cycle * per_second if zone.cycle is not None and endless else None
    return Zone(starts, zone.offsets[first : last + 1], cycle)


def _name_of(zone: tzinfo) -> str:
    """What `read_zone` reads the same zone from."""
    name = getattr(zone, "key", None) or getattr(zone, "zone", None)  # of zoneinfo and of pytz
    if isinstance(name, str):
        return name
    offset = zone.utcoffset(None)
    if offset is None:
        raise TypeError(f"timezone must have a name or a fixed offset, got {zone!r}; give its IANA name as text")
    sign = "-" if offset < timedelta() else "+"
    minutes, seconds = divmod(round(abs(offset).total_seconds()), 60)
    return f"{sign}{minutes // 60:02}:{minutes % 60:02}:{seconds:02}"


def _fixed_offset(name: str, match: re.Match) -> int:
    hours, minutes, seconds = (int(part or 0) for part in match.groups()[1:])
    if hours > 23 or minutes > 59 or seconds > 59:
        raise ValueError(f"timezone must be less than a day from UTC, got {name!r}")
    return (1 if match[1] == "+" else -1) * (3600 * hours + 60 * minutes + seconds)


def _unknown_zone(name: str) -> str:
    """The message that a zone is not known, with those that look like it or end in it."""
    zones = sorted(zoneinfo.available_timezones())
    place = name.strip().replace(" ", "_").rpartition("/")[2].lower()
    ends = [zone for zone in zones if zone.rpartition("/")[2].lower() == place]  # the city alone
    return unknown("timezone", name, ends or zones, "IANA names and offsets such as '+05:30'", (ends or [name])[0])


def _zone_file(name: str) -> bytes:
    """The zone's data, looked for where `zoneinfo` looks."""
    for folder in zoneinfo.TZPATH:
        path = Path(folder, name)
        if path.is_file():
            return path.read_bytes()
    return importlib.resources.files("tzdata").joinpath("zoneinfo", *name.split("/")).read_bytes()


def read_zone_data(data: bytes) -> Zone:
    """Reads the 64-bit part of a zone file and its rule."""
    sizes = struct.unpack(">6l", data[20:44])
    body = _body_size(sizes, 4)
    if data[:4] != b"TZif" or data[4:5] < b"2":
        raise ValueError("the system's zone files are of version 1 and end in 2037; install a newer tzdata")
    start = 44 + body
    sizes = struct.unpack(">6l", data[start + 20 : start + 44])
    _, _, _, num_times, num_types, _ = sizes
    times, kinds, types = start + 44, start + 44 + 8 * num_times, start + 44 + 9 * num_times
    starts = struct.unpack(f">{num_times}q", data[times:kinds])
    offset_of = [offset for offset, _, _ in struct.iter_unpack(">lbb", data[types : types + 6 * num_types])]
    offsets = [offset_of[0], *(offset_of[kind] for kind in data[kinds:types])]
    rule = data[start + 44 + _body_size(sizes, 8) :].strip(b"\n").decode()
    return _with_rule(starts, offsets, rule)


def _body_size(sizes: tuple[int, ...], width: int) -> int:
    """Bytes after a header whose times take ``width`` bytes each."""
    num_utc, num_standard, num_leaps, num_times, num_types, num_chars = sizes
    return num_times * (width + 1) + num_types * 6 + num_chars + num_leaps * (width + 4) + num_standard + num_utc


OFFSET = r"([+-]?\d+(?::\d+){0,2})"
NAME = r"(?:[A-Za-z]+|<[^>]+>)"
RULE = re.compile(rf"{NAME}{OFFSET}(?:{NAME}{OFFSET}?,([^,/]+)(?:/{OFFSET})?,([^,/]+)(?:/{OFFSET})?)?")


def _with_rule(starts: tuple[int, ...], offsets: list[int], rule: str) -> Zone:
    """The transitions of the past, and 400 years of those that a rule such as ``CET-1CEST,M3.5.0,M10.5.0/3`` makes."""
    match = RULE.fullmatch(rule)
    if rule and match is None:
        raise ValueError(f"the zone's rule {rule!r} is none that POSIX has")
    if match is None or match[3] is None:
        return Zone(starts, tuple(offsets))
    standard = -_seconds(match[1])
    summer = -_seconds(match[2]) if match[2] else standard + 3600
    changes = (
        (_days_of_rule(match[3]), _seconds(match[4] or "2") - standard, summer),
        (_days_of_rule(match[5]), _seconds(match[6] or "2") - summer, standard),
    )
    past = starts[-1] if starts else 0
    year = 1970 + past // (CYCLE // 400)  # that of the last transition, or one beside it
    ruled = []
    for number in range(year - 1, year + 403):
        new_year, next_year = _new_year(number), _new_year(number + 1)
        for days, time, offset in changes:
            ruled.append(((new_year + days[next_year - new_year - 365][new_year % 7]) * DAY + time, offset))
    ruled.sort()
    first = bisect.bisect_right(ruled, past, key=lambda change: change[0])
    more, after = zip(*ruled[first:], strict=True)
    # The rule holds from the last transition on, whatever that one says.
    return Zone((*starts, *more), (*offsets[:-1], ruled[first - 1][1], *after), _new_year(year + 2) * DAY)


def _new_year(year: int) -> int:
    """Days from 1970-01-01 to 1 January of a year."""
    past = year - 1
    return 365 * past + past // 4 - past // 100 + past // 400 - 719_162


def _days_of_rule(rule: str) -> list[list[int]]:
    """Day of the year, from 0, that a rule names, in common and leap years by the day of 1970's week they begin on.

    ``M3.5.0`` is the last Sunday of March, ``J60`` is 1 March in every year, ``59`` counts 29 February.
    """
    if rule[0] != "M":
        day = int(rule.lstrip("J")) - (rule[0] == "J")
        return [[day] * 7, [day + (rule[0] == "J" and day > 58)] * 7]
    month, week, weekday = map(int, rule[1:].split("."))
    days = []
    for leap in (0, 1):
        lengths = [31, 28 + leap, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
        before, length = sum(lengths[: month - 1]), lengths[month - 1]
        # Day 0 of 1970 was a Thursday, which the rule counts as 4.
        dates = [(weekday - 4 - begin - before) % 7 + 7 * (week - 1) for begin in range(7)]
        days.append([before + (date if date < length else date - 7) for date in dates])
    return days


def _seconds(text: str) -> int:
    """Of ``[+-]hh[:mm[:ss]]``."""
    sign = -1 if text[0] == "-" else 1
    parts = [*map(int, text.lstrip("+-").split(":")), 0, 0]
    return sign * (3600 * parts[0] + 60 * parts[1] + parts[2])
