"""What encodings refuse, each check with one wording for all of them, and how they are cast."""

from collections.abc import Callable

import torch
from torch import Tensor

from ..arguments import check_choice, check_count, check_position_dtype, check_same_device, check_signed

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
    check_position_dtype(name, coords)


def check_pair(q_coords: Tensor, k_coords: Tensor, axes: int, owner: str) -> None:
    """Refuses coordinates of queries and keys that `check_coords` refuses, or whose rows do not fit each other.

    Args:
        q_coords: What was given as coordinates of the queries.
        k_coords: What was given as those of the keys.
        axes: The axes that they should have.
        owner: As in `check_coords`.
    """
    check_coords(q_coords, axes, "q_coords", owner)
    check_coords(k_coords, axes, "k_coords", owner)
    rows = zip(reversed(q_coords.shape[:-2]), reversed(k_coords.shape[:-2]), strict=False)
    if any(own != other and 1 not in (own, other) for own, other in rows):
        raise ValueError(
            f"q_coords and k_coords must have rows that broadcast, got shapes {tuple(q_coords.shape)} and "
            f"{tuple(k_coords.shape)}"
        )
    check_same_device("q_coords", q_coords, "k_coords", k_coords)


def check_positive(name: str, value: int) -> None:
    """Refuses a size that is not a positive integer."""
    if not isinstance(value, int):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    check_count(name, value, 1)


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
        check_signed("length", length)
    elif isinstance(length, bool) or not isinstance(length, int | torch.SymInt | None):
        raise TypeError(f"length must be an integer, an integer tensor or None, got {length!r}")
    elif length is not None and length < 0:
        raise ValueError(f"length must not be negative, got {length}")


def check_layout(layout: str) -> None:
    """Refuses a layout that is not known."""
    check_choice("layout", layout, ("half", "interleaved"))


def keep_float32(fn: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """What a module's ``_apply`` should do to learned frequencies and slopes: move them, but not to half precision."""

    def convert(tensor: Tensor) -> Tensor:
        probe = fn(tensor.new_empty(0))
        return tensor.to(probe.device) if probe.dtype.itemsize < 4 else fn(tensor)

    return convert
