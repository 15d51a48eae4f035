"""What any function refuses, each check with one wording for all of them: the argument, its value and the rule."""

import math
from collections.abc import Sequence
from fractions import Fraction
from numbers import Integral, Real
from typing import Any, TypeGuard

import torch
from torch import Tensor

# No count of tokens, cells or channels reaches this: it is past what any memory holds, and products stay in int64.
TOO_MANY = 2**48


def check_count(name: str, value: Any, least: int = 0) -> None:
    """Refuses what is no whole number from ``least`` on. A symbolic one of a traced call is one."""
    if isinstance(value, bool) or not isinstance(value, Integral | torch.SymInt):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if value < least:
        rules = {0: "must not be negative", 1: "must be positive"}
        raise ValueError(f"{name} {rules.get(least, f'must be at least {least}')}, got {value}")
    if isinstance(value, Integral) and int(value) >= TOO_MANY:
        raise ValueError(f"{name} must be less than 2^48, got {value:.3e}" if value < 1e300 else f"{name} is too large")


def check_int64(name: str, value: Any) -> None:
    """Refuses what is no integer, or one that int64 does not hold."""
    if isinstance(value, bool) or not isinstance(value, Integral | torch.SymInt):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if isinstance(value, Integral) and not -(2**63) <= int(value) < 2**63:
        raise ValueError(f"{name} must fit into int64, got a number of {len(str(abs(int(value))))} digits")


def check_real(name: str, value: Any) -> None:
    """Refuses what is no finite number; a symbolic one of a traced call is one."""
    if isinstance(value, torch.SymInt | torch.SymFloat):
        return
    if isinstance(value, bool | Fraction) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if isinstance(value, Integral):
        if abs(int(value)) >= 2**1023:
            raise ValueError(f"{name} must fit into float64, got a number of {len(str(abs(int(value))))} digits")
    elif not -math.inf < float(value) < math.inf:
        raise ValueError(f"{name} must be finite, got {value}")


def check_flag(name: str, value: Any) -> None:
    """Refuses what is neither True nor False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r}")


def check_choice(name: str, value: Any, options: tuple[str, ...]) -> None:
    """Refuses what is none of the options."""
    if not isinstance(value, str) or value not in options:
        quoted = [repr(option) for option in options]
        raise ValueError(f"{name} must be {', '.join(quoted[:-1])} or {quoted[-1]}, got {value!r}")


def check_tensor(name: str, value: Any) -> None:
    """Refuses what is no tensor."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(value).__name__}")


def check_integers(name: str, value: Any) -> None:
    """Refuses what is no tensor of integers."""
    check_tensor(name, value)
    if value.dtype == torch.bool or value.is_floating_point() or value.is_complex():
        raise TypeError(f"{name} must hold integers, got {value.dtype}")


def check_mask(name: str, value: Any, true: str) -> None:
    """Refuses what is no boolean tensor; ``true`` says what True means."""
    check_tensor(name, value)
    if value.dtype != torch.bool:
        raise TypeError(f"{name} must be boolean (True {true}), got {value.dtype}; use {name}.bool()")


def check_positions(name: str, value: Any) -> None:
    """Refuses what is no tensor ``(..., n, a)`` of a dtype that can hold positions."""
    check_tensor(name, value)
    if value.ndim < 2:
        raise ValueError(f"{name} must be (..., n, axes), got shape {tuple(value.shape)}")
    check_position_dtype(name, value)


def check_position_dtype(name: str, value: Tensor) -> None:
    """Refuses a dtype that cannot hold positions: boolean, complex or half precision, which cannot count past 256."""
    if value.dtype == torch.bool or value.is_complex():
        raise TypeError(f"{name} must be integers or floats, got {value.dtype}")
    if value.is_floating_point() and value.dtype.itemsize < 4:
        raise TypeError(
            f"{name} must not be in half precision, got {value.dtype}, which cannot tell neighbours apart past 256; "
            "make them in float64 or int64"
        )


def check_same_device(name: str, value: Tensor, other_name: str, other: Tensor) -> None:
    """Refuses tensors on two devices."""
    if value.device != other.device:
        raise ValueError(f"{name} is on {value.device} but {other_name} on {other.device}")


def check_device(device: Any) -> None:
    """Refuses what names no kind of device."""
    if device is None or isinstance(device, torch.device):
        return
    if not isinstance(device, str):
        raise TypeError(f"device must be a torch.device, its name or None, got {device!r}")
    try:
        torch.device(device)
    except (RuntimeError, ValueError) as error:
        raise ValueError(f"device must be the name of one, such as 'cpu' or 'cuda:0', got {device!r}") from error


def check_generator(generator: Any) -> None:
    """Refuses what is no source of random numbers."""
    if not isinstance(generator, torch.Generator | None):
        raise TypeError(f"generator must be a torch.Generator or None, got {generator!r}")


def move(name: str, value: Tensor, device: torch.device | str | None) -> Tensor:
    """A tensor on a device; one of the meta device has no values that could go elsewhere."""
    if value.is_meta and device is not None and torch.device(device).type != "meta":
        raise ValueError(f"{name} is on the meta device and has no values for {device}")
    return value.to(device=device)


def check_is_number(name: str, value: Any) -> None:
    """Refuses what is no number of Python, however large."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, got {value!r}")


def check_number(name: str, value: Any) -> None:
    """Refuses what is not a positive finite number."""
    check_is_number(name, value)
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be positive and finite, got {value}")
    check_real(name, value)


def read_numbers(name: str, value: Any) -> tuple[float, ...]:
    """A sequence, an array or a tensor of numbers as floats; refuses anything else."""
    try:
        if isinstance(value, str | bytes):
            raise TypeError("text")
        return tuple(map(float, value))
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise TypeError(f"{name} must be a sequence of numbers, got {value!r}") from error


def check_signed(name: str, value: Any) -> None:
    """Refuses what is no tensor of signed integers, with which one counts."""
    check_integers(name, value)
    if not value.dtype.is_signed:
        raise TypeError(f"{name} must hold signed integers, got {value.dtype}")


def fits(own: Sequence[int], full: Sequence[int]) -> bool:
    """Whether a tensor of a shape broadcasts to another without enlarging it."""
    # One by one: in PyTorch 2.12 Dynamo does not find a size that may change in a tuple.
    return len(own) <= len(full) and all(a == 1 or a == b for a, b in zip(reversed(own), reversed(full), strict=False))


def check_sequence(name: str, value: Any) -> None:
    """Refuses what is no sequence, and text."""
    if not is_sequence(value):
        raise TypeError(f"{name} must be a sequence, got {value!r}")


def is_sequence(value: Any) -> TypeGuard[Sequence]:
    """Whether a value is a sequence, and no text."""
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)
