"""Spoken vowels: ragged series of many channels, for classification."""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

from .loaders import make_loader
from .samples import spread_rows
from .series_files import ASSETS


class Utterances(Dataset[Any]):
    """Series of different lengths, padded on the right to the longest of their batch."""

    def __init__(self, series: list[Float[Tensor, "_ c"]], labels: Int64[Tensor, " rows"]):
        self.series, self.labels = series, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitems__(self, numbers: list[int]) -> dict[str, Tensor]:
        """The batch of these series."""
        series = [self.series[number] for number in numbers]
        lengths = torch.tensor([len(frames) for frames in series])
        values = pad_sequence(series, batch_first=True)
        return {
            "values": values,
            "real": torch.arange(values.shape[1]) < lengths[:, None],
            "label": self.labels[numbers],
        }


class VowelData(LightningDataModule):
    """Japanese Vowels: nine speakers say /ae/, in 7 to 29 frames of 12 LPC cepstrum coefficients; who is it?

    A batch is a dict: ``values`` (b, n, 12) in float32, less the mean and over the standard deviation of the frames of
    the training part, and 0 past the end of a series; ``real`` (b, n), True up to the end; ``label`` (b), from 0 to 8.
    Training and test are those of the source, 270 and 370 series; validation is part of the training series, with the
    same share of every speaker, and the same whatever the training seed.

    Args:
        batch_size: Series per training step on each device.
        val_share: Share of the training series that validation has: 5 of the 30 of each speaker.

    Reference:
        Kudo et al., Multidimensional curve classification using passing-through regions, 1999.
        https://doi.org/10.24432/C5NS47
    """

    num_classes = 9
    channels = 12
    classes = tuple("123456789")

    def __init__(self, batch_size: int = 32, val_share: float = 1 / 6):
        super().__init__()
        if batch_size < 1:
            raise ValueError(f"batch_size ({batch_size}) must be at least 1")
        if not 0 < val_share < 1:
            raise ValueError(f"val_share ({val_share}) must be more than 0 and less than 1")
        self.batch_size, self.val_share = batch_size, val_share
        self.mean, self.std = torch.zeros(self.channels), torch.ones(self.channels)
        self.parts: dict[str, Utterances] = {}

    def setup(self, stage: str | None = None) -> None:
        """Reads the series, once."""
        if self.parts:
            return
        series, labels = load_vowels("train")
        held = torch.zeros(len(labels), dtype=torch.bool)
        held[spread_rows(labels, max(round(self.val_share * len(labels)), 1))] = True
        test, test_labels = load_vowels("test")
        frames = torch.cat([series[row] for row in (~held).nonzero()[:, 0].tolist()])
        self.mean, self.std = frames.mean(0), frames.std(0, correction=0)
        scaled = [(one - self.mean) / self.std for one in series]
        for part, rows in (("train", ~held), ("val", held)):
            numbers = rows.nonzero()[:, 0]
            self.parts[part] = Utterances([scaled[row] for row in numbers.tolist()], labels[numbers])
        self.parts["test"] = Utterances([(one - self.mean) / self.std for one in test], test_labels)

    def train_dataloader(self) -> DataLoader[Any]:
        """Shuffled; the last batch is smaller."""
        return make_loader(self.parts["train"], batch_size=self.batch_size, shuffle=True, trainer=self.trainer)

    def val_dataloader(self) -> DataLoader[Any]:
        """What chooses the checkpoint, in one batch."""
        return make_loader(self.parts["val"], batch_size=len(self.parts["val"]))

    def test_dataloader(self) -> DataLoader[Any]:
        """What nothing is chosen by, in one batch."""
        return make_loader(self.parts["test"], batch_size=len(self.parts["test"]))

    predict_dataloader = test_dataloader


def load_vowels(part: str) -> tuple[list[Float[Tensor, "_ 12"]], Int64[Tensor, " rows"]]:
    """The series of "train" or "test", each (7 to 29, 12), and their speakers from 0.

    Example:
        >>> series, speakers = load_vowels("train")
        >>> len(series), series[0].shape, speakers.bincount()
        (270, torch.Size([20, 12]), tensor([30, 30, 30, 30, 30, 30, 30, 30, 30]))
    """
    with np.load(ASSETS / "japanese_vowels.npz") as arrays:
        names = {name.removeprefix(f"{part}_"): array for name, array in arrays.items() if name.startswith(part)}
    frames = torch.from_numpy(names["frames"]).float()
    return list(frames.split(names["lengths"].tolist())), torch.from_numpy(names["speaker"]).long()
