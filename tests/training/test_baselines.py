"""Forecasts without training: against hand-made rows, scikit-learn, and figures that were measured elsewhere."""

import numpy as np
import pytest
import torch

from mmpos.data import SeriesData
from mmpos.training.baselines import fill_forward, ridge, score, seasonal_naive


def make(values, targets, start=0, step=3600):
    values, targets = torch.tensor(values), torch.tensor(targets)
    length = values.shape[1] + targets.shape[1]
    times = start + step * (torch.arange(len(values))[:, None] + torch.arange(length))
    return {"values": values[..., None], "targets": targets[..., None], "times": times}


def random_windows(batch, length, horizon, channels, start=1_600_000_000):
    """Noise at irregular times."""
    times = start + torch.randint(1, 200_000, (batch, length + horizon)).cumsum(1)
    values = torch.randn(batch, length + horizon, channels)
    return {"values": values[:, :length], "targets": values[:, length:], "times": times}


@pytest.mark.parametrize(
    "season, expected",
    [
        (1, [5, 5, 5, 5, 5, 5, 5]),
        (3, [3, 4, 5, 3, 4, 5, 3]),
        (5, [1, 2, 3, 4, 5, 1, 2]),
        (7, [5, 5, 1, 2, 3, 4, 5]),  # rows 5 and 6 have no season ago, the others have
        (100, [5, 5, 5, 5, 5, 5, 5]),
    ],
)
def test_seasonal_naive_repeats_the_last_season_that_is_known(season, expected):
    right = make([[1.0, 2.0, 3.0, 4.0, 5.0]], [[float(value) for value in expected]])
    assert seasonal_naive(right, season) == (0, 0)
    off = make([[1.0, 2.0, 3.0, 4.0, 5.0]], [[value - 3.0 if row == 4 else float(value) for row, value in enumerate(expected)]])  # fmt: skip # noqa: E501
    assert seasonal_naive(off, season) == pytest.approx((9 / 7, 3 / 7))


def test_missing_targets_do_not_count_and_missing_inputs_are_filled():
    nan = torch.nan
    windows = make([[nan, 2.0, nan, nan], [nan, nan, nan, nan]], [[2.0, nan, 4.0], [1.0, nan, nan]])
    assert seasonal_naive(windows, 1) == pytest.approx(((0 + 4 + 1) / 3, (0 + 2 + 1) / 3))
    filled = fill_forward(torch.tensor([[nan, 1, nan, 3, nan], [nan] * 5])[..., None].repeat(1, 1, 2))
    assert filled[..., 1].tolist() == [[1, 1, 1, 3, 3], [0] * 5]


def test_ridge_is_that_of_scikit_learn():
    linear_model = pytest.importorskip("sklearn.linear_model", reason="scikit-learn fits the same")
    train, test = random_windows(300, 13, 4, 3), random_windows(50, 13, 4, 3, start=1_650_000_000)
    got = {calendar: ridge(train, test, 2.5, calendar) for calendar in (False, True)}
    for calendar in (False, True):
        forecast = np.empty(test["targets"].shape)
        for channel in range(3):
            tables = []
            for windows in (train, test):
                known = windows["values"][..., channel].double().numpy()
                parts = [known - known[:, -1:], known[:, -1:], np.ones((len(known), 1))]
                if calendar:
                    origin = windows["times"][:, 13].numpy().view("datetime64[s]")
                    hours = (origin.astype("datetime64[h]").astype(int) + 3 * 24) % 168  # 1970 began on a Thursday
                    year = origin.astype("datetime64[Y]")
                    following = year + np.timedelta64(1, "Y")
                    begin, end = (when.astype("datetime64[s]").astype(int) for when in (year, following))
                    turn = 2 * np.pi * (origin.astype(int) - begin) / (end - begin)
                    parts += [np.eye(168)[hours]] + [
                        wave(k * turn)[:, None] for k in (1, 2, 3) for wave in (np.sin, np.cos)
                    ]
                tables.append((np.concatenate(parts, 1), known[:, -1:], windows["targets"][..., channel].numpy()))
            (features, base, targets), (new, last, _) = tables
            model = linear_model.Ridge(alpha=2.5, fit_intercept=False, solver="cholesky").fit(features, targets - base)
            forecast[..., channel] = model.predict(new) + last
        assert got[calendar] == pytest.approx(score(torch.from_numpy(forecast), test["targets"]), rel=1e-6)
    assert got[True] != got[False]


def test_ridge_reads_units_and_zones():
    train, test = random_windows(200, 9, 4, 1), random_windows(60, 9, 4, 1)
    expected = ridge(train, test)
    fine = [{**windows, "times": windows["times"] * 1000} for windows in (train, test)]
    assert ridge(*fine, unit="ms") == expected
    early = [{**windows, "times": windows["times"] - 9 * 3600} for windows in (train, test)]
    assert ridge(*early, timezone="Asia/Tokyo") == expected
    assert ridge(train, test, timezone="Asia/Kolkata") != expected


def test_ridge_without_values_that_are_missing():
    train, test = random_windows(200, 9, 4, 2), random_windows(60, 9, 4, 2)
    train["targets"][3, 2, 1] = train["values"][7, 0, 0] = test["targets"][0, 0, 0] = torch.nan
    holes = ridge(train, test)
    train["targets"][3, 2, 1], train["values"][7, 0, 0] = train["targets"][3, 1, 1], train["values"][7, 1, 0]
    assert holes == ridge(train, test)
    assert all(map(np.isfinite, holes))


def test_figures_that_were_measured_elsewhere():
    data = SeriesData("sf_traffic")
    train, test = (
        {name: tensor[::step] for name, tensor in data.windows(part).items()}
        for part, step in (("train", 2), ("test", 4))
    )
    assert seasonal_naive(test, 24).mse == pytest.approx(1.725, abs=5e-4)
    assert ridge(train, test, calendar=False) == pytest.approx((0.707, 0.371), abs=5e-4)
    assert ridge(train, test) == pytest.approx((0.447, 0.281), abs=5e-4)


def test_arguments_out_of_range():
    windows = random_windows(4, 5, 3, 2)
    with pytest.raises(ValueError, match=r"season \(0\) must be at least 1 row"):
        seasonal_naive(windows, 0)
    with pytest.raises(ValueError, match=r"strength \(0.0\) must be positive"):
        ridge(windows, windows, 0.0)
