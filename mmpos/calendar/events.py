"""Distances to events: holidays, releases, storms, whatever a table of the user names."""

from collections.abc import Mapping
from datetime import date, tzinfo
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .names import check_name
from .timestamps import NANOSECONDS, NAT, UNITS, Instants, check_shape, count_missing, read_timestamps, values_known
from .zones import offset_at, read_zone

LATEST = 2**63 - 1


def event_coords(
    timestamps: Any,
    events: Mapping[str, Any],
    *,
    unit: str = "s",
    per: str = "d",
    timezone: str | tzinfo | None = None,
    device: torch.device | str | None = None,
) -> Float[Tensor, "*batch n kinds"]:
    """Time since the nearest event of each kind, negative before it: ``(timestamp - event) / per``, exact in integers.

    Halfway between two events it is the time since the earlier one. `RadialBasis` makes features of such distances.

    Args:
        timestamps: Instants ``(..., n)`` of any type that `time_coords` takes.
        events: For each kind its events: dates, datetimes, numpy's datetime64, pandas' index or series, a tensor or
            numbers in ``unit`` since 1970 UTC, whole ones. Compiled code takes tensors.
        unit: What bare numbers count: "s", "ms", "us" or "ns".
        per: Unit of the result: "ns", "us", "ms", "s", "min", "h", "d" or "w".
        timezone: The clock on the wall on which time is taken, as in `calendar_fields`, so that a day is a day where
            summer time begins, too. Events without a zone, such as dates, which begin at midnight, are written on it;
            events with a zone and bare numbers are instants. None: all is in UTC.
        device: Where the result lies; a tensor's own device unless given.

    Returns:
        Distances in float64, a column for each kind in the order of ``events``. What is missing (NaT, the least int64,
        or NaN) is NaN.

    Raises:
        ValueError: If there are no events, one of them is missing or, as a number, not whole, a unit or timezone is
            unknown, or int64 cannot hold instants in the finest unit that they need.
        TypeError: If ``events`` is no mapping, or timestamps or events are bool, half precision, text or durations.

    Example:
        >>> from datetime import date
        >>> holidays = {"christmas": [date(2023, 12, 25), date(2024, 12, 25)], "new year": [date(2024, 1, 1)]}
        >>> event_coords([date(2023, 12, 24), date(2024, 12, 31)], holidays)
        tensor([[ -1.,  -8.],
                [  6., 365.]], dtype=torch.float64)

    Reference:
        Such distances in GluonTS: Alexandrov et al., 2019, and its released code. https://arxiv.org/abs/1906.05264
    """
    check_name("unit", per, NANOSECONDS)
    instants = read_timestamps(timestamps, unit, device)
    check_shape(instants)
    tables = _read_tables(events, unit, timezone)
    common = max(instants.unit, *(table.unit for table in tables.values()), key=UNITS.index)
    instants = _in_unit(_on_the_wall(instants, timezone), common, "timestamps")
    columns = []
    for name, table in tables.items():
        ticks = _in_unit(table, common, f"events {name!r}").ticks.to(instants.ticks.device).sort().values
        columns.append(_since_nearest(instants, ticks))
    tick, size = NANOSECONDS[common], NANOSECONDS[per]
    since = torch.stack(columns, dim=-1)
    return since * (tick // size) if tick > size else since / (size // tick)


def _read_tables(events: Mapping[str, Any], unit: str, timezone: str | tzinfo | None) -> dict[str, Instants]:
    """The events of each kind in ticks on the clock on the wall, in the coarsest unit that holds them."""
    if not isinstance(events, Mapping):
        raise TypeError(f"events must be a mapping from names to instants, got {type(events).__name__}")
    if not events:
        raise ValueError("events must have a kind or more, got none")
    tables = {}
    for name, times in events.items():
        table = read_timestamps(times, unit, name=f"events {name!r}")
        table = table._replace(ticks=table.ticks.flatten())
        if not len(table.ticks):
            raise ValueError(f"events {name!r} must have one event or more, got none")
        missing = count_missing(table) if values_known(table.ticks) else 0
        if missing:
            raise ValueError(f"events {name!r} has {missing} missing of {len(table.ticks)}; leave them out")
        if table.part is not None and values_known(table.part) and table.part.any():
            raise ValueError(f"events {name!r} must be whole {table.unit}; give them in a finer unit")
        table = table._replace(part=None)
        tables[name] = _in_coarsest_unit(table if _shows_a_clock(times) else _on_the_wall(table, timezone))
    return tables


def _shows_a_clock(times: Any) -> bool:
    """Whether times are dates or readings of a clock without a zone, and neither numbers nor with a zone."""
    if isinstance(times, Tensor):
        return False
    dtype = getattr(times, "dtype", None)
    if dtype is not None and dtype.kind != "O":
        return dtype.kind == "M" and getattr(dtype, "tz", None) is None
    if isinstance(times, date):
        return getattr(times, "tzinfo", None) is None
    return not isinstance(times, int | float) and any(map(_shows_a_clock, times))


def _on_the_wall(instants: Instants, timezone: str | tzinfo | None) -> Instants:
    """What the clock of the zone shows, in ticks since its own 1970-01-01 00:00."""
    if timezone is None:
        return instants
    ticks, per_second = instants.ticks, instants.per_second
    ahead = offset_at(read_zone(timezone, per_second), ticks, per_second) * per_second
    shown = ticks + ahead
    # A sum overflows where its operands have the same sign and it has the other.
    held = (ticks != NAT) & (((ticks ^ shown) & (ahead ^ shown)) >= 0)
    return instants._replace(ticks=shown.where(held, NAT))


def _in_coarsest_unit(table: Instants) -> Instants:
    """The same in seconds if they are whole seconds, and so on; where values cannot be looked at, as they are."""
    if values_known(table.ticks):
        for unit in UNITS[: UNITS.index(table.unit)]:
            ratio = NANOSECONDS[unit] // NANOSECONDS[table.unit]
            if not (table.ticks % ratio).any():
                return Instants(table.ticks // ratio, None, unit)
    return table


def _in_unit(instants: Instants, unit: str, name: str) -> Instants:
    """The same in a unit that is as fine or finer."""
    ratio = NANOSECONDS[instants.unit] // NANOSECONDS[unit]
    if ratio == 1:
        return instants
    ticks, part, limit = instants.ticks, instants.part, LATEST // ratio - 1
    held = (ticks >= -limit) & (ticks <= limit)
    if values_known(ticks) and not (held | (ticks == NAT)).all():
        raise ValueError(f"{name} must fit into int64 {unit}, the finest unit of timestamps and events")
    ticks = ticks * ratio
    if part is not None:
        part = part * ratio
        whole = part.detach().floor()
        ticks, part = ticks + whole.to(torch.int64), part - whole
    return Instants(ticks.where(held, NAT), part, unit)


def _since_nearest(instants: Instants, events: Int[Tensor, " events"]) -> Float[Tensor, "*batch n"]:
    """Ticks since the nearest of sorted events, negative where it is still to come."""
    ticks, part = instants.ticks, instants.part
    number = torch.searchsorted(events, ticks.contiguous(), right=True)  # events up to the instant
    last, following = events[(number - 1).clamp(min=0)], events[number.clamp(max=len(events) - 1)]
    past, ahead = _gap(ticks, last), _gap(following, ticks)
    later = past - ahead if part is None else (past - ahead).double() + 2 * part.detach()
    behind = ((later <= 0) & (number > 0)) | (number == len(events))
    nearest = last.where(behind, following)
    whole = past.where(behind, -ahead)
    # What int64 does not hold, 292 years in nanoseconds, is subtracted in float64.
    since = whole.double().where(whole.abs() < LATEST, ticks.double() - nearest.double())
    since = since if part is None else since + part
    return since.masked_fill(ticks == NAT, torch.nan)


def _gap(later: Int[Tensor, "*shape"], earlier: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
    """``later - earlier``, which is not negative; the largest int64 where it would overflow."""
    gap = later - earlier
    return gap.where(gap >= 0, LATEST)
