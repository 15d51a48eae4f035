"""Bytes of text, for language models."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Int64
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from .corpus import END, Corpus, find_texts, open_corpus, python_sources
from .loaders import make_loader

__all__ = ["END", "TextBytes"]


class Windows(Dataset[Any]):
    """Stretches of ``length + 1`` bytes, each starting where the one before had its last: inputs and their targets."""

    def __init__(self, corpus: Corpus, length: int, limit: int | None = None):
        self.tokens, self.length = corpus.tokens, length
        count = max((len(self.tokens) - 1) // length, 0)
        self.numbers = np.arange(count)
        if limit is not None and limit < count:  # spread over all
            self.numbers = ((np.arange(limit) + 0.5) * count / limit).astype(np.int64)

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitems__(self, rows: list[int]) -> Int64[Tensor, "b n"]:
        """The batch of these windows."""
        starts = self.numbers[rows] * self.length
        return torch.from_numpy(self.tokens[starts[:, None] + np.arange(self.length + 1)].astype(np.int64))


class TextBytes(LightningDataModule):
    """The bytes of text files, packed: batches (b, length + 1) of numbers from 0 to 255.

    A document begins with `END` (255), which no text has; what follows the first of its kind in a row is another
    document, to be kept apart by a mask. Inputs are all numbers of a row but the last, targets all but the first. The
    files are shared out to training, validation (5 % of the bytes) and test (5 %), the same whatever the training seed;
    fewer than twenty are cut in these shares. They are read once, into a cache that is mapped and never loaded whole;
    it is built anew when the size or the time of a file has changed.

    Args:
        files: Text files and folders of them; by default the modules of Python's standard library.
        length: Bytes that a model sees in training.
        batch_size: Rows per step on each device.
        num_workers: Processes that make batches; with 0 the training process does.
        limit: Most windows for validation and for test, spread over all.
        cache: Folder of the cache; below the user's own cache folder unless given.

    Raises:
        FileNotFoundError: If a file does not exist.
        ValueError: If a number is not positive, a file is empty or no UTF-8 text, or a part is shorter than ``length``.
    """

    num_tokens = 256

    def __init__(
        self,
        files: list[str] | None = None,
        length: int = 128,
        batch_size: int = 32,
        num_workers: int = 0,
        limit: int | None = 500,
        cache: str | None = None,
    ):
        super().__init__()
        for name, number, bound in (
            ("length", length, 1), ("batch_size", batch_size, 1), ("num_workers", num_workers, 0), ("limit", limit, 1),
        ):  # fmt: skip
            if number is not None and number < bound:
                raise ValueError(f"{name} ({number}) must be at least {bound}")
        self.files, self.length, self.batch_size = files, length, batch_size
        self.num_workers, self.limit = num_workers, limit
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        self.cache = Path(cache) if cache else home / "mmpos" / "text"
        self.parts: dict[str, Corpus] = {}

    def prepare_data(self) -> None:
        """Builds the cache, in one process of each machine."""
        open_corpus(self._paths(), self.cache)

    def setup(self, stage: str | None = None) -> None:
        """Opens the cache, once."""
        if not self.parts:
            self.parts = open_corpus(self._paths(), self.cache)
            for part, corpus in self.parts.items():
                if len(corpus.tokens) <= self.length:
                    raise ValueError(
                        f"the {part} part has {len(corpus.tokens)} bytes, too few for windows of {self.length} + 1; "
                        "give more text or a smaller length"
                    )

    def train_dataloader(self) -> DataLoader[Any]:
        """Shuffled; the last batch is smaller."""
        return self._loader(Windows(self.parts["train"], self.length), shuffle=True)

    def val_dataloader(self) -> DataLoader[Any]:
        """Of the text that chooses the checkpoint."""
        return self._loader(Windows(self.parts["val"], self.length, self.limit))

    def test_dataloader(self) -> DataLoader[Any]:
        """Of text that no choice depends on."""
        return self._loader(Windows(self.parts["test"], self.length, self.limit))

    predict_dataloader = test_dataloader

    def documents(
        self, part: Literal["train", "val", "test"], length: int, limit: int | None = None
    ) -> Int64[Tensor, "b n"]:
        """Stretches of ``length + 1`` bytes that lie within a document each, disjoint but for the last byte.

        A document has as many as fit, from its start, whose first byte is `END`.

        Args:
            part: "train", "val" or "test".
            length: Bytes that a model is to predict.
            limit: Most stretches, spread over all; all if None.

        Raises:
            ValueError: If no document is long enough.
        """
        self.setup()
        tokens, starts = self.parts[part]
        counts = (np.diff(np.append(starts, len(tokens))) - 1) // length
        if not counts.any():
            raise ValueError(f"no document of the {part} part has more than {length} bytes")
        places = np.concatenate(
            [start + length * np.arange(count) for start, count in zip(starts, counts, strict=True)]
        )
        if limit is not None and limit < len(places):
            places = places[((np.arange(limit) + 0.5) * len(places) / limit).astype(np.int64)]
        return torch.from_numpy(tokens[places[:, None] + np.arange(length + 1)].astype(np.int64))

    def _paths(self) -> Sequence[Path]:
        return python_sources() if self.files is None else find_texts(self.files)

    def _loader(self, windows: Windows, shuffle: bool = False) -> DataLoader[Any]:
        return make_loader(
            windows,
            batch_size=self.batch_size,
            num_workers=self.num_workers,
            shuffle=shuffle,
            trainer=self.trainer,
        )
