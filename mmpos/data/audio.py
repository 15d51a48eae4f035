"""Folders of sound files, for the classifier of sequences."""

import logging
import math
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

from .loaders import make_loader
from .readers import label_files, list_folders, part_folders
from .samples import set_aside
from .sound import SILENCE, find_sounds, log_mel, read_sound


class Sounds(Dataset[Any]):
    """Frames of sound files, padded on the right to the longest of their batch."""

    def __init__(self, frames: list[Float[Tensor, "_ c"]], seconds: list[Float[Tensor, " _"]], labels: Tensor):
        self.frames, self.seconds, self.labels = frames, seconds, labels

    def take(self, rows: Int64[Tensor, " m"]) -> "Sounds":
        """Some of the files."""
        return Sounds([self.frames[row] for row in rows], [self.seconds[row] for row in rows], self.labels[rows])

    def __len__(self) -> int:
        return len(self.labels)

    def __getitems__(self, numbers: list[int]) -> dict[str, Tensor]:
        """The batch of these files."""
        lengths = torch.tensor([len(self.frames[number]) for number in numbers])
        values = pad_sequence([self.frames[number] for number in numbers], batch_first=True)
        times = [(self.seconds[number] * 1e9).round().long() for number in numbers]
        return {
            "values": values,
            "times": pad_sequence(times, batch_first=True),
            "real": torch.arange(values.shape[1]) < lengths[:, None],
            "label": self.labels[numbers],
        }


class AudioFolder(LightningDataModule):
    """Sound files (wav, flac) of any length and sampling rate in a folder for each class.

    In ``root`` are either the folders of the classes, or the folders ``train`` and ``val`` or ``test`` or both with
    those of the classes in them. With no ``test``, ``val`` is the test; what is missing is set aside from the training
    files, the same whatever the training seed. Frames lie in memory, about 60 MB an hour of 40 bands. A file that
    cannot be read is named, counted and left out.

    A batch is a dict: ``values`` (b, n, patch * bands), log-mel energies less the mean and over the standard deviation
    of each band in the training part, and 0 past the end of a file; ``times`` (b, n), nanoseconds from the start of the
    file to the middle of each token; ``real`` (b, n), True up to the end; ``label`` (b).

    Args:
        root: Folder of the files.
        batch_size: Files per training step on each device.
        bands: Number of mel bands.
        window: Seconds that a frame sees.
        hop: Seconds from a frame to the next.
        low: Lower end of the first band in Hz.
        high: Upper end of the last band in Hz.
        patch: Frames of a token; one that the end of a file cuts is filled with silence.
        seconds: Most seconds that are read of a file, from its start; all if None.

    Raises:
        ValueError: If a number is out of range, or the model is for another number of channels or classes.
        FileNotFoundError: If there is no such folder, or a class has no file that can be read.
    """

    classes: tuple[str, ...] = ()
    """Names of the classes, in the order of labels; known after `setup`."""

    def __init__(
        self,
        root: str = "data",
        batch_size: int = 32,
        bands: int = 40,
        window: float = 0.025,
        hop: float = 0.01,
        low: float = 20.0,
        high: float = 8000.0,
        patch: int = 4,
        seconds: float | None = None,
    ):
        super().__init__()
        for name, number in (("batch_size", batch_size), ("bands", bands), ("patch", patch)):
            if number < 1:
                raise ValueError(f"{name} ({number}) must be at least 1")
        for name, number in (("window", window), ("hop", hop), ("seconds", seconds)):
            if number is not None and not 0 < number < math.inf:
                raise ValueError(f"{name} ({number}) must be positive and finite")
        if not 0 <= low < high < math.inf:
            raise ValueError(f"low ({low:g}) must be at least 0 and below high ({high:g})")
        self.root, self.batch_size, self.patch, self.limit = Path(root).expanduser(), batch_size, patch, seconds
        self.bands, self.window, self.hop, self.low, self.high = bands, window, hop, low, high
        self.mean, self.std = torch.zeros(bands), torch.ones(bands)
        self.skipped: dict[Path, str] = {}
        self.parts: dict[str, Sounds] = {}

    def setup(self, stage: str | None = None) -> None:
        """Reads the files, once."""
        if self.parts:
            return
        folders = part_folders(self.root, type(self).__name__)
        self.classes = tuple(list_folders(folders["train"]))
        parts = {part: self._read(part, folder) for part, folder in folders.items()}
        if self.skipped:
            total = len(self.skipped) + sum(map(len, parts.values()))
            logging.getLogger(__name__).warning(
                f"{len(self.skipped)} of {total} sound files are left out: {'; '.join(self.skipped.values())}"
            )
        self._check_model()
        for part in ("test", "val"):
            if part not in parts:
                if len(parts["train"]) < 2:
                    raise ValueError(f"root ({self.root}) has too few sound files to set some aside for {part}")
                parts["train"], parts[part] = set_aside(parts["train"])
        counts = parts["train"].labels.bincount(minlength=len(self.classes))
        if empty := [name for name, count in zip(self.classes, counts.tolist(), strict=True) if not count]:
            raise FileNotFoundError(f"{self.root} has no sound files to train on of {', '.join(empty)}")
        everything = torch.cat(parts["train"].frames)
        self.mean, self.std = everything.mean(0), everything.std(0, correction=0).clamp(min=1e-3)
        for part, sounds in parts.items():
            tokens = [self._tokens(one, own) for one, own in zip(sounds.frames, sounds.seconds, strict=True)]
            self.parts[part] = Sounds([values for values, _ in tokens], [times for _, times in tokens], sounds.labels)

    def train_dataloader(self) -> DataLoader[Any]:
        """Shuffled; the last batch is smaller."""
        return make_loader(self.parts["train"], batch_size=self.batch_size, shuffle=True, trainer=self.trainer)

    def val_dataloader(self) -> DataLoader[Any]:
        """What chooses the checkpoint."""
        return make_loader(self.parts["val"], batch_size=self.batch_size)

    def test_dataloader(self) -> DataLoader[Any]:
        """What nothing is chosen by."""
        return make_loader(self.parts["test"], batch_size=self.batch_size)

    predict_dataloader = test_dataloader

    def _read(self, part: str, folder: Path) -> Sounds:
        """The files that can be read."""
        paths, classes = label_files(part, folder, self.classes, find_sounds, what="sound files", example="cat/1.wav")
        frames, seconds, labels = [], [], []
        for path, label in zip(paths, classes, strict=True):
            try:
                wave, rate = read_sound(path)
            except OSError as error:
                self.skipped[path] = str(error)
                continue
            wave = wave if self.limit is None else wave[: max(round(self.limit * rate), 1)]
            energies, times = log_mel(
                wave, rate, bands=self.bands, window=self.window, hop=self.hop, low=self.low, high=self.high
            )
            frames.append(energies)
            seconds.append(times)
            labels.append(label)
        if not labels:
            raise FileNotFoundError(f"{folder} has no sound file that can be read: {'; '.join(self.skipped.values())}")
        return Sounds(frames, seconds, torch.tensor(labels))

    def _tokens(
        self, frames: Float[Tensor, "n bands"], seconds: Float[Tensor, " n"]
    ) -> tuple[Float[Tensor, "m c"], Float[Tensor, " m"]]:
        """Scaled frames, ``patch`` to a token, and the second in the middle of each token."""
        missing = -len(frames) % self.patch
        frames = F.pad(frames, (0, 0, 0, missing), value=math.log(SILENCE))
        step = seconds[1] - seconds[0] if len(seconds) > 1 else self.hop
        starts = seconds[:: self.patch]
        return ((frames - self.mean) / self.std).view(-1, self.patch * self.bands), starts + step * (self.patch - 1) / 2

    def _check_model(self) -> None:
        """Refuses a model for other data, where one is attached."""
        module = None if self.trainer is None else self.trainer.lightning_module
        expected = {} if module is None else module.hparams
        for name, number, reason in (
            ("channels", self.patch * self.bands, "patch * bands"),
            ("num_classes", len(self.classes), f"the folders {', '.join(self.classes)}"),
        ):
            if expected.get(name, number) != number:
                raise ValueError(f"{name} ({expected[name]}) must be {number}, for the data has {reason}")
