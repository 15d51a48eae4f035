"""Every encoding of the factory with the sizes of a small model, and coordinates that fit it."""

import inspect
from typing import Any

from torch import Tensor

from mmpos import grid_coords, sequence_coords, video_coords
from mmpos.catalogue import ENCODINGS
from mmpos.encodings import Encoding
from mmpos.factory import build

DIM, HEADS, WIDTH = 384, 6, 64  # of a ViT-S
FRAMES = 4
DAY_AND_WEEK = (24, 168)
FIELDS = {
    "second_of_minute": "second",
    "minute_of_hour": "minute",
    "hour_of_day": "hour",
    "day_of_week": "day_of_week",
    "day_of_month": "day",
    "day_of_year": "day_of_year",
    "month_of_year": "month",
}
"""Fields of a calendar, and what pandas calls them."""


def spec(name: str, axes: int = 1, dim: int = DIM) -> dict[str, Any]:
    """The slot of an encoding as far as sizes do not fill it; not all have more than one axis."""
    known = inspect.signature(ENCODINGS[name][1]).parameters
    return {"name": name, **({"axes": axes} if "axes" in known else {}), **_needed(name, axes, dim)}


def _needed(name: str, axes: int, dim: int) -> dict[str, Any]:
    """Arguments without a default."""
    on = {} if axes == 1 else {"on": [[axis] for axis in range(axes)]}
    periods = DAY_AND_WEEK if axes == 1 else [DAY_AND_WEEK] * axes
    match name:
        case "Concat":
            parts = max(axes, 2)
            return {"parts": [{"name": "Sinusoidal", "dim": dim // parts} for _ in range(parts)], **on}
        case "Sum":
            parts = max(axes, 2)
            return {"parts": [{"name": "Sinusoidal"} for _ in range(parts)], **on}
        case "Seasonal" | "PeriodicBias":
            return {"periods": periods, "harmonics": 2}
        case "RadialBasis":
            return {"period": 24.0}
        case "RelativeLogits":
            return {"extent": 128 if axes == 1 else [16] * axes}
        case "LogScale":
            return {"train_length": 1024}
    return {}


def shape(tokens: int, axes: int) -> tuple[int, ...]:
    """A sequence of so many tokens, a power of two, or a grid that is no square, in frames if it has three axes."""
    if axes == 1:
        return (tokens,)
    cells = tokens // FRAMES if axes == 3 else tokens
    height = 2 ** ((cells.bit_length() - 2) // 2)
    grid = (height, cells // height)
    return (FRAMES, *grid) if axes == 3 else grid


def coords_of(size: tuple[int, ...]) -> Tensor:
    """Coordinates of a sequence, an image or a clip."""
    return {1: sequence_coords, 2: grid_coords, 3: video_coords}[len(size)](*size)


def make(slot: dict[str, Any], size: tuple[int, ...]) -> Encoding:
    """The encoding that a slot describes, for a model of these sizes."""
    kind = ENCODINGS[slot["name"]][0]
    encoding = build(slot, kind=kind, dim=DIM, num_heads=HEADS, head_dim=WIDTH, size=size)
    assert encoding is not None
    return encoding
