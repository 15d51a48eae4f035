"""Digits in motion: clips whose class is in the order of their frames and nowhere else."""

import math
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from .image import BACKGROUND, load_digits, split_digits
from .loaders import make_loader
from .samples import SPLIT_SEED, spread_rows

TURNS = (1, 3, -1, -3)
"""Turns per second of the classes, clockwise on the screen."""

DIGIT = 1 / 3
"""Side of a digit over that of the frame."""

RADIUS = (0.55, 0.65)
"""Least and largest radius of an orbit, where the frame reaches from -1 to 1."""

Part = Literal["train", "val", "test"]


class ClipForm(NamedTuple):
    """What a clip is like."""

    frames: int = 8
    size: int | tuple[int, int] = 24
    """Side of a frame in pixels, or height and width."""
    fps: float = 8.0

    @property
    def clip_size(self) -> tuple[int, int, int]:
        """(frames, height, width)."""
        height, width = self.size if isinstance(self.size, tuple) else (self.size, self.size)
        return self.frames, height, width


class Orbits(NamedTuple):
    """A motion for each of ``b`` clips; ``phase`` is in turns, lengths are halves of the frame's side."""

    labels: Int64[Tensor, " b"]
    phase: Float[Tensor, " b"]
    radius: Float[Tensor, " b"]
    centre: Float[Tensor, "b 2"]


class MovingDigits(LightningDataModule):
    """Scikit-learn's digits going round a circle: the class is which way and how fast, 1 or 3 turns a second.

    A clip of a second with ``n`` frames, where ``n`` has no factor 3, has a digit at the same ``n`` places whatever its
    class is: the frames of all classes are the same, their order alone differs. A model that sees frames without their
    times, or at shuffled times, can only guess. Digits of the three parts are those of `Digits`. Training clips are
    drawn anew whenever they are read, from torch's seed; those of the other parts are fixed.

    Batches are clips (b, 1, frames, size, size) with ink from -1 (none) to 1, labels (b) and frames per second.

    Args:
        frames: Frames of a clip.
        size: Side of a frame in pixels.
        fps: Frames per second.
        batch_size: Clips per training step on each device.
        clips_per_digit: Training clips of each digit in an epoch.

    Raises:
        ValueError: If a number is not positive.

    Reference:
        Moving digits as data for video: Srivastava et al., 2015, sec. 3.1. https://arxiv.org/abs/1502.04681
    """

    classes = ("clockwise, slow", "clockwise, fast", "anticlockwise, slow", "anticlockwise, fast")

    def __init__(
        self, frames: int = 8, size: int = 24, fps: float = 8.0, batch_size: int = 64, clips_per_digit: int = 1
    ):
        super().__init__()
        self.form = check_square(ClipForm(frames, size, fps))
        for name, number in (("batch_size", batch_size), ("clips_per_digit", clips_per_digit)):
            if number < 1:
                raise ValueError(f"{name} ({number}) must be positive")
        self.batch_size, self.clips_per_digit = batch_size, clips_per_digit
        self.parts: dict[str, tuple[Tensor, Orbits | None]] = {}

    def setup(self, stage: str | None = None) -> None:
        """Reads the digits and draws the orbits of what is evaluated, once."""
        if not self.parts:
            digits, labels = load_digits()
            for number, (part, rows) in enumerate(split_digits(labels).items()):
                generator = torch.Generator().manual_seed(SPLIT_SEED + number)
                orbits = None if part == "train" else draw_orbits(len(rows), generator)
                self.parts[part] = digits[rows], orbits

    def train_dataloader(self) -> DataLoader[Any]:
        """Shuffled, with new orbits in every epoch; the last batch is smaller."""
        digits = self.parts["train"][0].repeat(self.clips_per_digit, 1, 1, 1)
        clips = MovingClips(digits, None, self.form)
        return make_loader(clips, batch_size=self.batch_size, shuffle=True, trainer=self.trainer)

    def val_dataloader(self) -> DataLoader[Any]:
        """What the checkpoint is chosen by."""
        return self.evaluation_loader("val")

    def test_dataloader(self) -> DataLoader[Any]:
        """What nothing is chosen by."""
        return self.evaluation_loader("test")

    def predict_dataloader(self) -> DataLoader[Any]:
        """The test clips again."""
        return self.evaluation_loader("test")

    def evaluation_loader(
        self, part: Part, form: ClipForm | None = None, *, shuffled: bool = False, limit: int | None = None
    ) -> DataLoader[Any]:
        """The same motions always.

        Args:
            part: Whose digits and motions.
            form: Another number of frames, another size or another rate.
            shuffled: Whether the frames of each clip are in an order of chance, the same always.
            limit: Most clips, spread over the classes.
        """
        digits, orbits = self.parts[part]
        if orbits is None:
            orbits = draw_orbits(len(digits), torch.Generator().manual_seed(SPLIT_SEED))
        if limit is not None and limit < len(digits):
            rows = spread_rows(orbits.labels, limit)
            digits, orbits = digits[rows], Orbits(*(values[rows] for values in orbits))
        clips = MovingClips(digits, orbits, check_square(form or self.form), shuffled=shuffled)
        return make_loader(clips, batch_size=self.batch_size)


class MovingClips(Dataset[Any]):
    """Digits with their orbits, or with new ones each time, in finished batches."""

    def __init__(
        self, digits: Float[Tensor, "n 1 8 8"], orbits: Orbits | None, form: ClipForm, *, shuffled: bool = False
    ):
        self.digits, self.orbits, self.form, self.shuffled = digits, orbits, form, shuffled

    def __len__(self) -> int:
        return len(self.digits)

    def __getitems__(self, numbers: list[int]) -> tuple[Tensor, Tensor, float]:
        """The batch of these digits."""
        rows = torch.tensor(numbers)
        orbits = draw_orbits(len(rows)) if self.orbits is None else Orbits(*(values[rows] for values in self.orbits))
        clips = render_clips(self.digits[rows], orbits, self.form)
        if self.shuffled:
            orders = [torch.randperm(self.form.frames, generator=torch.Generator().manual_seed(n)) for n in numbers]
            clips = clips.take_along_dim(torch.stack(orders)[:, None, :, None, None], dim=2)
        return clips, orbits.labels, self.form.fps


def draw_orbits(count: int, generator: torch.Generator | None = None) -> Orbits:
    """Orbits that lie within the frame, as many of each class as of the others, but for one."""
    labels = torch.randperm(count, generator=generator) % len(TURNS)
    phase, radius, *centre = torch.rand(4, count, generator=generator)
    radius = RADIUS[0] + (RADIUS[1] - RADIUS[0]) * radius
    room = 1 - DIGIT - radius
    return Orbits(labels, phase, radius, room[:, None] * (2 * torch.stack(centre, dim=-1) - 1))


def render_clips(
    digits: Float[Tensor, "b 1 8 8"], orbits: Orbits, form: ClipForm
) -> Float[Tensor, "b 1 frames size size"]:
    """Clips of digits on their orbits, from time 0.

    Example:
        >>> clips = render_clips(load_digits()[0][:2], draw_orbits(2), ClipForm(frames=5, size=18, fps=4.0))
        >>> clips.shape
        torch.Size([2, 1, 5, 18, 18])
    """
    b, (frames, size, _) = len(digits), form.clip_size
    seconds = torch.arange(frames) / form.fps
    turns = orbits.phase[:, None] + torch.tensor(TURNS)[orbits.labels][:, None] * seconds
    angle = 2 * math.pi * turns
    # y grows downwards, so that growing angles go clockwise.
    place = orbits.centre[:, None] + orbits.radius[:, None, None] * torch.stack([angle.cos(), angle.sin()], dim=-1)
    # Where in the digit a point (x, y) of the frame lies: (point - place) / DIGIT.
    scale = torch.eye(2).expand(b, frames, 2, 2) / DIGIT
    maps = torch.cat([scale, -place[..., None] / DIGIT], dim=-1).flatten(0, 1)
    points = F.affine_grid(maps, [b * frames, 1, size, size], align_corners=False)
    ink = (digits - BACKGROUND).repeat_interleave(frames, dim=0)
    drawn = F.grid_sample(ink, points, align_corners=False) + BACKGROUND
    return drawn.view(b, frames, 1, size, size).transpose(1, 2)


def check_form(form: ClipForm) -> ClipForm:
    """The form, if there are such clips.

    Raises:
        ValueError: If a number is not positive.
    """
    sides = form.size if isinstance(form.size, tuple) else (form.size,)
    for name, number in (("frames", form.frames), *(("size", side) for side in sides), ("fps", form.fps)):
        if not 0 < number < math.inf:
            raise ValueError(f"{name} ({number}) must be positive")
    return form


def check_square(form: ClipForm) -> ClipForm:
    """The form, if there are such clips and they are square.

    Raises:
        ValueError: If they are not.
    """
    if isinstance(form.size, tuple):
        raise ValueError(f"size ({form.size[0]} x {form.size[1]}) must be one side: moving digits are in a square")
    return check_form(form)
