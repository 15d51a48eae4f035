"""Training of forecasters and of classifiers of series."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from lightning.pytorch import Callback
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor

from ..data import SeriesData
from ..models import SeriesClassifier, SeriesForecaster
from .checkpoints import check_same_model
from .forecasts import ForecastReport
from .optim import adamw_cosine
from .sharding import Sharded

RECIPE = ("drop_path", "loss", "lr", "weight_decay", "warmup", "label_smoothing", "noise")
"""Hyper-parameters that do not change what a checkpoint's weights mean."""

Batch = Mapping[str, Tensor]


class ForecastModel(Sharded):
    """A `SeriesForecaster` that learns with AdamW and a cosine schedule with warm-up.

    A batch has ``values``, ``times`` and ``targets``; targets that are NaN do not count. The unit of the timestamps and
    the time zone are those of the data. A test prints the errors beside those of a seasonal naive and of a linear
    forecast on the same windows, and draws a forecast.

    Args:
        patch: Rows of a token.
        dim: Channels of a token.
        depth: Number of blocks.
        num_heads: Heads per block.
        variates: "independent" channels, or the channels as an "axis".
        instance: "standardise" each window, "centre" it only, or "none".
        block: Further arguments of the blocks, such as ``{proj_drop: 0.1}``.
        times: How timestamps become coordinates, such as ``{coords: {rotary: [time]}, per: h}``; see `TokenTimes`.
        additive: Slot of what is added to the tokens.
        rotary: Slot of what rotates queries and keys.
        bias: Slot of what is added to the logits.
        scale: Slot of what multiplies the logits.
        drop_path: Probability that a sample skips a branch of the last block; it grows linearly to that.
        loss: "mse" or "mae".
        lr: Peak learning rate.
        weight_decay: Decay of matrices; vectors and learned encodings do not decay.
        warmup: Share of all steps in which the learning rate rises.

    Raises:
        ValueError: If the model cannot be built, or a checkpoint of another model is loaded.
    """

    def __init__(
        self,
        patch: int = 8,
        dim: int = 64,
        depth: int = 3,
        num_heads: int = 4,
        variates: Literal["independent", "axis"] = "independent",
        instance: Literal["standardise", "centre", "none"] = "standardise",
        block: dict[str, Any] | None = None,
        times: dict[str, Any] | None = None,
        additive: dict[str, Any] | None = None,
        rotary: dict[str, Any] | None = None,
        bias: dict[str, Any] | None = None,
        scale: dict[str, Any] | None = None,
        drop_path: float = 0.0,
        loss: Literal["mse", "mae"] = "mse",
        lr: float = 1e-3,
        weight_decay: float = 0.05,
        warmup: float = 0.1,
    ):
        super().__init__()
        self.save_hyperparameters()
        self.network = SeriesForecaster(
            patch,
            dim,
            depth,
            num_heads,
            variates=variates,
            instance=instance,
            drop_path=drop_path,
            block=block,
            times=times,
            additive=additive,
            rotary=rotary,
            bias=bias,
            scale=scale,
        )
        self.loss, self.lr, self.weight_decay, self.warmup = loss, lr, weight_decay, warmup

    def configure_callbacks(self) -> list[Callback]:
        """The report at the end of a test."""
        return [ForecastReport()]

    def setup(self, stage: str) -> None:
        """Reads the clock of the data, if it has one."""
        data = getattr(self.trainer, "datamodule", None)
        if isinstance(data, SeriesData):
            self.network.times = replace(self.network.times, unit=data.unit, timezone=data.timezone)

    def forward(self, values: Float[Tensor, "b n c"], times: Tensor) -> Float[Tensor, "b h c"]:
        """The rows that follow, as `SeriesForecaster` gives them."""
        return self.network(values, times)

    def training_step(self, batch: Batch, batch_idx: int) -> Float[Tensor, ""]:
        """The loss that is minimised."""
        errors = _errors(self, batch)
        sizes = errors.square() if self.loss == "mse" else errors.abs()
        loss = sizes.sum() / max(len(sizes), 1)  # 0 of a batch whose targets are all missing
        self.log_loss(loss, max(len(errors), 1))
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Logs ``val_mse``, ``val_mae`` and ``val_score``, which chooses the best checkpoint."""
        errors = self._evaluate("val", batch)
        self.log("val_score", -errors, batch_size=self._count(batch), sync_dist=True)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Logs ``test_mse`` and ``test_mae``."""
        self._evaluate("test", batch)

    def predict_step(self, batch: Batch, batch_idx: int) -> Float[Tensor, "b h c"]:
        """The forecast, scaled as the data are."""
        return self(batch["values"], batch["times"]).float()

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """AdamW with a cosine schedule."""
        return adamw_cosine(self, lr=self.lr, weight_decay=self.weight_decay, warmup=self.warmup)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuses the checkpoint of another model before its weights are tried, and reads its clock."""
        check_same_model(checkpoint, self.hparams, free=RECIPE)
        self.network.times = replace(self.network.times, **checkpoint.get("clock", {}))

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keeps the clock of the data with the weights."""
        checkpoint["clock"] = {"unit": self.network.times.unit, "timezone": self.network.times.timezone}

    def _evaluate(self, part: str, batch: Batch) -> Float[Tensor, ""]:
        errors, count = _errors(self, batch).float(), self._count(batch)
        mse, mae = errors.square().sum() / count, errors.abs().sum() / count
        for name, value in (("mse", mse), ("mae", mae)):
            self.log(f"{part}_{name}", value, prog_bar=part == "val", batch_size=count, sync_dist=True)
        return mse if self.loss == "mse" else mae

    def _count(self, batch: Batch) -> int:
        return max(int(batch["targets"].isfinite().sum()), 1)


def _errors(model: ForecastModel, batch: Batch) -> Float[Tensor, " present"]:
    """Forecasts less targets, where there are any."""
    targets = batch["targets"]
    present = targets.isfinite()
    return (model(batch["values"], batch["times"]) - targets.nan_to_num())[present]


class SequenceClassifier(Sharded):
    """A `SeriesClassifier` that learns with AdamW and a cosine schedule with warm-up.

    A batch has ``values``, NaN nowhere, ``real``, False where a row is a pad, ``label``, and ``times`` where the data
    have a clock.

    Args:
        channels: Values of a row.
        num_classes: Number of classes.
        dim: Channels of a token.
        depth: Number of blocks.
        num_heads: Heads per block.
        block: Further arguments of the blocks, such as ``{proj_drop: 0.1}``.
        times: How positions become coordinates; see `TokenTimes`.
        additive: Slot of what is added to the tokens.
        rotary: Slot of what rotates queries and keys.
        bias: Slot of what is added to the logits.
        scale: Slot of what multiplies the logits.
        drop_path: Probability that a sample skips a branch of the last block; it grows linearly to that.
        noise: Standard deviation of what is added to the values in training.
        label_smoothing: Share of a target that is spread over all classes.
        lr: Peak learning rate.
        weight_decay: Decay of matrices; vectors and learned encodings do not decay.
        warmup: Share of all steps in which the learning rate rises.

    Raises:
        ValueError: If the model cannot be built, or a checkpoint of another model is loaded.
    """

    def __init__(
        self,
        channels: int = 12,
        num_classes: int = 9,
        dim: int = 64,
        depth: int = 2,
        num_heads: int = 4,
        block: dict[str, Any] | None = None,
        times: dict[str, Any] | None = None,
        additive: dict[str, Any] | None = None,
        rotary: dict[str, Any] | None = None,
        bias: dict[str, Any] | None = None,
        scale: dict[str, Any] | None = None,
        drop_path: float = 0.0,
        noise: float = 0.0,
        label_smoothing: float = 0.0,
        lr: float = 1e-3,
        weight_decay: float = 0.05,
        warmup: float = 0.1,
    ):
        super().__init__()
        self.save_hyperparameters()
        self.network = SeriesClassifier(
            channels,
            num_classes,
            dim,
            depth,
            num_heads,
            drop_path=drop_path,
            block=block,
            times=times,
            additive=additive,
            rotary=rotary,
            bias=bias,
            scale=scale,
        )
        self.noise, self.label_smoothing = noise, label_smoothing
        self.lr, self.weight_decay, self.warmup = lr, weight_decay, warmup

    def forward(
        self, values: Float[Tensor, "b n c"], real: Tensor, times: Tensor | None = None
    ) -> Float[Tensor, "b classes"]:
        """Logits of the classes."""
        return self.network(values, times, real=real)

    def training_step(self, batch: Batch, batch_idx: int) -> Float[Tensor, ""]:
        """The loss that is minimised."""
        values = batch["values"] + self.noise * torch.randn_like(batch["values"])
        loss = F.cross_entropy(
            self(values, batch["real"], batch.get("times")).float(),
            batch["label"],
            label_smoothing=self.label_smoothing,
        )
        self.log_loss(loss, len(batch["label"]))
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Logs ``val_loss``, ``val_accuracy`` and ``val_score``, which chooses the best checkpoint."""
        loss = self._evaluate("val", batch)
        self.log("val_score", -loss, batch_size=len(batch["label"]), sync_dist=True)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Logs ``test_loss`` and ``test_accuracy``."""
        self._evaluate("test", batch)

    def predict_step(self, batch: Batch, batch_idx: int) -> Float[Tensor, "b classes"]:
        """The probability of each class."""
        return self(batch["values"], batch["real"], batch.get("times")).float().softmax(-1)

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """AdamW with a cosine schedule."""
        return adamw_cosine(self, lr=self.lr, weight_decay=self.weight_decay, warmup=self.warmup)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuses the checkpoint of another model before its weights are tried."""
        check_same_model(checkpoint, self.hparams, free=RECIPE)

    def _evaluate(self, part: str, batch: Batch) -> Float[Tensor, ""]:
        logits, label = self(batch["values"], batch["real"], batch.get("times")).float(), batch["label"]
        loss, accuracy = F.cross_entropy(logits, label), (logits.argmax(-1) == label).float().mean()
        for name, value in (("loss", loss), ("accuracy", accuracy)):
            self.log(f"{part}_{name}", value, prog_bar=part == "val", batch_size=len(label), sync_dist=True)
        return loss
