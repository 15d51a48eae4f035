"""From video files to frames at given times, by PyAV."""

import re
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import UInt8
from torch import Tensor

CLIP_EXTENSIONS = (".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".mpg", ".mpeg")

ESTIMATED = ("mpeg", "mpegts")
"""Formats that do not say how long they last: FFmpeg guesses, so their packets are asked."""

TOLERANCE = 1e-6
"""Seconds by which a frame may be late: times are sums of fractions."""


class Sampling(NamedTuple):
    """Which frames of a clip are read: ``frames`` of them, ``1 / fps`` seconds apart, whatever the file's own rate."""

    frames: int
    fps: float
    shuffle: bool = False
    """Whether the stretch begins anywhere; else it is the middle of the clip."""

    @property
    def seconds(self) -> float:
        """From the first frame to the last."""
        return (self.frames - 1) / self.fps


def find_clips(folder: Path) -> list[Path]:
    """Files below a folder whose names end as those of clips do, sorted."""
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in CLIP_EXTENSIONS and path.is_file())


def read_clip(path: Path, sampling: Sampling) -> UInt8[Tensor, "frames 3 height width"]:
    """Frames of a clip in colour, upright as its head says: at each time the one that is on the screen then.

    Raises:
        OSError: If the file is no clip, is cut short, changes its size, or is shorter than what is to be read; the
            message names it.
        ImportError: If PyAV is not installed.
    """
    av = import_av()
    try:
        with _open(path) as container:
            stream, duration = _video(container)
            spare = duration - sampling.seconds
            if spare < -TOLERANCE:
                raise ValueError(
                    f"it lasts {duration:.3g} s, and {sampling.frames} frames at {sampling.fps:g} per second take "
                    f"{sampling.seconds:.3g} s"
                )
            begin = max(spare, 0.0) * (torch.rand(()).item() if sampling.shuffle else 0.5)
            times = [begin + number / sampling.fps for number in range(sampling.frames)]
            shown = _shown_at(times, container, stream)
        if shown is None:  # the index led past the first frame: from the start of the file, then
            with _open(path) as container:
                shown = _shown_at(times, container, container.streams.best("video"), seek=False) or []
        if len(sizes := {(frame.width, frame.height) for frame in shown}) != 1:
            raise ValueError(f"its frames have {len(sizes)} sizes")
        pixels = {id(frame): _upright(frame) for frame in shown}
        return torch.stack([pixels[id(frame)] for frame in shown]).movedim(-1, 1).contiguous()
    except (av.FFmpegError, OSError, ValueError) as error:
        raise OSError(f"{path} cannot be decoded: {error}") from error


def check_clip(path: Path, sampling: Sampling) -> str | None:
    """What keeps a file from being read, as far as its head and its first frame tell; None if nothing does."""
    try:
        read_clip(path, sampling._replace(frames=1))
        with _open(path) as container:
            duration = _video(container)[1]
    except OSError as error:
        return str(error)
    if duration + TOLERANCE < sampling.seconds:
        return f"{path} lasts {duration:.3g} s, less than the {sampling.seconds:.3g} s that are read"
    return None


def import_av() -> Any:
    """PyAV, which the extra ``video`` has.

    Raises:
        ImportError: If it is not installed.
    """
    try:
        import av  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ImportError("clips are read by PyAV: pip install 'mmpos[video]'") from error
    return av


def _open(path: Path) -> Any:
    av = import_av()
    # Titles and the like may be text of any encoding, which PyAV reads by itself from 19 on.
    options = {"metadata_errors": "replace"} if int(av.__version__.split(".")[0]) < 19 else {}
    return av.open(str(path), **options)


def _video(container: Any) -> tuple[Any, float]:
    """The video stream, whatever cover pictures there are, and how many seconds it lasts."""
    stream = container.streams.best("video")
    if stream is None:
        raise ValueError("it has no video")
    if container.format.name in ESTIMATED:
        ends = [_end(packet) for packet in container.demux(stream) if packet.pts is not None]
        if not ends:
            raise ValueError("it has no frames")
        container.seek(stream.start_time or 0, stream=stream)
        return stream, max(ends) - _start(stream)
    if stream.duration is not None:
        return stream, float(stream.duration * stream.time_base)
    # Matroska and WebM say when a stream ends, or only when the longest does, which may be the sound.
    if match := re.fullmatch(r"(\d+):(\d+):(\d+(?:\.\d+)?)", stream.metadata.get("DURATION", "")):
        hours, minutes, seconds = map(float, match.groups())
        return stream, 3600 * hours + 60 * minutes + seconds - _start(stream)
    if container.duration is None:
        raise ValueError("it does not say how long it is")
    return stream, container.duration / 1e6 - _start(stream)  # FFmpeg counts a file in microseconds


def _start(stream: Any) -> float:
    return float((stream.start_time or 0) * stream.time_base)


def _end(part: Any) -> float:
    """The second at which a packet or frame leaves the screen, as far as it says."""
    return float((part.pts + (part.duration or 0)) * part.time_base)


def _upright(frame: Any) -> UInt8[Tensor, "height width 3"]:
    """The pixels, turned and mirrored by right angles as the display matrix of the file says.

    A point (x, y) of the picture is shown at (x, y) times ((a, b), (c, d)), the y axis pointing down.
    """
    pixels = torch.from_numpy(frame.to_ndarray(format="rgb24"))
    matrix = frame.side_data.get("DISPLAYMATRIX")
    if matrix is None:
        return pixels
    a, b, _, c, d, *_ = struct.unpack("=9i", bytes(matrix))
    if abs(b) + abs(c) > abs(a) + abs(d):
        pixels, a, d = pixels.transpose(0, 1), c, b
    return pixels.flip([axis for axis, factor in ((0, d), (1, a)) if factor < 0])


def _shown_at(times: list[float], container: Any, stream: Any, *, seek: bool = True) -> list[Any] | None:
    """The frame that is on the screen at each time, counted from the first frame of the stream.

    None if seeking led behind the first of the times.
    """
    origin = _start(stream)
    if seek:
        with suppress(import_av().FFmpegError):  # to a key frame before; without an index from the start of the file
            container.seek(int((times[0] + origin) / stream.time_base), stream=stream)
    shown: list[Any] = []
    last, last_time, gap = None, 0.0, 1 / float(stream.average_rate or 25)
    for frame in container.decode(stream):
        if frame.time is None:
            raise ValueError("it has frames without a time")
        now = frame.time - origin
        if seek and last is None and now > times[0] + TOLERANCE:
            return None
        while last is not None and len(shown) < len(times) and times[len(shown)] < now - TOLERANCE:
            shown.append(last)
        if len(shown) == len(times):
            return shown
        if last is not None:
            gap = max(gap, now - last_time)
        last, last_time = frame, now
    if last is None:
        raise ValueError("it has no frames")
    if times[-1] > max(last_time + 1.5 * gap, _end(last) - origin + TOLERANCE):
        raise ValueError(f"it is cut short: its frames end at {last_time:.3g} s, of {times[-1]:.3g} s to be read")
    return shown + [last] * (len(times) - len(shown))
