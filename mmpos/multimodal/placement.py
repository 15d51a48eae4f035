"""What a rule gives back, and the pieces that rules are made of."""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from ..coords import video_coords
from .segments import Audio, Segment, Series, Text, Together, Video


class Placement(NamedTuple):
    """Where the tokens of one segment are, and where the row goes on.

    Args:
        coords: Coordinates (t, y, x) of all tokens, dropped ones too, in the order of the segment: int64 or float64.
        next_position: The running position of what follows.
        order: For `Together`: the places in the segment of the tokens as they stand in the row.
    """

    coords: Shaped[Tensor, "n 3"]
    next_position: float
    order: Int[Tensor, " n"] | None = None


# A rule places a segment at the running position; options are its keyword-only arguments.
Rule: TypeAlias = Callable[..., Placement | tuple[Tensor, float]]


def diagonal(positions: Shaped[Tensor, " n"]) -> Shaped[Tensor, "n 3"]:
    """The same position on the three axes, as text has it."""
    return positions[:, None].expand(-1, 3)


def steps_of(segment: Segment) -> Int[Tensor, " n"]:
    """Tokens counted from 0; those that share a position are all 0."""
    steps = torch.arange(segment.size)
    return torch.zeros_like(steps) if isinstance(segment, Text) and segment.shared else steps


def counted(segment: Segment, position: int) -> Placement:
    """One position for each token, the same on the three axes."""
    positions = steps_of(segment) + position
    return Placement(diagonal(positions), int(positions[-1]) + 1)


def in_turn(together: Together, position: float, place: Callable[[Segment, float], Placement]) -> Placement:
    """One segment behind the other."""
    coords = []
    for segment in together.segments:
        placed = place(segment, position)
        coords.append(placed.coords)
        position = placed.next_position
    return Placement(torch.cat(coords), position)


def frames_at(
    times: Shaped[Tensor, " frames"], height: int, width: int, origin: tuple[float, float] = (0, 0), cell: float = 1
) -> Shaped[Tensor, "n 3"]:
    """A grid for each time, with the first row and column at ``origin`` and ``cell`` between neighbours."""
    grids = video_coords(len(times), height, width, (1, cell, cell), (0, *origin))
    return torch.cat([times.repeat_interleave(height * width)[:, None], grids[:, 1:].to(times.dtype)], dim=-1)


def rate_of(segment: Video | Audio) -> float:
    """Frames or tokens in a second, which the rule at hand needs."""
    name, rate = ("fps", segment.fps) if isinstance(segment, Video) else ("rate", segment.rate)
    if rate is None:
        raise ValueError(f"{name} must be given where a rule counts seconds, got {segment!r}")
    return float(rate)


def seconds_of(segment: Video | Audio | Series) -> Tensor:
    """Seconds from the start of the segment to each frame or token."""
    if isinstance(segment, Series):
        return segment.seconds
    count = segment.frames if isinstance(segment, Video) else segment.length
    seconds = torch.arange(count, dtype=torch.float64) / rate_of(segment)
    if not seconds.isfinite().all():
        raise ValueError(f"{segment!r} lasts longer than float64 can say")
    return seconds


def whole(times: Shaped[Tensor, " n"], segment: Video | Audio) -> Int[Tensor, " n"]:
    """Times from 0 rounded down to integers, which have room for them."""
    if not (times < 2**53).all():  # NaN, of 0 times infinity, is none either
        raise ValueError(f"{segment!r} lasts longer than positions can count")
    return times.floor().long()
