"""Forecasts that need no training run, to stand beside those of a model: seasonal naive and ridge regression."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from ..calendar import calendar_coords, calendar_fields

HOURS_OF_WEEK = 168
HARMONICS = 3

Windows = Mapping[str, Tensor]
"""``values`` (b, n, c), ``targets`` (b, horizon, c), NaN where missing, and ``times`` (b, n + horizon), int64."""


class Scores(NamedTuple):
    """Mean squared and mean absolute error over all targets that are present."""

    mse: float
    mae: float


def score(forecast: Float[Tensor, "b horizon c"], targets: Float[Tensor, "b horizon c"]) -> Scores:
    """The errors of a forecast; targets that are NaN do not count.

    Example:
        >>> score(torch.tensor([[[1.0], [5.0]]]), torch.tensor([[[3.0], [torch.nan]]]))
        Scores(mse=4.0, mae=2.0)
    """
    errors = (forecast.double() - targets)[~targets.isnan()]
    return Scores(errors.square().mean().item(), errors.abs().mean().item())


def seasonal_naive(windows: Windows, season: int) -> Scores:
    """Errors of the forecast that repeats what was ``season`` rows, or whole seasons, ago: the last that is known.

    Row ``h`` of the forecast, from 0, is row ``n + h - k * season`` of what is known, with the least ``k`` for which
    that lies in the past. Where it lies before the window, as most of a season longer than the window does, the last
    row is repeated. What is missing is filled with the value before it.

    Args:
        windows: What to forecast.
        season: Rows in a season; 1 repeats the last row.

    Reference:
        Hyndman and Athanasopoulos, Forecasting: principles and practice, 3rd ed., 2021, sec. 5.2.
        https://otexts.com/fpp3/simple-methods.html
    """
    if season < 1:
        raise ValueError(f"season ({season}) must be at least 1 row")
    values, targets = fill_forward(windows["values"]), windows["targets"]
    ahead, length = torch.arange(targets.shape[1]), values.shape[1]
    rows = length + ahead - (ahead // season + 1) * season
    return score(values[:, torch.where(rows < 0, length - 1, rows)], targets)


def ridge(
    train: Windows,
    test: Windows,
    strength: float = 10.0,
    calendar: bool = True,
    *,
    unit: str = "s",
    timezone: str | None = None,
) -> Scores:
    """Errors on ``test`` of a linear forecast fitted to ``train``, in closed form and for each channel by itself.

    What is forecast is the change from the last row that is known. Features are the rows that are known less the last,
    the last, a constant, and, with ``calendar``, the hour of the week of the first row to forecast (168 columns, one of
    them 1) and three harmonics of its place in the year. Weights ``W`` minimise ``|X W - Y|^2 + strength |W|^2``. What
    is missing is filled with the value before it, and does not count in the errors.

    Args:
        train: Windows to fit.
        test: Windows to forecast.
        strength: Weight of the penalty.
        calendar: Whether the calendar is among the features.
        unit: What the times count.
        timezone: Zone of the clock on the wall that the calendar is read from; UTC unless given.

    Reference:
        Less the last row: NLinear of Zeng et al., Are transformers effective for time series forecasting?, 2023,
        sec. 4. https://arxiv.org/abs/2205.13504
    """
    if strength <= 0:
        raise ValueError(f"strength ({strength}) must be positive")
    forecast = torch.empty(test["targets"].shape, dtype=torch.float64)
    fitted = _channels(train, calendar, unit, timezone)
    for channel, (known, last, _) in enumerate(_channels(test, calendar, unit, timezone)):
        features, base, targets = next(fitted)
        penalty = strength * torch.eye(features.shape[1], dtype=torch.float64)
        weights = torch.linalg.solve(features.T @ features + penalty, features.T @ (targets - base))
        forecast[..., channel] = known @ weights + last
    return score(forecast, test["targets"])


def _channels(
    windows: Windows, calendar: bool, unit: str, timezone: str | None
) -> Iterator[tuple[Float64[Tensor, "b f"], Float64[Tensor, "b 1"], Float64[Tensor, "b horizon"]]]:
    """Features, last row and targets of one channel after the other."""
    length = windows["values"].shape[1]
    shared = [torch.ones(len(windows["values"]), 1, dtype=torch.float64)]
    if calendar:
        shared.append(_calendar(windows["times"][:, length], unit, timezone))
    for channel in range(windows["values"].shape[2]):
        rows = torch.cat([windows["values"][..., channel], windows["targets"][..., channel]], dim=1)
        filled = fill_forward(rows[..., None])[..., 0].double()
        known = fill_forward(windows["values"][..., channel, None])[..., 0].double()
        last = known[:, -1:]
        yield torch.cat([known - last, last, *shared], dim=1), last, filled[:, length:]


def _calendar(times: Tensor, unit: str, timezone: str | None) -> Float64[Tensor, "b f"]:
    day, hour = calendar_fields(times, ["day_of_week", "hour_of_day"], unit=unit, timezone=timezone).unbind(-1)
    year = calendar_coords(times, ["fraction_of_year"], unit=unit, timezone=timezone)
    turns = 2 * torch.pi * year * torch.arange(1, HARMONICS + 1)
    hours = torch.nn.functional.one_hot(24 * day + hour, HOURS_OF_WEEK)
    return torch.cat([hours.double(), turns.sin(), turns.cos()], dim=1)


def fill_forward(values: Float[Tensor, "b n c"]) -> Float[Tensor, "b n c"]:
    """What is missing as the value before it, before the first value as the first, and where there is none as 0.

    Example:
        >>> nan = torch.nan
        >>> fill_forward(torch.tensor([[nan, 2.0, nan, 3.0], [nan, nan, nan, nan]])[..., None])[..., 0]
        tensor([[2., 2., 2., 3.],
                [0., 0., 0., 0.]])
    """
    missing = values.isnan()
    if not missing.any():
        return values
    numbers = torch.arange(values.shape[1])[:, None]
    before = torch.where(missing, -1, numbers).cummax(1).values
    first = missing.int().argmin(1, keepdim=True)
    return values.gather(1, torch.where(before < 0, first, before)).nan_to_num(0.0)
