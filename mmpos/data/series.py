"""Time series for forecasting: windows of a table of numbers over time."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int64
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader

from ..calendar import Frequency, parse_frequency
from ..calendar.zones import read_zone
from .forecasts import forecast_window, write_forecast
from .loaders import make_loader
from .regular import check_frequency, find_frequency
from .series_files import Duplicates, Series, find_series, read_series
from .windows import SeriesWindows, Split, check_split, kept_rows, split_rows, training_scale

Part = Literal["train", "val", "test"]


class SeriesData(LightningDataModule):
    """A time series in windows: ``input_length`` rows that are known, and ``horizon`` rows to forecast.

    A batch is a dict: ``values`` (b, input_length, c) and ``targets`` (b, horizon, c) in float32, less the mean and
    over the standard deviation of the training part, NaN where they are missing; and ``times`` (b, input_length +
    horizon), int64 in ``unit`` since 1970 UTC, of both. Every target of a window lies in its part; the inputs of the
    first windows of validation and test are the end of the part before, as is usual.

    Args:
        source: "sf_traffic", "beijing_pm25" or "metro_traffic", which come with the package, or a CSV file (see
            `read_series`).
        timestamps: Name of the column of timestamps; found if there is one that looks so.
        channels: Names of the columns to use; all that hold numbers unless given.
        input_length: Rows that a model sees.
        horizon: Rows that it forecasts.
        split: Shares of the rows, in order of time, for training, validation and test, or the borders that published
            tables of the ETT files have: "ett_hour" (8640, 2880 and 2880 rows) or "ett_minute" (four times that).
        timezone: Zone of the clock on the wall, such as "Europe/Berlin"; timestamps without an offset were read from
            it. None: they are UTC.
        frequency: The step between rows, such as "h" or "MS", between which rows may be missing; found unless given,
            if the series is regular.
        duplicates: What to do about rows that repeat a timestamp: "error", or keep the "first".
        drop: Share of the rows left out at random, after the split and before anything else, to study irregular time.
        drop_seed: Which rows these are.
        stride: Rows from one training window to the next; validation and test have all windows.
        batch_size: Windows per step on each device.
        limit: Most windows for validation and for test, spread over all.
        num_workers: Processes that make batches; with 0 the training process does.

    Attributes, after `setup`:
        names: The channels.
        mean, std: Of the channels in the training part, in float32; ``value = scaled * std + mean``.
        unit: What the times count: "s", or the coarsest of "ms", "us" and "ns" that holds them all.
        frequency: The step; None if the rows are irregular and none was given.
        parts: The range of rows of each part.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If an argument is out of range, a name is unknown, the file has no such table, its timestamps do not
            ascend or contradict the frequency, or a part is too short for one window.
    """

    def __init__(
        self,
        source: str = "sf_traffic",
        timestamps: str | None = None,
        channels: list[str] | None = None,
        input_length: int = 96,
        horizon: int = 96,
        split: Split = (0.7, 0.1, 0.2),
        timezone: str | None = None,
        frequency: str | None = None,
        duplicates: Duplicates = "error",
        drop: float = 0.0,
        drop_seed: int = 0,
        stride: int = 1,
        batch_size: int = 32,
        limit: int | None = None,
        num_workers: int = 0,
    ):
        super().__init__()
        for name, number, bound in (
            ("input_length", input_length, 1), ("horizon", horizon, 1), ("stride", stride, 1),
            ("batch_size", batch_size, 1), ("limit", limit, 1), ("num_workers", num_workers, 0),
        ):  # fmt: skip
            if number is not None and number < bound:
                raise ValueError(f"{name} ({number}) must be at least {bound}")
        if not 0 <= drop < 1:
            raise ValueError(f"drop ({drop}) must be at least 0 and less than 1")
        if duplicates not in ("error", "first"):
            raise ValueError(f"duplicates must be 'error' or 'first', got {duplicates!r}")
        if timezone is not None:
            read_zone(timezone)
        check_split(split)
        self.source, self.timestamps, self.channels = source, timestamps, channels
        self.duplicates: Duplicates = duplicates
        self.split: Split = split
        self.input_length, self.horizon, self.timezone = input_length, horizon, timezone
        self.drop, self.drop_seed, self.stride = drop, drop_seed, stride
        self.batch_size, self.limit, self.num_workers = batch_size, limit, num_workers
        self.frequency: Frequency | None = None if frequency is None else parse_frequency(frequency)
        self.names: tuple[str, ...] = ()
        self.mean, self.std = torch.zeros(0), torch.ones(0)
        self.unit, self.column, self.aware = "s", "", False
        self.parts: dict[str, range] = {}
        self._scaled, self._times = torch.zeros(0, 0), torch.zeros(0, dtype=torch.int64)

    def setup(self, stage: str | None = None) -> None:
        """Reads the file, once."""
        if self.parts:
            return
        series = self._read(find_series(self.source))
        borders = split_rows(self.split, len(series.times))
        if self.frequency is not None:
            check_frequency(series.times, self.frequency, series.unit, self.timezone)
        if self.drop:
            kept = kept_rows(len(series.times), self.drop, self.drop_seed)
            borders = np.searchsorted(kept, borders).tolist()
            series = series._replace(times=series.times[kept], values=series.values[kept])
        if self.frequency is None:
            self.frequency = find_frequency(series.times, series.unit, self.timezone)
        parts = {part: range(*borders[place : place + 2]) for place, part in enumerate(("train", "val", "test"))}
        self._check_lengths(parts, len(series.times))
        mean, std = training_scale(series, parts["train"])
        self._scaled, self._times = ((series.values - mean) / std).float(), series.times
        self.mean, self.std = mean.float(), std.float()
        self.names, self.unit, self.column, self.aware = series.names, series.unit, series.column, series.aware
        self.parts = parts

    def train_dataloader(self) -> DataLoader[Any]:
        """Shuffled; the last batch is smaller."""
        return self._loader(self._windows("train"), shuffle=True)

    def val_dataloader(self) -> DataLoader[Any]:
        """Of the part that chooses the checkpoint."""
        return self._loader(self._windows("val", self.limit))

    def test_dataloader(self) -> DataLoader[Any]:
        """Of the part that no choice depends on."""
        return self._loader(self._windows("test", self.limit))

    predict_dataloader = test_dataloader

    def windows(self, part: Part, limit: int | None = None) -> dict[str, Tensor]:
        """All windows of a part in one batch, in order of time; at most ``limit``, spread over all."""
        self.setup()
        windows = self._windows(part, limit)
        return windows.take(windows.starts)

    def forecast_window(self, path: str | Path) -> dict[str, Tensor]:
        """The last rows of a user's file with the same columns, and the instants that follow them.

        Returns:
            ``values`` (1, input_length, c), scaled as the training data are, and ``times`` (1, input_length + horizon).

        Raises:
            ValueError: If the file has too few rows, or none of the two series has a frequency.
        """
        self.setup()
        if not Path(path).is_file():
            raise FileNotFoundError(f"{path} is no file")
        values, times = forecast_window(
            self._read(Path(path), self.names),
            input_length=self.input_length,
            horizon=self.horizon,
            unit=self.unit,
            frequency=self.frequency,
            timezone=self.timezone,
        )
        return {"values": ((values - self.mean) / self.std).float()[None], "times": times[None]}

    def write_forecast(
        self, path: str | Path, times: Int64[Tensor, " horizon"], forecast: Float[Tensor, "horizon c"]
    ) -> None:
        """Writes a scaled forecast into a CSV file in the units and on the clock of the data."""
        values = forecast.detach().cpu().double() * self.std + self.mean
        offsets = self.aware or self.timezone is not None
        columns = (self.column, *self.names)
        write_forecast(path, columns, times.cpu(), values, unit=self.unit, timezone=self.timezone, offsets=offsets)

    def _read(self, path: Path, channels: Sequence[str] | None = None) -> Series:
        return read_series(
            path,
            timestamps=self.timestamps,
            channels=channels or self.channels,
            timezone=self.timezone,
            duplicates=self.duplicates,
        )

    def _check_lengths(self, parts: dict[str, range], rows: int) -> None:
        window = f"input_length ({self.input_length}) + horizon ({self.horizon})"
        for part, whole, need, of in (
            ("series", rows, self.input_length + self.horizon, window),
            ("training part", len(parts["train"]), self.input_length + self.horizon, window),
            ("validation part", len(parts["val"]), self.horizon, f"horizon ({self.horizon})"),
            ("test part", len(parts["test"]), self.horizon, f"horizon ({self.horizon})"),
        ):
            if whole < need:
                raise ValueError(f"the {part} of {self.source} has {whole} rows, too few for {of}")

    def _windows(self, part: Part, limit: int | None = None) -> SeriesWindows:
        rows, length = self.parts[part], self.input_length
        first = rows.start if part == "train" else rows.start - length
        starts = torch.arange(first, rows.stop - length - self.horizon + 1, self.stride if part == "train" else 1)
        if limit is not None and limit < len(starts):
            starts = starts[((torch.arange(limit) + 0.5) * len(starts) / limit).long()]
        return SeriesWindows(self._scaled, self._times, starts, length, self.horizon)

    def _loader(self, windows: SeriesWindows, shuffle: bool = False) -> DataLoader[Any]:
        return make_loader(
            windows,
            batch_size=self.batch_size,
            num_workers=self.num_workers,
            shuffle=shuffle,
            trainer=self.trainer,
        )
