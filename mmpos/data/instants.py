"""Timestamps as text: to exact int64 ticks since 1970 UTC, on the clock of any zone, and back."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from ..calendar.timestamps import NANOSECONDS
from ..calendar.zones import Zone, offset_at, read_zone

DAY = 86_400
PATTERN = re.compile(
    r"\s*(\d{4})([-/])(\d\d?)(?:\2(\d\d?)(?:(?:T|\s+)(\d\d?):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?)?)?"
    r"\s*(?:(Z)|([+-])(\d\d)(?::?(\d\d))?)?\s*",
    re.ASCII,
)
UNIT_OF_DIGITS = {0: "s", 3: "ms", 6: "us", 9: "ns"}


def is_timestamp(text: str) -> bool:
    """Whether a text has the form of a timestamp: year, month, day and time in this order."""
    return PATTERN.fullmatch(text) is not None


def parse_timestamps(texts: Sequence[str]) -> tuple[Int64[Tensor, " n"], str, bool]:
    """Ticks since 1970, their unit, and whether the texts have a zone.

    The year comes first, as in ISO 8601: "2016-07-01 02:00:00", "2016-07-01T02:00:00.250+02:00", "2016/7/1 2:00" or
    "2016-07"; what is left out is 0, or the first of the month. With offsets the ticks are UTC. Without they are what
    the clock showed, counted as if it had been UTC's. The unit is the coarsest of s, ms, us and ns that holds them all.

    Raises:
        ValueError: If a text has another form or names no day or time there is, some have an offset and some have
            none, or int64 cannot hold one. ``error.args[1]``, where there is one, is the number of the text.
    """
    matches = [PATTERN.fullmatch(text) for text in texts]
    if None in matches:
        row = matches.index(None)
        raise ValueError(f"{texts[row]!r} is no timestamp such as '2016-07-01 02:00:00'", row)
    parts = [match.groups() for match in matches if match]
    seconds = _seconds([_normal(part) for part in parts], texts)
    aware = [part[8] is not None or part[9] is not None for part in parts]
    if 0 < sum(aware) < len(texts):
        row = aware.index(not aware[0])
        raise ValueError(
            f"zones are mixed: {sum(aware)} of {len(texts)} timestamps have an offset from UTC and the others have "
            f"none, such as {texts[row if aware[0] else 0]!r}; give all of them one, or none"
        )
    fractions = [(part[7] or "").rstrip("0") for part in parts]
    digits = -(-max(map(len, fractions), default=0) // 3) * 3
    if digits and np.abs(seconds).max() >= 2**63 // 10**digits - 2 * DAY:
        raise ValueError(f"timestamps must fit into int64 {UNIT_OF_DIGITS[digits]} since 1970")
    if any(aware):
        seconds = seconds - np.array([_offset(*part[9:]) for part in parts])
    ticks = seconds * 10**digits
    if digits:
        ticks = ticks + np.array([int(fraction.ljust(digits, "0")) for fraction in fractions])
    return torch.from_numpy(ticks), UNIT_OF_DIGITS[digits], any(aware)


def _normal(part: tuple[str, ...]) -> str:
    """As numpy reads it, without zone and fraction."""
    year, _, month, day, hour, minute, second = part[:7]
    return f"{year}-{month:0>2}-{day or '1':0>2}T{hour or '0':0>2}:{minute or '00'}:{second or '00'}"


def _seconds(normal: list[str], texts: Sequence[str]) -> Any:
    try:
        return np.array(normal, dtype="datetime64[s]").astype(np.int64)
    except ValueError:
        for row, text in enumerate(normal):
            try:
                np.datetime64(text, "s")
            except ValueError as error:
                raise ValueError(f"{texts[row]!r} names no day or time that there is", row) from error
        raise


def _offset(sign: str | None, hours: str | None, minutes: str | None) -> int:
    return (-1 if sign == "-" else 1) * (3600 * int(hours or 0) + 60 * int(minutes or 0))


def from_wall(wall: Int64[Tensor, " n"], timezone: str, unit: str) -> tuple[Int64[Tensor, " n"], Bool[Tensor, " n"]]:
    """UTC of what the clock on the wall showed, in order, and where it never showed that.

    A reading that comes twice, when the clock goes back, is the first of the two, unless that is not later than the
    instant in front of it: so a column in order of time gets both halves of the repeated hour right. A reading that is
    skipped, when the clock goes forward, is marked, and is counted on with the clock before: 02:30 becomes 03:30.

    Example:
        >>> wall, _, _ = parse_timestamps(["2024-10-27 02:00", "2024-10-27 02:30", "2024-10-27 02:00"])
        >>> from_wall(wall, "Europe/Berlin", "s")[0].diff()
        tensor([1800, 1800])
    """
    per_second = NANOSECONDS["s"] // NANOSECONDS[unit]
    zone = read_zone(timezone, per_second)
    before, after = (_ahead(zone, wall + sign * DAY * per_second, per_second) for sign in (-1, 1))
    first, second = wall - before, wall - after
    first_is, second_is = (
        _ahead(zone, instant, per_second) == offset for instant, offset in ((first, before), (second, after))
    )
    utc = torch.where(first_is | ~second_is, first, second)
    for row in (first_is & second_is & (before != after)).nonzero()[:, 0].tolist():
        if row and utc[row] <= utc[row - 1]:
            utc[row] = second[row]
    return utc, ~first_is & ~second_is


def to_wall(ticks: Int64[Tensor, " n"], timezone: str | None, unit: str) -> Int64[Tensor, " n"]:
    """What the clock on the wall shows at instants, counted as if it were UTC's."""
    if timezone is None:
        return ticks
    per_second = NANOSECONDS["s"] // NANOSECONDS[unit]
    return ticks + _ahead(read_zone(timezone, per_second), ticks, per_second)


def _ahead(zone: Zone, ticks: Int64[Tensor, " n"], per_second: int) -> Int64[Tensor, " n"]:
    """Ticks by which the clock on the wall is ahead of UTC."""
    return torch.as_tensor(offset_at(zone, ticks, per_second)).expand_as(ticks) * per_second


def show_timestamps(
    ticks: Int64[Tensor, " n"], unit: str, timezone: str | None = None, offsets: bool = False
) -> list[str]:
    """Timestamps as `parse_timestamps` reads them, on the clock of the zone, or of UTC without one.

    Args:
        ticks: Instants in ticks since 1970 UTC.
        unit: What a tick is.
        timezone: Whose clock to show.
        offsets: Whether to write how far it is ahead of UTC, without which a repeated hour is ambiguous.
    """
    wall = to_wall(ticks, timezone, unit)
    texts = [text.replace("T", " ") for text in np.datetime_as_string(wall.numpy().view(f"datetime64[{unit}]"))]
    if not offsets:
        return texts
    per_minute = NANOSECONDS["min"] // NANOSECONDS[unit]
    ahead = ((wall - ticks) // per_minute).tolist()
    return [
        f"{text}{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02}:{abs(minutes) % 60:02}"
        for text, minutes in zip(texts, ahead, strict=True)
    ]


def in_unit(ticks: Int64[Tensor, " n"], unit: str, other: str) -> Int64[Tensor, " n"]:
    """The same instants in ticks of another unit.

    Raises:
        ValueError: If that is too coarse for one of them.
    """
    own, new = NANOSECONDS[unit], NANOSECONDS[other]
    if own >= new:
        return ticks * (own // new)
    if (ticks % (new // own)).any():
        raise ValueError(f"timestamps must be whole {other}, as those of the training data are; these count {unit}")
    return ticks // (new // own)
