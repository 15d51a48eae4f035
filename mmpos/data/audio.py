"""Sound files as frames of log-mel energies that lie at seconds, for the classifier of sequences."""

import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

from .readers import list_folders
from .samples import keep, spread_rows

SUFFIXES = (".wav", ".flac")
SILENCE = 1e-10
"""Energy below which nothing is told apart, so that the logarithm has an end."""

SHARE = 0.1
"""Share of the training files that is set aside for a part which a folder does not have."""


def mel_filters(
    bands: int, bins: int, rate: float, *, low: float = 0.0, high: float | None = None
) -> Float[Tensor, "bins bands"]:
    """Weights of the energies of a spectrum in bands that are triangles of equal width on the mel scale.

    ``mel(f) = 2595 log10(1 + f / 700)``. Band ``i`` rises from corner ``i`` to corner ``i + 1``, where it is 1, and
    falls to corner ``i + 2``; the ``bands + 2`` corners lie at equal steps of mel from ``low`` to ``high``, and bin
    ``j`` at ``j / (bins - 1)`` of half the sampling rate.

    Args:
        bands: Number of bands.
        bins: Number of frequencies of the spectrum, from 0 to half the sampling rate.
        rate: Sampling rate in Hz.
        low: Lower end of the first band in Hz.
        high: Upper end of the last band in Hz; half the sampling rate unless given. Bands past that are empty.

    Raises:
        ValueError: If a number is not positive, or ``low`` not below ``high``.

    Reference:
        Young et al., The HTK Book, 2006, sec. 5.4. https://htk.eng.cam.ac.uk

    Example:
        >>> mel_filters(bands=2, bins=5, rate=8000).T
        tensor([[0.0000, 0.6759, 0.0000, 0.0000, 0.0000],
                [0.0000, 0.3241, 0.9055, 0.4528, 0.0000]])
    """
    high = rate / 2 if high is None else high
    if bands < 1 or bins < 2 or not rate > 0:
        raise ValueError(f"bands ({bands}), bins ({bins}) and rate ({rate}) must be at least 1, 2 and above 0")
    if not 0 <= low < high < math.inf:
        raise ValueError(f"low ({low:g}) must be at least 0 and below high ({high:g})")
    low_mel, high_mel = (2595 * math.log10(1 + edge / 700) for edge in (low, high))
    mels = low_mel + (high_mel - low_mel) * torch.arange(bands + 2, dtype=torch.float64) / (bands + 1)
    corners = 700 * (10 ** (mels / 2595) - 1)
    freqs = torch.arange(bins, dtype=torch.float64)[:, None] * rate / (2 * (bins - 1))
    rise = (freqs - corners[:-2]) / (corners[1:-1] - corners[:-2])
    fall = (corners[2:] - freqs) / (corners[2:] - corners[1:-1])
    return torch.minimum(rise, fall).clamp(min=0).float()


def log_mel(
    wave: Float[Tensor, " samples"],
    rate: float,
    *,
    bands: int = 40,
    window: float = 0.025,
    hop: float = 0.01,
    low: float = 20.0,
    high: float | None = 8000.0,
) -> tuple[Float[Tensor, "frames bands"], Float[Tensor, " frames"]]:
    """Logarithms of the energies in mel bands, and the second in the middle of each frame.

    A frame is a whole number of samples behind the one before it, the nearest to ``hop``, and its second is that of its
    middle sample: frames of any sampling rate and any hop are where they are on the clock.

    Args:
        wave: Samples.
        rate: Sampling rate in Hz.
        bands: Number of mel bands.
        window: Seconds that a frame sees, through a Hann window.
        hop: Seconds from a frame to the next.
        low: Lower end of the first band in Hz.
        high: Upper end of the last band in Hz. Bands that the sampling rate does not reach are silent.

    Raises:
        ValueError: If there are no samples, or a number is out of range.

    Example:
        >>> second = torch.sin(440 * 2 * torch.pi * torch.arange(22050) / 22050)
        >>> energies, seconds = log_mel(second, rate=22050, hop=0.02)
        >>> energies.shape, seconds[-1]
        (torch.Size([51, 40]), tensor(1., dtype=torch.float64))
    """
    for name, value in (("rate", rate), ("window", window), ("hop", hop)):
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name} must be positive and finite, got {value}")
    if wave.ndim != 1 or not len(wave):
        raise ValueError(f"wave must be samples (n,), got shape {tuple(wave.shape)}")
    width, step = max(round(window * rate), 2), max(round(hop * rate), 1)
    size = 1 << (width - 1).bit_length()
    spectrum = torch.stft(
        wave, size, step, width, torch.hann_window(width), center=True, pad_mode="constant", return_complex=True
    )
    energies = spectrum.abs().square().T @ mel_filters(bands, size // 2 + 1, rate, low=low, high=high)
    seconds = torch.arange(len(energies), dtype=torch.float64) * step / rate
    return energies.clamp(min=SILENCE).log(), seconds


def read_sound(path: Path) -> tuple[Float[Tensor, " samples"], int]:
    """The samples of a sound file from -1 to 1, as the mean of its channels, and its sampling rate in Hz.

    Raises:
        OSError: If the file is no sound file, or has no samples; the message names it.
        ImportError: If the package soundfile is not installed.
    """
    try:
        import soundfile  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ImportError("sound files need the package soundfile: pip install 'mmpos[audio]'") from error
    try:
        samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
    except (OSError, RuntimeError, ValueError, TypeError) as error:  # what soundfile raises
        raise OSError(f"{path} cannot be read as sound: {error}") from error
    wave = torch.from_numpy(samples).mean(dim=1)
    if not len(wave):
        raise OSError(f"{path} has no samples")
    if not wave.isfinite().all():
        raise OSError(f"{path} has samples that are not finite")
    return wave, rate


class Sounds(Dataset[Any]):
    """Frames of sound files, padded on the right to the longest of their batch."""

    def __init__(self, frames: list[Float[Tensor, "_ c"]], seconds: list[Float[Tensor, " _"]], labels: Tensor):
        self.frames, self.seconds, self.labels = frames, seconds, labels

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
            if number is not None and not number > 0:
                raise ValueError(f"{name} ({number}) must be positive")
        if not 0 <= low < high:
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
        parts = {part: self._read(folder) for part, folder in self._folders().items()}
        if self.skipped:
            total = len(self.skipped) + sum(len(labels) for _, _, labels in parts.values())
            logging.getLogger(__name__).warning(
                f"{len(self.skipped)} of {total} sound files are left out: {'; '.join(self.skipped.values())}"
            )
        self._check_model()
        for part in ("test", "val"):
            if part not in parts:
                parts["train"], parts[part] = _set_aside(*parts["train"])
        counts = parts["train"][2].bincount(minlength=len(self.classes))
        if empty := [name for name, count in zip(self.classes, counts.tolist(), strict=True) if not count]:
            raise FileNotFoundError(f"{self.root} has no sound files to train on of {', '.join(empty)}")
        everything = torch.cat(parts["train"][0])
        self.mean, self.std = everything.mean(0), everything.std(0, correction=0).clamp(min=1e-3)
        for part, (frames, seconds, labels) in parts.items():
            tokens = [self._tokens(one, own) for one, own in zip(frames, seconds, strict=True)]
            self.parts[part] = Sounds([values for values, _ in tokens], [times for _, times in tokens], labels)

    def train_dataloader(self) -> DataLoader[Any]:
        """Shuffled; the last batch is smaller."""
        return DataLoader(self.parts["train"], batch_size=self.batch_size, shuffle=True, collate_fn=keep)

    def val_dataloader(self) -> DataLoader[Any]:
        """What chooses the checkpoint."""
        return DataLoader(self.parts["val"], batch_size=self.batch_size, collate_fn=keep)

    def test_dataloader(self) -> DataLoader[Any]:
        """What nothing is chosen by."""
        return DataLoader(self.parts["test"], batch_size=self.batch_size, collate_fn=keep)

    predict_dataloader = test_dataloader

    def _folders(self) -> dict[str, Path]:
        if not self.root.is_dir():
            raise FileNotFoundError(
                f"root ({self.root}) is not a folder; AudioFolder wants one with a folder for each class"
            )
        folders = {part: self.root / part for part in ("train", "val", "test") if (self.root / part).is_dir()}
        if "train" not in folders:
            folders = {"train": self.root}
        if "test" not in folders and "val" in folders:
            folders["test"] = folders.pop("val")
        self.classes = tuple(list_folders(folders["train"]))
        return folders

    def _read(self, folder: Path) -> tuple[list[Tensor], list[Tensor], Int64[Tensor, " files"]]:
        """Frames, seconds and labels of the files that can be read."""
        names = list_folders(folder)
        if strange := [name for name in names if name not in self.classes]:
            raise ValueError(f"{folder} has {', '.join(strange)}, a class that training never sees")
        frames, seconds, labels = [], [], []
        for name in names:
            for path in find_sounds(folder / name):
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
                labels.append(self.classes.index(name))
        if not labels:
            reasons = f": {'; '.join(self.skipped.values())}" if self.skipped else f", such as {folder}/cat/1.wav"
            raise FileNotFoundError(f"{folder} has no sound files in folders of classes{reasons}")
        return frames, seconds, torch.tensor(labels)

    def _tokens(
        self, frames: Float[Tensor, "n bands"], seconds: Float[Tensor, " n"]
    ) -> tuple[Float[Tensor, "m c"], Float[Tensor, " m"]]:
        """Scaled frames, ``patch`` to a token, and the second in the middle of each token."""
        missing = -len(frames) % self.patch
        frames = F.pad(frames, (0, 0, 0, missing), value=math.log(SILENCE))
        step = seconds[1] - seconds[0] if len(seconds) > 1 else 0.0
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


def find_sounds(folder: Path) -> list[Path]:
    """Files below a folder whose names end as those of sound do, sorted."""
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())


def _set_aside(
    frames: Sequence[Tensor], seconds: Sequence[Tensor], labels: Int64[Tensor, " n"]
) -> tuple[tuple[list[Tensor], list[Tensor], Tensor], tuple[list[Tensor], list[Tensor], Tensor]]:
    """The files without a share of them, at least one, and that share."""
    held = torch.zeros(len(labels), dtype=torch.bool)
    held[spread_rows(labels, max(round(SHARE * len(labels)), 1))] = True
    first, second = (
        ([frames[row] for row in rows], [seconds[row] for row in rows], labels[rows])
        for rows in ((~held).nonzero()[:, 0].tolist(), held.nonzero()[:, 0].tolist())
    )
    return first, second
