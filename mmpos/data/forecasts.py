"""What a forecast starts from, in a file of a user, and the file that it is written to."""

import csv
from collections.abc import Sequence
from pathlib import Path

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from ..calendar import Frequency
from .instants import in_unit, show_timestamps
from .regular import check_frequency, continue_times, find_frequency
from .series_files import Series


def forecast_window(
    series: Series,
    *,
    input_length: int,
    horizon: int,
    unit: str = "s",
    frequency: Frequency | None = None,
    timezone: str | None = None,
) -> tuple[Float64[Tensor, "input_length c"], Int64[Tensor, " rows"]]:
    """The last rows of a series, and the instants of these rows and of those that follow, by the steps of a frequency.

    Args:
        series: What is known.
        input_length: Rows before the forecast.
        horizon: Rows of the forecast.
        unit: What the result counts.
        frequency: The step; that of the series unless given.
        timezone: Zone of the clock on the wall, on which days and months are counted.

    Raises:
        ValueError: If the series is too short, is irregular and no frequency is given, or has another than the one that
            is given.
    """
    if len(series.times) < input_length:
        raise ValueError(f"the series has {len(series.times)} rows, too few for input_length ({input_length})")
    found = find_frequency(series.times, series.unit, timezone)
    step = frequency or found
    if step is None:
        raise ValueError("the series is irregular, so what follows has no timestamps; give its frequency, such as 'h'")
    if found not in (None, step):
        raise ValueError(
            f"the series has a step of {found.count} {found.unit}, but the training data have one of {step.count} "
            f"{step.unit}"
        )
    check_frequency(series.times, step, series.unit, timezone)
    later = continue_times(series.times, step, horizon, series.unit, timezone)
    times = in_unit(torch.cat([series.times[-input_length:], later]), series.unit, unit)
    return series.values[-input_length:], times


def write_forecast(
    path: str | Path,
    columns: Sequence[str],
    times: Int64[Tensor, " horizon"],
    values: Float64[Tensor, "horizon c"],
    *,
    unit: str = "s",
    timezone: str | None = None,
    offsets: bool = False,
) -> None:
    """Writes a CSV file of timestamps and forecasts, which `read_series` reads.

    Args:
        path: The file; its folder is made if it does not exist.
        columns: Names of the timestamps and of the channels.
        times: Instants in ``unit`` since 1970 UTC.
        values: Forecasts in their own units.
        unit: What the times count.
        timezone: Zone whose clock the timestamps show; UTC unless given.
        offsets: Whether they say how far it is ahead of UTC.
    """
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    texts = show_timestamps(times, unit, timezone, offsets)
    with Path(path).open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        for text, row in zip(texts, values.tolist(), strict=True):
            writer.writerow([text, *(f"{value:.7g}" for value in row)])
