"""What stands in a mixed sequence. Sizes are in tokens, after whatever merges patches or frames into one."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ..calendar.elapsed import time_coords
from ..calendar.timestamps import read_timestamps
from .checks import check_rate, read_keep, read_sizes


@dataclass(frozen=True)
class Text:
    """Tokens that follow one another, of text or anything else that is counted.

    Args:
        length: Number of tokens.
        shared: The tokens stand at one position together, as the two marks in front of a video with sound do in
            Qwen2.5-Omni.

    Raises:
        ValueError: If ``length`` is less than 1.
        TypeError: If it is not an integer, or ``shared`` not boolean.

    Example:
        >>> multimodal_coords([[Text(2), Text(2, shared=True), Text(1)]], "sequential").coords[0, :, 0]
        tensor([0, 1, 2, 2, 3])
    """

    length: int
    shared: bool = False

    def __post_init__(self):
        read_sizes(self, "length")
        if not isinstance(self.shared, bool):
            raise TypeError(f"shared of Text must be True or False, got {self.shared!r}")

    @property
    def size(self) -> int:
        return self.length


@dataclass(frozen=True)
class Bare:
    """Tokens without a position, such as registers, anywhere in a row.

    They get coordinate 0 on every axis, at which a rotation does nothing, and nothing else moves.

    Args:
        length: Number of tokens.

    Raises:
        ValueError: If ``length`` is less than 1.
        TypeError: If it is not an integer.

    Example:
        >>> multimodal_coords([[Text(2), Bare(3), Text(2)]], "sequential").coords[0, :, 0]
        tensor([0, 1, 0, 0, 0, 2, 3])
    """

    length: int

    def __post_init__(self):
        read_sizes(self, "length")

    @property
    def size(self) -> int:
        return self.length


@dataclass(frozen=True)
class Image:
    """A grid of tokens, row by row.

    Args:
        height: Rows of tokens.
        width: Columns of tokens.
        keep: True for the tokens that are in the row, in a mask ``(height, width)`` or flat; all unless given. The
            others are dropped, and the coordinates of all that remains are as if they were there.

    Raises:
        ValueError: If a size is less than 1, or ``keep`` does not have a value for each token.
        TypeError: If a size is not an integer, or ``keep`` not boolean.

    Example:
        >>> keep = torch.tensor([[True, False, True], [False, True, True]])
        >>> multimodal_coords([[Text(4), Image(2, 3, keep=keep)]], "qwen2_vl").coords[0, 4:]
        tensor([[4, 4, 4],
                [4, 4, 6],
                [4, 5, 5],
                [4, 5, 6]])
    """

    height: int
    width: int
    keep: Tensor | None = field(default=None, repr=False, compare=False)

    def __post_init__(self):
        read_sizes(self, "height", "width")
        read_keep(self, (self.height, self.width))

    @property
    def size(self) -> int:
        return self.height * self.width


@dataclass(frozen=True)
class Video:
    """Frames of tokens, frame by frame and row by row.

    Args:
        frames: Frames of tokens; where a token covers two frames of the film, half of those.
        height: Rows of tokens in each.
        width: Columns of tokens in each.
        fps: Frames of tokens in a second, any positive number; needed by rules that count seconds.
        keep: True for the tokens that are in the row, ``(frames, height, width)`` or flat; see `Image`.

    Raises:
        ValueError: If a size is less than 1, ``fps`` not positive and finite, or ``keep`` does not fit.
        TypeError: If a size is not an integer, ``fps`` not a number, or ``keep`` not boolean.

    Example:
        >>> multimodal_coords([[Video(2, 1, 3, fps=0.5)]], "qwen2_5_vl").coords[0].T
        tensor([[0, 0, 0, 4, 4, 4],
                [0, 0, 0, 0, 0, 0],
                [0, 1, 2, 0, 1, 2]])
    """

    frames: int
    height: int
    width: int
    fps: float | None = None
    keep: Tensor | None = field(default=None, repr=False, compare=False)

    def __post_init__(self):
        read_sizes(self, "frames", "height", "width")
        check_rate("Video", "fps", self.fps)
        read_keep(self, (self.frames, self.height, self.width))

    @property
    def size(self) -> int:
        return self.frames * self.height * self.width

    def split(self, text: int | Sequence[int]) -> "list[Text | Video]":
        """Single frames, each behind its timestamp in text, as Qwen3-VL has them.

        Args:
            text: Tokens of text in front of a frame: one number, or one for each frame.

        Raises:
            ValueError: If ``text`` does not have a number for each frame.

        Example:
            >>> Video(2, 4, 6).split([9, 10])[1:3]
            [Video(frames=1, height=4, width=6, fps=None), Text(length=10, shared=False)]
        """
        lengths = list(text) if isinstance(text, Sequence) else [text] * self.frames
        if len(lengths) != self.frames:
            raise ValueError(f"text must be one number or one for each of the {self.frames} frames, got {text!r}")
        keeps = [None] * self.frames if self.keep is None else self.keep.view(self.frames, -1)
        frames = [replace(self, frames=1, keep=keep) for keep in keeps]
        return [part for length, frame in zip(lengths, frames, strict=True) for part in (Text(length), frame)]


@dataclass(frozen=True)
class Audio:
    """Tokens of sound at a constant rate.

    Args:
        length: Number of tokens.
        rate: Tokens in a second, any positive number; needed by rules that count seconds.
        keep: True for the tokens that are in the row ``(length,)``; see `Image`.

    Raises:
        ValueError: If ``length`` is less than 1, ``rate`` not positive and finite, or ``keep`` does not fit.
        TypeError: If ``length`` is not an integer, ``rate`` not a number, or ``keep`` not boolean.

    Example:
        >>> multimodal_coords([[Text(1), Audio(3, rate=4.0)]], "aligned").coords[0, :, 0]
        tensor([0.0000, 1.0000, 1.2500, 1.5000], dtype=torch.float64)
    """

    length: int
    rate: float | None = None
    keep: Tensor | None = field(default=None, repr=False, compare=False)

    def __post_init__(self):
        read_sizes(self, "length")
        check_rate("Audio", "rate", self.rate)
        read_keep(self, (self.length,))

    @property
    def size(self) -> int:
        return self.length


@dataclass(frozen=True, eq=False)
class Series:
    """Tokens at instants of their own, as measurements are.

    Args:
        timestamps: Instants ``(n,)`` of any type that `time_coords` reads, in any order.
        unit: What bare numbers count: "s", "ms", "us" or "ns".
        origin: Instant at which the segment starts; its first timestamp unless given.
        keep: True for the tokens that are in the row ``(n,)``; see `Image`.

    Raises:
        ValueError: If there is no timestamp or one is missing, they have more than one axis, the unit is unknown, or
            ``keep`` does not fit.
        TypeError: If timestamps are of a type that holds no instants, or ``keep`` is not boolean.

    Example:
        >>> readings = Series(torch.tensor([1711843200000, 1711843200250, 1711843203000]), unit="ms")
        >>> multimodal_coords([[Text(1), readings]], "aligned").coords[0, :, 0]
        tensor([0.0000, 1.0000, 1.2500, 4.0000], dtype=torch.float64)
    """

    timestamps: Any
    unit: str = "s"
    origin: Any = None
    keep: Tensor | None = None
    seconds: Tensor = field(init=False, repr=False)

    def __post_init__(self):
        # Differences are taken in integers, so instants of today keep their nanoseconds.
        instants = read_timestamps(self.timestamps, self.unit)
        if instants.ticks.is_meta:
            raise ValueError("timestamps of Series must have values, got a tensor on the meta device")
        if instants.ticks.ndim != 1 or not len(instants.ticks):
            raise ValueError(f"timestamps of Series must be instants (n,), got shape {tuple(instants.ticks.shape)}")
        if self.origin is None:
            seconds = (instants.ticks - instants.ticks[0]).double()
            seconds = seconds if instants.part is None else seconds + (instants.part - instants.part[0])
            seconds = seconds / instants.per_second
            seconds = seconds.masked_fill(instants.ticks == torch.iinfo(torch.int64).min, torch.nan)
        else:
            seconds = time_coords(self.timestamps, self.unit, origin=self.origin)[:, 0].double()
        if not seconds.isfinite().all():
            raise ValueError(f"timestamps of Series must not be missing, {int((~seconds.isfinite()).sum())} are")
        object.__setattr__(self, "seconds", seconds.cpu())
        read_keep(self, (len(seconds),))

    @property
    def size(self) -> int:
        return len(self.seconds)

    def __repr__(self) -> str:
        return f"Series({self.size} timestamps)"


@dataclass(frozen=True, eq=False, init=False, repr=False)
class Together:
    """Segments of one clock that start at the same moment, such as a film and its sound.

    Their tokens stand one segment behind the other, or in chunks of time by turns where the rule is that
    (``"qwen2_5_omni"``). A rule without a clock places them one behind the other.

    Args:
        segments: Each a `Video`, an `Audio` or a `Series`.

    Raises:
        ValueError: If there is none.
        TypeError: If one is something else.

    Example:
        >>> film = Together(Video(2, 1, 1, fps=2.0), Audio(4, rate=4.0))
        >>> multimodal_coords([[Text(3), film]], "aligned").coords[0, :, 0]
        tensor([0.0000, 1.0000, 2.0000, 3.0000, 3.5000, 3.0000, 3.2500, 3.5000, 3.7500],
               dtype=torch.float64)
    """

    segments: "tuple[Video | Audio | Series, ...]"

    def __init__(self, *segments: "Video | Audio | Series"):
        object.__setattr__(self, "segments", segments)
        if not segments:
            raise ValueError("Together needs at least one segment")
        for segment in segments:
            if not isinstance(segment, Video | Audio | Series):
                raise TypeError(f"Together is made of Video, Audio and Series, got {segment!r}")

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self.segments)

    @property
    def keep(self) -> Tensor | None:
        if all(segment.keep is None for segment in self.segments):
            return None
        whole = [torch.ones(part.size, dtype=torch.bool) if part.keep is None else part.keep for part in self.segments]
        return torch.cat(whole)

    def __repr__(self) -> str:
        return f"Together({', '.join(map(repr, self.segments))})"


# What a rule places.
Segment: TypeAlias = Text | Image | Video | Audio | Series | Together
