"""The rules of the Qwen family, integer for integer as transformers 5.24 has them.

Text counts up on the three axes together. A grid that starts at position ``p`` has its rows and columns at
``p, p + 1, ...`` and its frames at ``p`` plus their index or time. Where the text goes on after it differs: the papers
say after the largest coordinate of all; transformers, for Qwen2-VL and Qwen2.5-VL, after the longer side of the grid,
so that text behind a video of many frames has the times of the video again. ``after="max"`` is the former.
"""

import torch
from jaxtyping import Int
from torch import Tensor

from ...calendar.names import check_name
from ..checks import check_rate
from ..placement import Placement, counted, frames_at, in_turn, rate_of, whole
from ..segments import Audio, Image, Segment, Together, Video


def qwen2_vl(segment: Segment, position: int, *, after: str = "side") -> Placement:
    """Frames count as rows and columns do.

    Args:
        segment: What to place. Audio and series, which the model does not know, are counted as text.
        position: Where it starts.
        after: Text goes on after the longer side of a grid ("side", transformers) or its largest coordinate ("max").

    Reference:
        Wang et al., Qwen2-VL, 2024, sec. 2.1. https://arxiv.org/abs/2409.12191
    """
    check_name("after", after, ("side", "max"))
    if isinstance(segment, Together):
        return in_turn(segment, position, lambda part, start: qwen2_vl(part, int(start), after=after))
    if isinstance(segment, Image | Video):
        frames = segment.frames if isinstance(segment, Video) else 1
        return _grid(segment, torch.arange(frames), position, after)
    return counted(segment, position)


def qwen2_5_vl(segment: Segment, position: int, *, after: str = "side", tokens_per_second: float = 2) -> Placement:
    """The frame at ``s`` seconds stands at ``floor(s * tokens_per_second)``.

    Args:
        segment: What to place. Audio and series, which the model does not know, are counted as text.
        position: Where it starts.
        after: Text goes on after the longer side of a grid ("side", transformers) or its largest coordinate ("max").
        tokens_per_second: Positions in a second of video: 2 in the released models, 4 in a bare config.

    Reference:
        Bai et al., Qwen2.5-VL, 2025, sec. 2.1.3. https://arxiv.org/abs/2502.13923
    """
    check_name("after", after, ("side", "max"))
    check_rate("qwen2_5_vl", "tokens_per_second", tokens_per_second)
    if isinstance(segment, Together):
        return in_turn(
            segment,
            position,
            lambda part, start: qwen2_5_vl(part, int(start), after=after, tokens_per_second=tokens_per_second),
        )
    if isinstance(segment, Image):
        return _grid(segment, torch.zeros(1).long(), position, after)
    if isinstance(segment, Video):
        # Rounded to float32 where the released code does it, so that the floor falls alike.
        times = torch.arange(segment.frames) * (tokens_per_second * torch.tensor(1 / rate_of(segment)))
        return _grid(segment, whole(times, segment), position, after)
    return counted(segment, position)


def qwen3_vl(segment: Segment, position: int) -> Placement:
    """Every frame is placed as an image is; its time stands in front of it as text, see `Video.split`.

    Args:
        segment: What to place. Frames without text between follow one another. Audio and series, which the model does
            not know, are counted as text.
        position: Where it starts.

    Reference:
        Bai et al., Qwen3-VL, 2025, sec. 2. https://arxiv.org/abs/2511.21631
    """
    if isinstance(segment, Together):
        return in_turn(segment, position, lambda part, start: qwen3_vl(part, int(start)))
    if isinstance(segment, Image | Video):
        frames, side = segment.frames if isinstance(segment, Video) else 1, max(segment.height, segment.width)
        grid = frames_at(torch.zeros(frames).long(), segment.height, segment.width)
        starts = (position + side * torch.arange(frames)).repeat_interleave(segment.height * segment.width)
        return Placement(grid + starts[:, None], position + side * frames)
    return counted(segment, position)


def qwen2_5_omni(
    segment: Segment,
    position: int,
    *,
    after: str = "chunk",
    positions_per_second: int = 25,
    seconds_per_chunk: float = 2,
) -> Placement:
    """Time in steps of 40 ms for frames and for sound; a video and its sound stand in chunks of 2 s by turns.

    Args:
        segment: What to place; a video with its sound is `Together` of a `Video` and an `Audio`.
        position: Where it starts.
        after: After a video with sound, text goes on after the last chunk ("chunk", transformers) or after the largest
            coordinate of all ("max").
        positions_per_second: Positions in a second; audio of this rate has one for each token.
        seconds_per_chunk: Length of a chunk.

    Raises:
        ValueError: If `Together` is anything but a video and an audio, the two do not last equally long, to within a
            frame or a token, or a chunk has no position.

    Reference:
        Xu et al., Qwen2.5-Omni, 2025, sec. 2.2 (TMRoPE). https://arxiv.org/abs/2503.20215
    """
    check_name("after", after, ("chunk", "max"))
    check_rate("qwen2_5_omni", "positions_per_second", positions_per_second)
    check_rate("qwen2_5_omni", "seconds_per_chunk", seconds_per_chunk)
    if positions_per_second * seconds_per_chunk < 1:
        raise ValueError(
            f"seconds_per_chunk ({seconds_per_chunk}) must have room for one position, of which "
            f"{positions_per_second} are in a second"
        )
    if isinstance(segment, Together):
        video, audio = _film(segment)
        seen, heard = _omni_times(video, positions_per_second), _omni_times(audio, positions_per_second)
        sight = _grid(video, seen, position, "max").coords
        coords = torch.cat([sight, (heard + position)[:, None].expand(-1, 3)])
        length = int(positions_per_second * seconds_per_chunk)
        seen = seen.repeat_interleave(video.height * video.width)
        # Within a chunk sight comes before sound.
        turn = torch.cat([2 * _chunks(seen, length), 2 * _chunks(heard, length) + 1])
        if segment.segments[0] is audio:
            coords, turn = coords.roll(audio.size, 0), turn.roll(audio.size)
        last = coords[turn == turn.max()] if after == "chunk" else coords
        return Placement(coords, int(last.max()) + 1, turn.argsort(stable=True))
    if isinstance(segment, Image):
        return _grid(segment, torch.zeros(1).long(), position, "max")
    if isinstance(segment, Video):
        return _grid(segment, _omni_times(segment, positions_per_second), position, "max")
    if isinstance(segment, Audio):
        positions = _omni_times(segment, positions_per_second) + position
        return Placement(positions[:, None].expand(-1, 3), int(positions[-1]) + 1)
    return counted(segment, position)


def _grid(segment: Image | Video, times: Int[Tensor, " frames"], position: int, after: str) -> Placement:
    coords = frames_at(times, segment.height, segment.width) + position
    largest = int(coords.max()) + 1
    return Placement(coords, largest if after == "max" else position + max(segment.height, segment.width))


def _omni_times(segment: Video | Audio, positions_per_second: int) -> Int[Tensor, " n"]:
    """Whole positions of frames or tokens."""
    if isinstance(segment, Video):
        # Rounded to float32 where the released code does it, so that the floor falls alike.
        times = torch.arange(segment.frames) * torch.tensor(1 / rate_of(segment)) * positions_per_second
    else:
        times = torch.arange(segment.length) * positions_per_second / rate_of(segment)
    return whole(times, segment)


def _chunks(times: Int[Tensor, " n"], length: int) -> Int[Tensor, " n"]:
    """The chunk of each token: that of its time, but at most one past the chunk of the token before it."""
    index = torch.arange(len(times))
    return index + (times // length - index).cummin(0).values


def _film(together: Together) -> tuple[Video, Audio]:
    videos = [part for part in together.segments if isinstance(part, Video)]
    audios = [part for part in together.segments if isinstance(part, Audio)]
    if len(videos) != 1 or len(audios) != 1 or len(together.segments) != 2:
        raise ValueError(f"qwen2_5_omni takes one Video and one Audio together, got {together!r}")
    (video,), (audio,) = videos, audios
    seen, heard = video.frames / rate_of(video), audio.length / rate_of(audio)
    if abs(seen - heard) > max(1 / rate_of(video), 1 / rate_of(audio)) * (1 + 1e-9):
        raise ValueError(
            f"a video and its sound must last equally long, to within a frame or a token: {video!r} is {seen:g} s and "
            f"{audio!r} is {heard:g} s"
        )
    return video, audio
