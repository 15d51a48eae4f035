"""Training batches whose order and random numbers follow from their place alone, so that a run goes on anywhere."""

import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from lightning.pytorch import Trainer
from torch.utils.data import DataLoader, Dataset, DistributedSampler

PATIENCE = 600.0
"""Seconds after which a process that loads data and sends no batch is given up."""

OF_DATA, OF_MODEL = 0, 1
"""Whose random numbers: those of a batch are the same whatever process loads it, and the model's whatever it draws."""


class Place(NamedTuple):
    """The sample ``row`` as number ``place`` of an epoch."""

    epoch: int
    place: int
    row: int


class Order(DistributedSampler[Any]):
    """An order of the rows for every epoch, which follows from the seed and the epoch.

    Processes take turns, so that the rows of a step are the same however many share it.

    Args:
        dataset: What has the rows.
        batch_size: Samples of a batch in each process.
        seed: What all random numbers follow from.
        trainer: Who counts the batches: a run that goes on within an epoch begins at the first that is not done.
    """

    def __init__(self, dataset: Dataset[Any], batch_size: int, seed: int, trainer: Trainer):
        shares = trainer.distributed_sampler_kwargs or {"num_replicas": 1, "rank": 0}
        super().__init__(dataset, **shares, shuffle=True, seed=seed)
        self.batch_size, self.trainer = batch_size, trainer

    @property
    def first(self) -> int:
        """Number of the batch to begin with."""
        return self.trainer.fit_loop.epoch_loop.batch_progress.current.ready

    def __iter__(self) -> Iterator[Place]:
        rows = list(super().__iter__())
        return iter([Place(self.epoch, place, rows[place]) for place in range(self.first * self.batch_size, len(rows))])


class Drawn(Dataset[Any]):
    """Batches of a dataset, each with random numbers of its own."""

    def __init__(self, dataset: Any, seed: int, rank: int):
        self.dataset, self.seed, self.rank = dataset, seed, rank

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitems__(self, places: list[Place] | list[int]) -> Any:
        """The batch of these places, or of rows that another sampler names."""
        rows = [place.row if isinstance(place, Place) else place for place in places]
        if isinstance(first := places[0], Place):
            seed_all(self.seed, self.rank, first.epoch, first.place, OF_DATA)
        return self.dataset.__getitems__(rows)


class Loader(DataLoader[Any]):
    """A loader after each batch of which, in training, random numbers follow from the place of the batch."""

    def __iter__(self) -> Any:
        order = self.sampler if isinstance(self.sampler, Order) else None  # Lightning puts another in place to overfit
        try:
            for number, batch in enumerate(super().__iter__(), order.first if order else 0):
                if order:
                    seed_all(order.seed, order.rank, order.epoch, number, OF_MODEL)
                yield batch
        except (ConnectionError, EOFError) as error:
            if "Caught " in str(error):  # the error of a dataset, passed on
                raise
            raise RuntimeError("DataLoader worker (pid unknown) died while it sent a batch") from error


def make_loader(
    dataset: Any, *, batch_size: int, num_workers: int = 0, shuffle: bool = False, trainer: Trainer | None = None
) -> DataLoader[Any]:
    """A loader of batches, the last of which is smaller.

    Where a trainer has them shuffled, the rows of a batch and every random number up to the next batch, of torch, NumPy
    and Python, in the processes that load data and in the model, follow from the seed, the epoch and the number of the
    batch. So a run that is resumed from any checkpoint does what it would have done, with any number of loading
    processes.

    Args:
        dataset: What makes a batch of a list of rows, by ``__getitems__``.
        batch_size: Samples of a batch.
        num_workers: Processes that load batches; with 0 the training process does. One that sends nothing for
            `PATIENCE` seconds ends the run.
        shuffle: Whether the order is random, as in training.
        trainer: Who trains; while nobody does a random order is any.
    """
    common: dict[str, Any] = {
        "batch_size": batch_size,
        "num_workers": num_workers,
        "persistent_workers": num_workers > 0,
        "pin_memory": torch.cuda.is_available(),
        "collate_fn": keep,
        "timeout": PATIENCE if num_workers else 0,
    }
    if trainer is None or not trainer.training or not shuffle:
        return Loader(dataset, shuffle=shuffle, **common)
    order = Order(dataset, batch_size, torch.initial_seed() % 2**32, trainer)
    return Loader(Drawn(dataset, order.seed, order.rank), sampler=order, **common)


def keep(batch: Any) -> Any:
    """The batch as it is."""
    return batch


def seed_all(*numbers: int) -> None:
    """Gives torch, NumPy and Python random numbers that follow from these numbers and are unlike those of others."""
    words = np.random.SeedSequence(numbers).generate_state(3, np.uint64).tolist()
    torch.default_generator.manual_seed(words[0])  # torch.manual_seed takes 0.1 ms to look for devices
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(words[0])
    np.random.seed(words[1] % 2**32)
    random.seed(words[2])
