"""What a forecaster is told beside, at the end of a test, and forecasts for files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from lightning.pytorch import Callback, LightningModule, Trainer
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor

from ..data import SeriesData
from .baselines import Scores, ridge, seasonal_naive
from .report import run_folder, show_path, write_rows

PANELS = 4  # most channels that are drawn
FITTED = 2**15  # most training windows of a linear forecast, spread over all, so that a long series fits into memory


class ForecastReport(Callback):
    """Prints the errors of a test beside those of forecasts that need no training, and draws a forecast.

    ``forecasts.csv`` and, where matplotlib is installed, ``forecast.png`` are in the run's folder.
    """

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Makes the table and the picture."""
        data = getattr(trainer, "datamodule", None)
        if not isinstance(data, SeriesData):
            return
        forecast = forecast_windows(pl_module, data.windows("test", limit=1))[0]  # every process has a part in it
        if not trainer.is_global_zero:
            return
        metrics = trainer.callback_metrics
        scores = {"model": Scores(metrics["test_mse"].item(), metrics["test_mae"].item()), **baselines(data)}
        table = Table(box=box.SIMPLE_HEAD)
        table.add_column(f"{data.horizon} rows ahead of {data.input_length}", style="bold")
        for name in Scores._fields:
            table.add_column(name.upper(), justify="right")
        for name, score in scores.items():
            table.add_row(name, *(f"{value:.4f}" for value in score))
        Console().print(table)
        folder = run_folder(trainer.ckpt_path) if trainer.ckpt_path else Path(trainer.default_root_dir)
        folder.mkdir(parents=True, exist_ok=True)
        write_rows(folder / "forecasts.csv", ("forecast", *Scores._fields), [(n, *s) for n, s in scores.items()])
        if draw_forecast(data, forecast, folder / "forecast.png"):
            print(f"forecast: {show_path(folder / 'forecast.png')}")
        else:
            print("no picture: it needs matplotlib (pip install 'mmpos[viz]')")


def baselines(data: SeriesData) -> dict[str, Scores]:
    """Errors of forecasts that need no training, on the test windows of the data."""
    train, test = data.windows("train", FITTED), data.windows("test", data.limit)
    seasons = [] if data.frequency is None else sorted(map(round, data.frequency.periods.values()))
    season = next((length for length in seasons if length <= data.input_length), 1)
    naive = "last value" if season == 1 else f"seasonal naive ({season})"
    clock: dict[str, Any] = {"unit": data.unit, "timezone": data.timezone}
    return {
        naive: seasonal_naive(test, season),
        "linear": ridge(train, test, calendar=False, **clock),
        "linear with calendar": ridge(train, test, **clock),
    }


def draw_forecast(data: SeriesData, forecast: Float[Tensor, "h c"], path: Path) -> bool:
    """Draws a forecast of the middle test window; False if matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    window = data.windows("test", limit=1)
    forecast, known, target = (
        values * data.std + data.mean for values in (forecast, window["values"][0], window["targets"][0])
    )
    instants = window["times"][0].numpy().astype(f"datetime64[{data.unit}]")
    count = min(len(data.names), PANELS)
    figure = Figure(figsize=(10, 2.6 * count), layout="constrained")
    panels = figure.subplots(count, squeeze=False)[:, 0]
    past, ahead = instants[: data.input_length], instants[data.input_length - 1 :]
    for channel, (panel, name) in enumerate(zip(panels, data.names, strict=False)):
        last = known[-1:, channel]
        panel.plot(past, known[:, channel], color="black", linewidth=1, label="known")
        for values, color, label in ((target, "tab:gray", "what came"), (forecast, "tab:red", "forecast")):
            panel.plot(ahead, torch.cat([last, values[:, channel]]), color=color, linewidth=1.3, label=label)
        panel.set_ylabel(name)
        panel.grid(alpha=0.3)
    panels[0].legend(fontsize="small", ncols=3, loc="upper left")
    figure.autofmt_xdate()
    figure.savefig(path, dpi=110)
    return True


@torch.no_grad()
def forecast_windows(model: LightningModule, windows: dict[str, Tensor]) -> Tensor:
    """The forecast of a model, wherever it lies, on the processor."""
    training, device = model.training, model.device
    forecast = model.eval()(windows["values"].to(device), windows["times"].to(device)).float().cpu()
    model.train(training)
    return forecast


def read_windows(data: SeriesData, paths: Sequence[Path]) -> list[dict[str, Tensor]]:
    """The ends of the series in files, each a batch of one window.

    Raises:
        ValueError: If a file does not go on into a forecast; the message names it.
    """
    windows = []
    for path in paths:
        try:
            windows.append(data.forecast_window(path))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
    return windows


def write_forecasts(
    data: SeriesData, paths: Sequence[Path], windows: Sequence[dict[str, Tensor]], forecasts: Any, output: Path
) -> list[Path]:
    """Writes a CSV file of what follows each series: ``output``, or files named as theirs in that folder if several."""
    targets = [output] if len(paths) == 1 else [output / f"{path.stem}.csv" for path in paths]
    if len(set(targets)) < len(targets):
        raise ValueError("files must have different names, since their forecasts are named as they are")
    for target, window, forecast in zip(targets, windows, forecasts, strict=True):
        data.write_forecast(target, window["times"][0, data.input_length :], forecast[0])
    return targets
