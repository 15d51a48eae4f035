"""Windows of a time series, and the parts that they lie in."""

from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.utils.data import Dataset

from .series_files import Series

Split = tuple[float, float, float] | Literal["ett_hour", "ett_minute"]

ETT_HOURS = (8640, 2880, 2880)
"""Rows of the parts of ETTh1 and ETTh2: 12, 4 and 4 months of 30 days; ETTm1 and ETTm2 have four rows an hour.

Reference:
    Zhou et al., Informer, 2021, sec. 5.1. https://arxiv.org/abs/2012.07436
"""


class SeriesWindows(Dataset[Any]):
    """Windows of a scaled series: rows that a model sees, and the rows that follow, which it is to forecast."""

    def __init__(
        self,
        values: Float[Tensor, "rows c"],
        times: Int64[Tensor, " rows"],
        starts: Int64[Tensor, " windows"],
        input_length: int,
        horizon: int,
    ):
        self.values, self.times, self.starts = values, times, starts
        self.input_length, self.horizon = input_length, horizon

    def __len__(self) -> int:
        return len(self.starts)

    def __getitems__(self, numbers: list[int]) -> dict[str, Tensor]:
        """The batch of these windows."""
        return self.take(self.starts[numbers])

    def take(self, starts: Int64[Tensor, " b"]) -> dict[str, Tensor]:
        """Windows that start in these rows."""
        rows = starts[:, None] + torch.arange(self.input_length + self.horizon)
        values = self.values[rows]
        return {
            "values": values[:, : self.input_length],
            "times": self.times[rows],
            "targets": values[:, self.input_length :],
        }


def check_split(split: Split) -> None:
    """Refuses what is neither three shares nor the name of borders."""
    if isinstance(split, str):
        if split not in ("ett_hour", "ett_minute"):
            raise ValueError(f"split must be three shares, 'ett_hour' or 'ett_minute', got {split!r}")
    elif len(split) != 3 or min(split) <= 0 or abs(sum(split) - 1) > 1e-6:
        raise ValueError(f"split must be three positive shares that add up to 1, got {split}")


def split_rows(split: Split, rows: int) -> list[int]:
    """Where the parts begin, and where the last ends.

    Training and test have the whole rows of their shares, and validation has what is left between them.

    Example:
        >>> split_rows((0.7, 0.1, 0.2), 103)
        [0, 72, 83, 103]
    """
    if isinstance(split, str):
        factor = {"ett_hour": 1, "ett_minute": 4}[split]
        borders = np.cumsum([0, *ETT_HOURS]) * factor
        if rows < borders[-1]:
            raise ValueError(f"split {split!r} needs {borders[-1]} rows, and the series has {rows}")
        return borders.tolist()
    return [0, int(split[0] * rows), rows - int(split[2] * rows), rows]


def kept_rows(rows: int, drop: float, seed: int) -> Int64[np.ndarray, " kept"]:
    """Numbers of the rows that are left, in order, when a share of them is dropped at random."""
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(seed))
    return order[round(drop * rows) :].sort().values.numpy()


def training_scale(series: Series, train: range) -> tuple[Float[Tensor, " c"], Float[Tensor, " c"]]:
    """Mean and standard deviation of what is present in the training part; 1 for a channel that is constant there."""
    values = series.values[train.start : train.stop]
    present = ~values.isnan()
    for name, count in zip(series.names, present.sum(0).tolist(), strict=True):
        if not count:
            raise ValueError(f"channel {name!r} has no number in the training part; leave it out of channels")
    mean = values.nanmean(0)
    std = (values - mean).square().nanmean(0).sqrt()
    return mean, torch.where(std > 1e-12 * mean.abs(), std, 1.0)
