"""Elapsed time as a coordinate."""

from typing import Any

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from ..arguments import fits
from .names import check_name
from .timestamps import NANOSECONDS, NAT, Instants, check_shape, count_missing, read_timestamps, values_known


def time_coords(
    timestamps: Any, unit: str = "s", *, origin: Any = None, per: str = "s", device: torch.device | str | None = None
) -> Shaped[Tensor, "*batch n 1"]:
    """Physical time since an origin: ``(timestamps - origin) / per``, subtracted in integers before any float.

    The origin is the same for every window, so an instant has the same coordinate in all of them. The clock on the
    wall plays no part: what is an hour later is an hour further on, over a change to summer time too.

    Args:
        timestamps: Instants ``(..., n)``: integers or floats (float64, or float32 below 2^24) in ``unit`` since 1970
            UTC, as a tensor, an array or a list; numpy's datetime64 of any unit; pandas' DatetimeIndex or Series;
            datetimes of Python, numpy or pandas in a list. With a zone they become UTC; without one they are UTC.
        unit: What bare numbers count: "s", "ms", "us" or "ns".
        origin: Instant of coordinate 0, of any of those types; a tensor or an array may have one for each row. The
            start of 1970 unless given.
        per: Unit of the result: "ns", "us", "ms", "s", "min", "h", "d" or "w".
        device: Where the result lies; a tensor's own device unless given.

    Returns:
        int64 if the timestamps count a unit of which ``per`` is a whole part (seconds per "s" or "ms", not per "min"),
        and float64 otherwise and for floats. So the dtype depends on units, never on values. What is missing (NaT, the
        least int64, or NaN) is NaN; int64 has none, so there it is an error, and stays the least int64 where values
        cannot be looked at, as under compile.

    Raises:
        ValueError: If a unit is unknown, int64 cannot hold the result, or the origin is missing, does not fit the rows
            or, for int64, lies between two units.
        TypeError: If timestamps or origin are bool, half precision, text or durations.

    Example:
        >>> hours = time_coords(torch.tensor([1711843200, 1711846800, 1711850400]), origin=1711843200, per="h")
        >>> hours.shape, hours[:, 0]
        (torch.Size([3, 1]), tensor([0., 1., 2.], dtype=torch.float64))
        >>> time_coords(torch.tensor([1711843200, 1711846800]))[:, 0]
        tensor([1711843200, 1711846800])
    """
    check_name("unit", per, NANOSECONDS)
    instants = read_timestamps(timestamps, unit, device)
    check_shape(instants)
    start = None if origin is None else _read_origin(origin, unit, instants)
    floats = instants.part is not None or (start is not None and start.part is not None)
    if start is not None:
        start = _in_ticks_of(start, instants, origin)
    since, part, held = _since(instants, start)
    tick, size = NANOSECONDS[instants.unit], NANOSECONDS[per]
    if tick % size == 0 and not floats:
        if part is not None and values_known(part) and part.any():
            raise ValueError(f"origin must be a whole number of {instants.unit}, as the timestamps are, got {origin!r}")
        return _whole_units(instants, since, held, tick // size, per)[..., None]
    elapsed = since.double() if part is None else since.double() + part
    elapsed = elapsed * (tick // size) if tick > size else elapsed / (size // tick)
    return elapsed.masked_fill(~held, torch.nan)[..., None]


def _read_origin(origin: Any, unit: str, instants: Instants) -> Instants:
    start = read_timestamps(origin, unit, name="origin")
    shape, rows = start.ticks.shape, instants.ticks.shape
    if not fits(shape, rows):
        raise ValueError(f"origin must be one instant or one for each row of {tuple(rows)}, got shape {tuple(shape)}")
    if values_known(start.ticks) and count_missing(start):
        raise ValueError(f"origin must not be missing, got {origin!r}")
    return start


def _in_ticks_of(start: Instants, instants: Instants, origin: Any) -> Instants:
    """The origin in ticks of the instants' unit, with a fraction if a tick of its own is finer."""
    ticks, part = start.ticks, start.part
    own, other = NANOSECONDS[start.unit], NANOSECONDS[instants.unit]
    if own > other:
        factor = own // other
        limit = (2**63 - 1) // factor
        inside = (ticks >= -limit) & (ticks <= limit)
        if values_known(ticks) and not inside.all():
            raise ValueError(f"origin must fit into int64 {instants.unit}, the unit of the timestamps, got {origin!r}")
        ticks, part = (ticks * factor).where(inside, NAT), None if part is None else part * factor
    elif own < other:
        factor = other // own
        whole = ticks.div(factor, rounding_mode="floor")
        rest = (ticks - whole * factor).double()
        ticks, part = whole.where(ticks != NAT, NAT), (rest if part is None else rest + part) / factor
    device = instants.ticks.device
    return Instants(ticks.to(device), None if part is None else part.to(device), instants.unit)


def _since(
    instants: Instants, start: Instants | None
) -> tuple[Int[Tensor, "*batch n"], Tensor | None, Bool[Tensor, "*batch n"]]:
    """Ticks since the origin, a fraction on top, and where there is such a number in int64."""
    ticks, part = instants.ticks, instants.part
    known = ticks != NAT
    if start is None:
        return ticks, part, known
    since = ticks - start.ticks
    # A difference overflows where its operands differ in sign and it has that of the second.
    held = known & (start.ticks != NAT) & (((ticks ^ start.ticks) & (ticks ^ since)) >= 0)
    if start.part is not None:
        part = (0 if part is None else part) - start.part
    return since, part, held


def _whole_units(
    instants: Instants, since: Int[Tensor, "*batch n"], held: Bool[Tensor, "*batch n"], factor: int, per: str
) -> Int[Tensor, "*batch n"]:
    limit = (2**63 - 1) // factor
    if factor > 1:
        held = held & (since >= -limit) & (since <= limit)
    if values_known(since) and not held.all():
        missing = count_missing(instants)
        if missing:
            raise ValueError(
                f"timestamps has {missing} missing of {since.numel()}, which int64 {per} cannot hold; leave them out, "
                f"or count in a unit finer than {per}, which gives float64 with NaN"
            )
        raise ValueError(
            f"timestamps must be less than 2^63 {per} from the origin; give a coarser unit or a near origin"
        )
    return (since * factor).where(held, NAT)
