"""Labelled images, in memory or on disk, that come in finished batches."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self, TypeVar

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor
from torch.utils.data import Dataset

SPLIT_SEED = 0
"""The split belongs to the data: it is the same whatever seed a training run uses."""

SHARE = 0.1
"""Share of the training samples that is set aside for a part which a folder does not have."""

Transform = Callable[[Tensor], Float[Tensor, "..."]]


class InMemory(NamedTuple):
    """Images of one size; a transform gets a batch of them."""

    images: UInt8[Tensor, "n c height width"]
    labels: Int64[Tensor, " n"]

    def take(self, rows: Int64[Tensor, " m"]) -> "InMemory":
        """Some of the samples."""
        return InMemory(self.images[rows], self.labels[rows])

    def batch(self, rows: Int64[Tensor, " b"], transform: Transform) -> Float[Tensor, "b c height width"]:
        """Images of these samples."""
        return transform(self.images[rows])


class OnDisk(NamedTuple):
    """Files of images of any size; a transform gets one at a time and makes them one size."""

    paths: list[Path]
    labels: Int64[Tensor, " n"]
    read: Callable[[Path], UInt8[Tensor, "c height width"]]

    def take(self, rows: Int64[Tensor, " m"]) -> "OnDisk":
        """Some of the samples."""
        return OnDisk([self.paths[row] for row in rows], self.labels[rows], self.read)

    def batch(self, rows: Int64[Tensor, " b"], transform: Transform) -> Float[Tensor, "b c height width"]:
        """Images of these samples."""
        return torch.stack([transform(self.read(self.paths[row])) for row in rows])


Samples = InMemory | OnDisk


class Labelled(Protocol):
    """Samples of any kind with the number of the class of each."""

    @property
    def labels(self) -> Int64[Tensor, " n"]: ...

    def take(self, rows: Int64[Tensor, " m"]) -> Self: ...


Some = TypeVar("Some", bound=Labelled)


class Batches(Dataset[Any]):
    """Batches of images and labels."""

    def __init__(self, samples: Samples, transform: Transform):
        self.samples, self.transform = samples, transform

    def __len__(self) -> int:
        return len(self.samples.labels)

    def __getitems__(self, numbers: list[int]) -> tuple[Float[Tensor, "b c height width"], Int64[Tensor, " b"]]:
        """The batch of these samples."""
        rows = torch.tensor(numbers)
        return self.samples.batch(rows, self.transform), self.samples.labels[rows]


def spread_rows(labels: Int64[Tensor, " n"], count: int) -> Int64[Tensor, " count"]:
    """Numbers of ``count`` samples, the same ones always, in which each class has the share that it has in all.

    Example:
        >>> labels = torch.tensor([0] * 20 + [1] * 60)
        >>> labels[spread_rows(labels, 8)].bincount()
        tensor([2, 6])
    """
    shuffled = torch.randperm(len(labels), generator=torch.Generator().manual_seed(SPLIT_SEED))
    by_class = shuffled[labels[shuffled].argsort(stable=True)]
    return by_class[((torch.arange(count) + 0.5) * len(labels) / count).long()].sort().values


def set_aside(samples: Some, share: float = SHARE) -> tuple[Some, Some]:
    """The samples without a share of them, at least one, and that share."""
    count = max(round(share * len(samples.labels)), 1)
    rows = spread_rows(samples.labels, count)
    left = torch.ones(len(samples.labels), dtype=torch.bool)
    left[rows] = False
    return samples.take(left.nonzero()[:, 0]), samples.take(rows)


def limit_samples(samples: Some, limit: int | None) -> Some:
    """At most so many samples, spread over all."""
    if limit is None or limit >= len(samples.labels):
        return samples
    return samples.take(spread_rows(samples.labels, limit))
