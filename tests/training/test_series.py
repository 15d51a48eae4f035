"""Training of forecasters and of classifiers of series."""

import csv
import math
from datetime import UTC, datetime, timedelta

import pytest
import torch
from lightning.pytorch import Trainer

from mmpos.data import SeriesData, VowelData
from mmpos.training import ForecastModel, SequenceClassifier
from mmpos.training.baselines import score

# Between Lightning and PyTorch.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*is smaller than the logging interval"),
]

SMALL = {"patch": 4, "dim": 16, "depth": 1, "num_heads": 2}
START = datetime(2024, 3, 1, tzinfo=UTC)


@pytest.fixture
def data(tmp_path):
    """Three weeks of hours of two channels, one of which has gaps."""
    rows = ["when,load,price"]
    for hour in range(21 * 24):
        price = "" if hour % 11 == 0 else f"{math.cos(hour / 7):.4f}"
        rows.append(f"{START + timedelta(hours=hour):%Y-%m-%d %H:%M},{math.sin(hour / 24 * 6.2832):.4f},{price}")
    path = tmp_path / "mine.csv"
    path.write_text("\n".join(rows))
    return SeriesData(str(path), input_length=24, horizon=10, batch_size=7)


def trainer(folder, **options):
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    return Trainer(
        **{"default_root_dir": folder, "accelerator": "cpu", "enable_model_summary": False, **quiet, **options}
    )


def test_errors_are_those_of_all_targets_that_are_there(data, tmp_path, capsys):
    model = ForecastModel(**SMALL, rotary={"name": "RoPE"})
    (metrics,) = trainer(tmp_path).test(model, data, verbose=False)
    windows = data.windows("test")
    assert windows["targets"].isnan().any()
    with torch.no_grad():
        want = score(model.eval()(windows["values"], windows["times"]), windows["targets"])
    assert metrics["test_mse"] == pytest.approx(want.mse, rel=1e-5)
    assert metrics["test_mae"] == pytest.approx(want.mae, rel=1e-5)
    printed = capsys.readouterr().out
    with (tmp_path / "forecasts.csv").open() as file:
        rows = {row["forecast"]: float(row["mse"]) for row in csv.DictReader(file)}
    assert list(rows) == ["model", "seasonal naive (24)", "linear", "linear with calendar"]
    assert rows["model"] == pytest.approx(want.mse, rel=1e-5)
    assert rows["seasonal naive (24)"] < rows["model"]
    assert all(name in printed for name in rows)
    assert (tmp_path / "forecast.png").stat().st_size > 5000


@pytest.mark.parametrize("loss", ["mse", "mae"])
def test_it_learns_a_season(data, tmp_path, loss):
    torch.manual_seed(0)
    model = ForecastModel(**SMALL, rotary={"name": "RoPE"}, lr=5e-3, loss=loss)
    before = trainer(tmp_path).validate(model, data, verbose=False)[0]
    trainer(tmp_path, max_epochs=4, limit_val_batches=0).fit(model, data)
    after = trainer(tmp_path).validate(model, data, verbose=False)[0]
    assert after["val_mse"] < before["val_mse"] / 2
    assert after["val_score"] == pytest.approx(-after[f"val_{loss}"])


def test_the_clock_is_that_of_the_data_and_goes_with_the_weights(data, tmp_path):
    data.timezone = "Europe/Berlin"
    times = {"coords": {"additive": ["fraction_of_day"]}}
    model = ForecastModel(**SMALL, additive={"name": "Seasonal"}, times=times)
    run = trainer(tmp_path, max_steps=1, limit_val_batches=0)
    run.fit(model, data)
    assert (model.network.times.unit, model.network.times.timezone) == ("s", "Europe/Berlin")
    run.save_checkpoint(tmp_path / "a.ckpt")
    loaded = ForecastModel.load_from_checkpoint(tmp_path / "a.ckpt", lr=0.5)
    assert loaded.network.times == model.network.times
    other = ForecastModel(**{**SMALL, "patch": 6}, additive={"name": "Seasonal"}, times=times)
    with pytest.raises(ValueError, match="the checkpoint is of another model: patch is 4 in the checkpoint but 6 here"):
        trainer(tmp_path).test(other, data, ckpt_path=tmp_path / "a.ckpt", verbose=False)


def test_speakers_are_told_apart_after_some_epochs(tmp_path):
    torch.manual_seed(0)
    model = SequenceClassifier(dim=32, num_heads=2, rotary={"name": "RoPE"}, lr=3e-3)
    data = VowelData()
    trainer(tmp_path, max_epochs=6, limit_val_batches=0).fit(model, data)
    (metrics,) = trainer(tmp_path).test(model, data, verbose=False)
    assert metrics["test_accuracy"] > 0.8
    batch = next(iter(data.test_dataloader()))
    shares = model.eval().predict_step(batch, 0)
    torch.testing.assert_close(shares.sum(-1), torch.ones(len(shares)))
