"""What segments refuse, in one form."""

import math
from numbers import Integral, Real
from typing import Any

import torch


def read_sizes(segment: Any, *names: str) -> None:
    """Refuses sizes that are no integers from 1, and makes those of NumPy, whose products overflow, plain ones."""
    for name in names:
        size = getattr(segment, name)
        if isinstance(size, bool) or not isinstance(size, Integral):
            raise TypeError(f"{name} of {type(segment).__name__} must be an integer, got {size!r}")
        if size < 1:
            raise ValueError(f"{name} of {type(segment).__name__} must be at least 1, got {size}")
        object.__setattr__(segment, name, int(size))


def check_rate(owner: str, name: str, rate: float | None) -> None:
    """Refuses a rate that is given but not a positive, finite number."""
    if rate is None:
        return
    if isinstance(rate, bool) or not isinstance(rate, Real):
        raise TypeError(f"{name} of {owner} must be a number, got {rate!r}")
    try:
        value = float(rate)
    except OverflowError:  # an integer of more than 308 digits
        value = math.inf
    if not 0 < value < math.inf:
        raise ValueError(f"{name} of {owner} must be positive and finite, got {rate}")


def read_keep(segment: Any, shape: tuple[int, ...]) -> None:
    """Checks the mask of kept tokens against the shape of the segment, and flattens it."""
    if segment.keep is None:
        return
    name = type(segment).__name__
    try:
        keep = torch.as_tensor(segment.keep)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"keep of {name} must be a boolean mask, got {segment.keep!r}") from error
    if keep.dtype != torch.bool:
        raise TypeError(f"keep of {name} must be boolean (True stays), got {keep.dtype}")
    if keep.is_meta:
        raise ValueError(f"keep of {name} must have values, got a tensor on the meta device")
    if tuple(keep.shape) not in (shape, (math.prod(shape),)):
        raise ValueError(f"keep of {name} must have shape {shape} or be flat, got {tuple(keep.shape)}")
    object.__setattr__(segment, "keep", keep.flatten().cpu())
