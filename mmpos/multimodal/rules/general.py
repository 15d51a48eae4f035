"""Rules that belong to no released model: plain counting, two from papers, and one of our own in seconds."""

import torch
from jaxtyping import Float
from torch import Tensor

from ..checks import check_rate
from ..placement import Placement, counted, diagonal, frames_at, in_turn, seconds_of, steps_of
from ..segments import Image, Segment, Text, Together, Video


def sequential(segment: Segment, position: int) -> Placement:
    """Plain 1-D: every token is one further than the one before it, whatever it is, on the three axes.

    Args:
        segment: What to place.
        position: Where it starts.
    """
    return counted(segment, position)


def v2pe(segment: Segment, position: float, *, step: float = 1 / 16) -> Placement:
    """Plain 1-D in which a token of an image or video is only ``step`` further than the one before it.

    Args:
        segment: What to place. Audio and series are counted as text.
        position: Where it would start as text, which is 1 past the token before.
        step: Distance of visual tokens, at most 1; the paper trains with 1, 1/2, ..., 1/256. One of the whole row: the
            first token of a row is at 0.

    Raises:
        ValueError: If the step is not more than 0 and at most 1.

    Reference:
        Ge et al., V2PE, 2024, sec. 3.2. https://arxiv.org/abs/2412.09616 The released code also rounds the last
        position of an image up to a whole one, which changes nothing where images of 256 tokens have those steps.
    """
    check_rate("v2pe", "step", step)
    if step > 1:
        raise ValueError(f"step of v2pe must be at most 1, got {step}")
    if isinstance(segment, Together):
        return in_turn(segment, position, lambda part, start: v2pe(part, start, step=step))
    visual = isinstance(segment, Image | Video)
    first = position if not visual or position == 0 else position - 1 + step
    positions = first + steps_of(segment).double() * (step if visual else 1)
    return Placement(diagonal(positions), positions[-1].item() + 1)


def videorope(segment: Segment, position: float, *, delta: float = 2) -> Placement:
    """Frames on the diagonal: frame ``f`` of ``T`` at ``c = position + delta f``, its grid centred around (c, c, c).

    A token is at ``(c, c + y - H/2, c + x - W/2)``, and what follows starts at ``position + delta T``.

    Args:
        segment: What to place; an image is a video of one frame. Audio and series are counted as text.
        position: Where it starts.
        delta: Distance of two frames in tokens of text.

    Raises:
        ValueError: If ``delta`` is not positive.

    Reference:
        Wei et al., VideoRoPE, 2025, sec. 4. https://arxiv.org/abs/2502.05173 The released code centres on a whole
        cell, (H-1)//2 and (W-1)//2, and goes on 1 after the last frame. That time owns low frequencies is a matter of
        the spectrum.
    """
    check_rate("videorope", "delta", delta)
    if isinstance(segment, Together):
        return in_turn(segment, position, lambda part, start: videorope(part, start, delta=delta))
    if isinstance(segment, Image | Video):
        frames = segment.frames if isinstance(segment, Video) else 1
        centres = position + delta * torch.arange(frames, dtype=torch.float64)
        coords = _on_diagonal(centres, segment, (segment.height / 2, segment.width / 2))
        return Placement(coords, position + delta * frames)
    positions = position + steps_of(segment).double()
    return Placement(diagonal(positions), positions[-1].item() + 1)


def aligned(segment: Segment, position: float, *, text_step: float = 1, cell: float = 1) -> Placement:
    """Time in seconds, shared by all that has a clock, with every grid centred around its moment.

    A moment ``s`` seconds into a segment is at ``c = position + s``. A token of sound or a measurement stands at
    ``(c, c, c)``, and a token of a frame or an image at ``(c, c + cell (y - (H-1)/2), c + cell (x - (W-1)/2))``, so
    sound and the middle of a frame meet where they are of one moment. Text stands at ``(c, c, c)`` and takes
    ``text_step`` seconds a token. What follows a segment starts ``text_step`` after its largest coordinate.

    Args:
        segment: What to place; what runs at the same time is `Together`.
        position: Where it starts, in seconds from the start of the row.
        text_step: Seconds that pass with a token of text.
        cell: Distance of two rows or columns.

    Raises:
        ValueError: If an option is not positive, or a video has no ``fps`` or an audio no ``rate``.
    """
    check_rate("aligned", "text_step", text_step)
    check_rate("aligned", "cell", cell)
    if isinstance(segment, Together):
        parts = [aligned(part, position, text_step=text_step, cell=cell) for part in segment.segments]
        return Placement(torch.cat([part.coords for part in parts]), max(part.next_position for part in parts))
    if isinstance(segment, Text):
        coords = diagonal(position + text_step * steps_of(segment).double())
    elif isinstance(segment, Image | Video):
        seconds = seconds_of(segment) if isinstance(segment, Video) else torch.zeros(1, dtype=torch.float64)
        middle = ((segment.height - 1) / 2, (segment.width - 1) / 2)
        coords = _on_diagonal(position + seconds, segment, middle, cell)
    else:
        coords = diagonal(position + seconds_of(segment))
    return Placement(coords, coords.max().item() + text_step)


def _on_diagonal(
    centres: Float[Tensor, " frames"], segment: Image | Video, middle: tuple[float, float], cell: float = 1
) -> Float[Tensor, "n 3"]:
    """The grid of each frame around its moment on the three axes; ``middle`` is the row and column that is there."""
    rows, columns = middle
    grids = frames_at(torch.zeros_like(centres), segment.height, segment.width, (-cell * rows, -cell * columns), cell)
    return grids + centres.repeat_interleave(segment.height * segment.width)[:, None]
