"""What people call a timestamp, as exact int64 ticks since 1970 in UTC.

Integers, floats, tensors, numpy's datetime64, pandas and Python datetimes all become one form. Nothing passes through
a float on the way unless it came as one; a missing instant stays marked; pandas is used only where it is in use.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime, timedelta
from numbers import Integral, Real
from typing import Any, NamedTuple, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..arguments import check_device, move
from .names import check_name

Function = TypeVar("Function", bound=Callable[..., Any])

NAT = -(2**63)  # marks a missing instant, as in numpy and pandas
NANOSECONDS = {
    "ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9, "h": 3600 * 10**9, "d": 86_400 * 10**9,
    "w": 7 * 86_400 * 10**9,
}  # fmt: skip
UNITS = ("s", "ms", "us", "ns")
EPOCH = datetime(1970, 1, 1)


class Instants(NamedTuple):
    """Instants as ticks since 1970-01-01 00:00 UTC.

    Args:
        ticks: Whole ticks; `NAT` where an instant is missing.
        part: Fraction of a tick on top, from 0 to less than 1, in float64; None where it is 0 for all.
        unit: What a tick is: "s", "ms", "us" or "ns".
    """

    ticks: Int[Tensor, "*shape"]
    part: Float[Tensor, "*shape"] | None
    unit: str

    @property
    def per_second(self) -> int:
        """Ticks in a second."""
        return NANOSECONDS["s"] // NANOSECONDS[self.unit]


def constant(function: Function) -> Function:
    """Has compiled code take a result as a constant of its arguments, as `torch.compiler.assume_constant_result` does.

    That one loads the compiler, which takes seconds, when the package is imported.
    """
    function.__dict__["_dynamo_marked_constant"] = True
    return function


def values_known(tensor: Tensor) -> bool:
    """Whether values can be looked at: not under compile and export, nor on the meta device."""
    return not (torch.compiler.is_compiling() or tensor.is_meta)


def values_at_hand(tensor: Tensor) -> bool:
    """Whether looking at values costs nothing: where they are known, and no device has to be waited for."""
    return values_known(tensor) and tensor.device.type == "cpu"


def read_timestamps(
    timestamps: Any, unit: str = "s", device: torch.device | str | None = None, name: str = "timestamps"
) -> Instants:
    """Instants of any type that `time_coords` lists, of any shape.

    Args:
        timestamps: What to read. What has no zone is UTC.
        unit: What bare integers and floats count.
        device: Where the result lies; a tensor's own device unless given.
        name: The argument, for errors.

    Raises:
        ValueError: If the unit is unknown, some have a zone and some have none, or one is out of range.
        TypeError: If they are of a type that cannot hold instants, such as bool, half precision or text.
    """
    check_name("unit", unit, UNITS)
    check_device(device)
    part = None
    if isinstance(timestamps, int | float) and not isinstance(timestamps, bool):
        if not NAT <= timestamps < -NAT:
            raise ValueError(f"{name} must fit into int64, got {timestamps}; use a coarser unit")
        values = torch.tensor(timestamps, dtype=torch.int64 if isinstance(timestamps, int) else torch.float64)
    elif isinstance(timestamps, date):
        ticks, unit = _ticks_of(timestamps)
        values = torch.tensor(ticks)
    elif isinstance(timestamps, Tensor):
        values = timestamps
    else:
        values, part, unit = _numbers(timestamps, unit, name)
    if device is not None:
        values, part = move(name, values, device), None if part is None else part.to(device)
    instants = _from_tensor(values, unit, name)
    return instants if part is None else instants._replace(part=part)


def check_shape(timestamps: Instants) -> None:
    """Refuses a single instant where a row of them is needed."""
    if not timestamps.ticks.ndim:
        raise ValueError("timestamps must be (..., n), got a single one; put it into a list")


def count_missing(timestamps: Instants) -> int:
    """How many are missing; waits for the device."""
    return int((timestamps.ticks == NAT).sum())


def _from_tensor(values: Tensor, unit: str, name: str) -> Instants:
    if values.dtype == torch.bool or values.is_complex():
        raise TypeError(f"{name} must be integers or floats, got {values.dtype}")
    if not values.is_floating_point():
        ticks = values.to(torch.int64)
        if values.dtype == torch.uint64:
            if values_known(ticks) and (ticks < 0).any():
                raise ValueError(f"{name} must be less than 2^63, the end of int64; use a coarser unit than {unit}")
            ticks = ticks.masked_fill(ticks < 0, NAT)
        return Instants(ticks, None, unit)
    if values.dtype.itemsize < 4:
        raise TypeError(
            f"{name} must not be in half precision, got {values.dtype}, which cannot tell instants apart; "
            "make them in int64 or float64"
        )
    end = 2.0**63
    if values.dtype == torch.float32:
        end = 2.0**24
        if values_known(values) and (values.abs().ge(end) & values.isfinite()).any():
            raise ValueError(
                f"{name} reach past 2^24 {unit} in float32, which cannot tell neighbours apart there; "
                "make them in int64 or float64"
            )
    known = values.abs() < end
    values = values.double().where(known, 0)
    whole = values.detach().floor()
    return Instants(whole.to(torch.int64).masked_fill(~known, NAT), values - whole, unit)


def _numbers(timestamps: Any, unit: str, name: str) -> tuple[Tensor, Tensor | None, str]:
    """What is no tensor as int64 or floats, a fraction on top if a tick is too coarse, and their unit."""
    import numpy as np

    if is_pandas(timestamps) and getattr(timestamps, "dtype", None) is not None:
        timestamps = _without_zone(timestamps).to_numpy()
    elif not isinstance(timestamps, np.ndarray | np.generic):
        timestamps = _array(timestamps, name)
    array = np.asarray(timestamps)
    if array.dtype.kind == "O":
        array = _from_objects(array, name)
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    if array.dtype.kind == "M":
        return _from_datetime64(array, name)
    if array.dtype.kind not in "iuf" or array.dtype.itemsize > 8:
        hints = {
            "U": "; parse text first, as numpy.array(text, dtype='datetime64[s]') does",
            "m": ", which is how long something takes; add it to an instant, or give integers",
        }
        raise TypeError(f"{name} must be instants or numbers, got {array.dtype}{hints.get(array.dtype.kind, '')}")
    return _tensor(array), None, unit


def _array(timestamps: Any, name: str) -> Any:
    """A number, an instant, or nested sequences of them as an array."""
    import numpy as np

    if isinstance(timestamps, Iterable) and not isinstance(timestamps, Sequence):
        raise TypeError(
            f"{name} must be a tensor, an array, a list or a pandas object, got {type(timestamps).__name__}"
        )
    try:
        array = np.array(timestamps)
    except ValueError as error:
        raise ValueError(f"{name} must have rows of equal length: {error}") from error
    if array.dtype.kind == "M" and array.ndim:
        for row, item in zip(array, timestamps, strict=True):
            _check_kept(row, _array(item, name) if isinstance(item, Sequence) else np.asarray(item), name)
    # Of integers too large for int64, numpy makes floats.
    return np.array(timestamps, dtype=object) if array.dtype == np.float64 else array


def _check_kept(converted: Any, array: Any, name: str) -> None:
    """Refuses a datetime64 that changed when it got another unit, for numpy wraps without a word."""
    import numpy as np

    if converted.dtype != array.dtype and ((converted.astype(array.dtype) != array) & ~np.isnat(array)).any():
        raise ValueError(f"{name} of {array.dtype} must fit into int64 as {converted.dtype}")


def _without_zone(timestamps: Any) -> Any:
    """A pandas object with a zone as UTC without one."""
    if getattr(timestamps.dtype, "tz", None) is None:
        return timestamps
    return getattr(timestamps, "dt", timestamps).tz_convert(None)


def _from_objects(array: Any, name: str) -> Any:
    """Objects one by one, each exactly, as datetime64 in the finest of their units, or as numbers."""
    import numpy as np

    values = array.ravel().tolist()
    present = [value for value in values if not _is_missing(value)]
    numbers: list[Any] = [value for value in values if isinstance(value, Real) and not isinstance(value, bool)]
    if numbers and all(isinstance(value, Real) and not isinstance(value, bool) for value in present):
        whole = all(isinstance(value, Integral) for value in numbers)
        if whole and any(not NAT <= value < -NAT for value in numbers):
            raise ValueError(f"{name} must fit into int64, got {max(numbers, key=abs)}; use a coarser unit")
        blank, dtype = (NAT, np.int64) if whole else (np.nan, np.float64)
        return np.array([blank if _is_missing(value) else value for value in values], dtype).reshape(array.shape)
    for value in present:
        if not isinstance(value, date | np.datetime64):
            raise TypeError(f"{name} must be instants or numbers of one kind, got {value!r} of {type(value).__name__}")
    aware = sum(isinstance(value, datetime) and value.tzinfo is not None for value in present)
    if 0 < aware < len(present):
        raise ValueError(
            f"{name} mix zones: {aware} of {len(present)} have one and the others none; give all of them one, or none"
        )
    converted = [np.datetime64("NaT", "s") if _is_missing(value) else _datetime64(value) for value in values]
    result = np.array(converted, dtype="datetime64" if converted else "datetime64[s]")
    for new, old in zip(result, converted, strict=True):
        _check_kept(new, old, name)
    return result.reshape(array.shape)


@constant
def _ticks_of(instant: date) -> tuple[int, str]:
    """One Python date or datetime, or pandas' Timestamp, in ticks and their unit."""
    import numpy as np

    value = np.datetime64("NaT", "s") if _is_missing(instant) else _datetime64(instant)
    return int(value.view(np.int64)), np.datetime_data(value.dtype)[0]


def is_pandas(value: Any) -> bool:
    """Whether a value is one of pandas, without importing it."""
    return type(value).__module__.partition(".")[0] == "pandas"


def _is_missing(value: Any) -> bool:
    return value is None or type(value).__name__ in ("NaTType", "NAType") or bool(value != value)


def _datetime64(value: Any) -> Any:
    import numpy as np

    if not isinstance(value, date):
        return value
    if not isinstance(value, datetime):
        return np.datetime64(value, "D").astype("datetime64[s]")
    if is_pandas(value):
        plain: Any = value
        return (plain if value.tzinfo is None else plain.tz_convert(None)).to_datetime64()
    since = value.replace(tzinfo=None) - EPOCH - (value.utcoffset() or timedelta())
    return np.datetime64(since // timedelta(microseconds=1), "us")


def _from_datetime64(array: Any, name: str) -> tuple[Tensor, Tensor | None, str]:
    """Ticks of the same unit where that is one of ours, of a second where it is coarser, or nanoseconds and a part."""
    import numpy as np

    unit, count = np.datetime_data(array.dtype)
    if unit == "generic":
        return torch.full(array.shape, NAT), None, "s"  # numpy gives NaT alone no unit
    finer = {"ps": 10**3, "fs": 10**6, "as": 10**9}
    target = unit if unit in UNITS or unit in finer else "s"
    if (target, 1) != (unit, count):
        try:
            converted = array.astype(f"datetime64[{target}]")
        except OverflowError as error:  # of NumPy 2.5; those before wrap
            raise ValueError(f"{name} of {array.dtype} must fit into int64 as datetime64[{target}]") from error
        _check_kept(converted, array, name)
        array = converted
    ticks = array.view(np.int64)
    if target not in finer:
        return _tensor(ticks), None, target
    whole, rest = np.divmod(ticks, finer[target])
    missing = np.isnat(array)
    return _tensor(np.where(missing, NAT, whole)), _tensor(np.where(missing, 0, rest) / finer[target]), "ns"


def _tensor(array: Any) -> Tensor:
    import numpy as np

    array = np.ascontiguousarray(array).reshape(array.shape)  # of a single number it would make a row
    return torch.from_numpy(array if array.flags.writeable else array.copy())
