"""What encodings refuse, each check with one wording for all of them, and how they are cast."""

from collections.abc import Callable

import torch
from torch import Tensor

AXES = {1: "(t)", 2: "(y, x)", 3: "(t, y, x)"}
USES = {1: "sequences", 2: "images", 3: "video"}


def check_coords(coords: Tensor, axes: int, name: str = "coords", owner: str | None = None) -> None:
    """Refuses coordinates with the wrong number of axes or a dtype that cannot hold positions.

    Args:
        coords: What was given as coordinates.
        axes: The axes that they should have.
        name: The argument, for the error.
        owner: A call that would take other axes, such as ``"RoPE(axes={axes})"``, for the error.

    Raises:
        ValueError: If the last axis of ``coords`` is not ``axes`` wide.
        TypeError: If they are boolean, complex or half precision, which cannot count past 256.
    """
    if not isinstance(coords, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(coords).__name__}")
    if coords.ndim < 2 or coords.shape[-1] != axes:
        order = f" {AXES[axes]}" if axes in AXES else ""
        hint = ""
        if owner is not None and coords.ndim >= 2 and coords.shape[-1] in USES:
            given = coords.shape[-1]
            hint = f"; for {USES[given]} use {owner.format(axes=given, order=AXES[given])}"
        plural = "axis" if axes == 1 else "axes"
        raise ValueError(f"{name} must have {axes} {plural}{order}, got shape {tuple(coords.shape)}{hint}")
    if coords.dtype == torch.bool or coords.is_complex():
        raise TypeError(f"{name} must be integers or floats, got {coords.dtype}")
    if coords.is_floating_point() and coords.dtype.itemsize < 4:
        raise TypeError(
            f"{name} must not be in half precision, got {coords.dtype}, which cannot tell neighbours apart past 256; "
            "make them in float64 or int64"
        )


def check_positive(name: str, value: int) -> None:
    """Refuses a size that is not a positive integer."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be positive, got {value}")


def check_heads(num_heads: int | None, num_kv_heads: int | None) -> None:
    """Refuses numbers of heads that are none, or groups that do not divide the heads."""
    for name, heads in (("num_heads", num_heads), ("num_kv_heads", num_kv_heads)):
        if heads is not None:
            check_positive(name, heads)
    if num_heads and num_kv_heads and num_heads % num_kv_heads:
        raise ValueError(f"num_heads ({num_heads}) must be a multiple of num_kv_heads ({num_kv_heads})")


def check_length(length: int | Tensor | None) -> None:
    """Refuses a length that is no number of tokens."""
    if isinstance(length, Tensor):
        if length.dtype == torch.bool or length.is_floating_point() or length.is_complex():
            raise TypeError(f"length must hold integers, got {length.dtype}")
    elif isinstance(length, bool) or not isinstance(length, int | torch.SymInt | None):
        raise TypeError(f"length must be an integer, an integer tensor or None, got {length!r}")
    elif length is not None and length < 0:
        raise ValueError(f"length must not be negative, got {length}")


def check_layout(layout: str) -> None:
    """Refuses a layout that is not known."""
    if layout not in ("half", "interleaved"):
        raise ValueError(f"layout must be 'half' or 'interleaved', got {layout!r}")


def keep_float32(fn: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """What a module's ``_apply`` should do to learned frequencies and slopes: move them, but not to half precision."""

    def convert(tensor: Tensor) -> Tensor:
        probe = fn(tensor.new_empty(0))
        return tensor.to(probe.device) if probe.dtype.itemsize < 4 else fn(tensor)

    return convert
