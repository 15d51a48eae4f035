"""Questions about pictures, films and sound whose answers are bytes, and that need positions across modalities."""

import math
from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import torch
from einops import rearrange
from jaxtyping import Float, Int64
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.data import DataLoader, Dataset

from ..models.mixed import MixedRows
from ..multimodal import Audio, Image, Text, Together, Video
from .corpus import END
from .image import BACKGROUND, load_digits, split_digits
from .loaders import make_loader
from .sound import log_mel

__all__ = ["END", "PictureQuestions", "QuestionData", "SoundQuestions"]

PARTS = ("train", "val", "test")

SIDE = 8
"""Pixels of a side of a digit."""

SAMPLING_RATE = 2000
PITCH = 400.0
"""Of the tone, in Hz."""

BURST = 0.08
"""Seconds that the tone sounds."""

NOISE = 0.05
"""Standard deviation of the noise beside a tone of amplitude 1."""


class Question(NamedTuple):
    """What is asked, the segment that it is about with its content, and the digit that is the answer."""

    text: str
    segment: Image | Together
    content: Any
    answer: int


class Questions(Dataset[Any]):
    """Questions in batches; number ``i`` is the same always."""

    def __init__(self, data: "QuestionData", part: str, count: int, *, answered: bool):
        self.data, self.part, self.count, self.answered = data, part, count, answered

    def __len__(self) -> int:
        return self.count

    def __getitems__(self, numbers: list[int]) -> dict[str, Any]:
        """The batch of these questions."""
        rows, answers = [], []
        for number in numbers:
            draws = torch.Generator().manual_seed(len(PARTS) * number + PARTS.index(self.part))
            asked = self.data.ask(self.part, draws)
            question, answer = to_bytes(asked.text), to_bytes(str(asked.answer), END)
            # All bytes of an answer but the last are read, too, before the next is said.
            end = to_bytes(":", *(answer[:-1].tolist() if self.answered else ()))
            rows.append([(Text(len(question)), question), (asked.segment, asked.content), (Text(len(end)), end)])
            answers.append(answer)
        return {"rows": MixedRows(rows), "answer": torch.stack(answers)}


class QuestionData(LightningDataModule, ABC):
    """Questions that are drawn when they are asked: number ``i`` of a part is the same whatever the training seed.

    Digits are scikit-learn's, each part's from the same part of `Digits`, so those of a test are new to a model. A row
    is a question, what it is about, a colon and the answer. A batch is a dict: ``rows``, `MixedRows` that end with all
    bytes of the answer but the last, and ``answer`` (b, 2), a digit and `END`. For ``predict`` rows end with the colon.

    Args:
        batch_size: Questions per step on each device.
        num_questions: Questions of the training part.
        limit: Questions of validation and of test.
        patch_size: Side of a patch in pixels; 8 is a digit.
        max_shift: Pixels by which digits are shifted at random in training, either way on both axes.
        num_workers: Processes that make batches; with 0 the training process does.

    Raises:
        ValueError: If a number is out of range.
    """

    def __init__(
        self,
        batch_size: int = 64,
        num_questions: int = 64000,
        limit: int = 1000,
        patch_size: int = 8,
        max_shift: int = 1,
        num_workers: int = 0,
    ):
        super().__init__()
        for name, number, least in (
            ("batch_size", batch_size, 1), ("num_questions", num_questions, 1), ("limit", limit, 1),
            ("max_shift", max_shift, 0), ("num_workers", num_workers, 0),
        ):  # fmt: skip
            if number < least:
                raise ValueError(f"{name} ({number}) must be at least {least}")
        if patch_size < 1 or SIDE % patch_size:
            raise ValueError(f"patch_size ({patch_size}) must divide {SIDE}")
        self.batch_size, self.num_questions, self.limit = batch_size, num_questions, limit
        self.patch_size, self.max_shift, self.num_workers = patch_size, max_shift, num_workers
        self.digits: dict[str, tuple[Tensor, Tensor]] = {}  # images at every shift, and what they show

    @abstractmethod
    def ask(self, part: str, draws: torch.Generator) -> Question:
        """A question of a part."""

    def setup(self, stage: str | None = None) -> None:
        """Reads the digits, once."""
        if not self.digits:
            images, labels = load_digits()
            for part, rows in split_digits(labels).items():
                reach = self.max_shift if part == "train" else 0
                margin = pad(images[rows, 0], (reach,) * 4, value=BACKGROUND)
                self.digits[part] = margin.unfold(1, SIDE, 1).unfold(2, SIDE, 1), labels[rows]

    def train_dataloader(self) -> DataLoader[Any]:
        """Shuffled; the last batch is smaller."""
        return self._loader("train", self.num_questions, shuffle=True)

    def val_dataloader(self) -> DataLoader[Any]:
        """What chooses the checkpoint."""
        return self._loader("val", self.limit)

    def test_dataloader(self) -> DataLoader[Any]:
        """What nothing is chosen by."""
        return self._loader("test", self.limit)

    def predict_dataloader(self) -> DataLoader[Any]:
        """The test questions without their answers."""
        return self._loader("test", self.limit, answered=False)

    def draw_digits(
        self, part: str, count: int, draws: torch.Generator
    ) -> tuple[Float[Tensor, "count 8 8"], Int64[Tensor, " count"]]:
        """Images of digits drawn with replacement, and what they show."""
        windows, labels = self.digits[part]
        rows = torch.randint(len(labels), (count,), generator=draws)
        down, right = torch.randint(windows.shape[1], (2, count), generator=draws)
        return windows[rows, down, right], labels[rows]

    def draw_size(self, part: str, least: int, most: int, draws: torch.Generator) -> int:
        """A size from ``least`` to ``most``; in training the smaller of two draws from 1."""
        if part == "train":
            return min(_between(1, most, draws), _between(1, most, draws))
        return _between(least, most, draws)

    def cut(self, images: Float[Tensor, "frames height width"]) -> Float[Tensor, "n p"]:
        """Patches of images, image by image and row by row."""
        size = self.patch_size
        return rearrange(images, "t (y dy) (x dx) -> (t y x) (dy dx)", dy=size, dx=size)

    def _loader(self, part: str, count: int, *, shuffle: bool = False, answered: bool = True) -> DataLoader[Any]:
        return make_loader(
            Questions(self, part, count, answered=answered),
            batch_size=self.batch_size,
            num_workers=self.num_workers,
            shuffle=shuffle,
            trainer=self.trainer,
        )


class PictureQuestions(QuestionData):
    """Which digit of a picture is in a row and a column, counted from 1? ``r2c3`` is the question, in bytes.

    Pictures are grids of digits of several sizes. In training they may be smaller than in the test, down to one digit,
    by which a model learns to read before it learns to find.

    Args:
        batch_size: Questions per step on each device.
        num_questions: Questions of the training part.
        limit: Questions of validation and of test.
        patch_size: Side of a patch in pixels; 8 is a digit.
        max_shift: Pixels by which digits are shifted at random in training, either way on both axes.
        num_workers: Processes that make batches; with 0 the training process does.
        rows: Least and most rows of digits.
        columns: Least and most columns of digits.

    Raises:
        ValueError: If a number is out of range.
    """

    def __init__(
        self,
        batch_size: int = 64,
        num_questions: int = 64000,
        limit: int = 1000,
        patch_size: int = 8,
        max_shift: int = 1,
        num_workers: int = 0,
        rows: tuple[int, int] = (2, 4),
        columns: tuple[int, int] = (2, 5),
    ):
        super().__init__(batch_size, num_questions, limit, patch_size, max_shift, num_workers)
        for name, (least, most) in (("rows", rows), ("columns", columns)):
            if not 1 <= least <= most <= 9:
                raise ValueError(f"{name} ({least}, {most}) must be least and most, from 1 to 9")
        self.rows, self.columns = rows, columns

    def ask(self, part: str, draws: torch.Generator) -> Question:
        height, width = (self.draw_size(part, *sides, draws) for sides in (self.rows, self.columns))
        images, labels = self.draw_digits(part, height * width, draws)
        picture = rearrange(images, "(y x) dy dx -> 1 (y dy) (x dx)", y=height)
        image = Image(picture.shape[1] // self.patch_size, picture.shape[2] // self.patch_size)
        row, column = _between(1, height, draws), _between(1, width, draws)
        digit = int(labels[(row - 1) * width + column - 1])
        return Question(f"r{row}c{column}", image, self.cut(picture), digit)


class SoundQuestions(QuestionData):
    """Which digit was on screen when the tone sounded? A film of digits, with sound that ends at another time.

    Frames of the film and of the sound follow at other rates in each sample, so their numbers do not tell which belong
    together; only the clock does. There are 1.5 to 6 frames of film in a second, and 2 to 3.5 times as many of sound.
    The tone sounds within the middle half of the time that its frame is on screen.

    Args:
        batch_size: Questions per step on each device.
        num_questions: Questions of the training part.
        limit: Questions of validation and of test.
        patch_size: Side of a patch in pixels; 8 is a digit.
        max_shift: Pixels by which digits are shifted at random in training, either way on both axes.
        num_workers: Processes that make batches; with 0 the training process does.
        frames: Least and most frames of the film; in training there may be fewer, down to one.
        bands: Mel bands of a frame of sound.

    Raises:
        ValueError: If a number is out of range.
    """

    def __init__(
        self,
        batch_size: int = 64,
        num_questions: int = 64000,
        limit: int = 1000,
        patch_size: int = 8,
        max_shift: int = 1,
        num_workers: int = 0,
        frames: tuple[int, int] = (4, 8),
        bands: int = 8,
    ):
        super().__init__(batch_size, num_questions, limit, patch_size, max_shift, num_workers)
        if not 1 <= frames[0] <= frames[1]:
            raise ValueError(f"frames ({frames[0]}, {frames[1]}) must be least and most, from 1")
        if bands < 1:
            raise ValueError(f"bands ({bands}) must be at least 1")
        self.frames, self.bands = frames, bands

    def ask(self, part: str, draws: torch.Generator) -> Question:
        count = self.draw_size(part, *self.frames, draws)
        images, labels = self.draw_digits(part, count, draws)
        frame = _between(0, count - 1, draws)
        speed, ratio, within, rest = torch.rand(4, generator=draws, dtype=torch.float64).tolist()
        fps = 1.5 * 4**speed
        tone = (frame + 0.25 + 0.5 * within) / fps
        step = round(SAMPLING_RATE / (fps * (2 + 1.5 * ratio)))  # samples from one frame of sound to the next
        end = tone + (2 * step) / SAMPLING_RATE + rest * (1.25 * count / fps - tone)
        wave = NOISE * torch.randn(round(end * SAMPLING_RATE), generator=draws)
        start = max(round((tone - BURST / 2) * SAMPLING_RATE), 0)
        places = torch.arange(start, min(start + round(BURST * SAMPLING_RATE), len(wave)))
        wave[places] += torch.sin(2 * math.pi * PITCH / SAMPLING_RATE * places)
        hop = step / SAMPLING_RATE
        sound, _ = log_mel(wave, SAMPLING_RATE, bands=self.bands, window=1.5 * hop, hop=hop, low=50.0, high=1000.0)
        side = SIDE // self.patch_size
        film = Together(Video(count, side, side, fps=fps), Audio(len(sound), rate=1 / hop))
        # A quarter brings the logarithms of energies to the size of pixels.
        return Question("tone", film, (self.cut(images), sound / 4), int(labels[frame]))


def to_bytes(text: str, *more: int) -> Int64[Tensor, " n"]:
    """The bytes of a text as numbers, and more behind them.

    Example:
        >>> to_bytes("row", 255)
        tensor([114, 111, 119, 255])
    """
    return torch.tensor([*text.encode(), *more], dtype=torch.int64)


def _between(least: int, most: int, draws: torch.Generator) -> int:
    return int(torch.randint(least, most + 1, (1,), generator=draws))
