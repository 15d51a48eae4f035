"""What the training of a classifier is, whatever it classifies."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch.nn.functional as F
from jaxtyping import Float
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor

from .checkpoints import check_same_model
from .optim import adamw_cosine
from .sharding import Sharded

Batch = Sequence[Any]
"""Samples (b, ...), labels (b), and what else the model is to know."""

RECIPE = ("drop_path", "patch_drop", "label_smoothing", "lr", "weight_decay", "warmup")
"""Hyper-parameters that do not change what a checkpoint's weights mean."""

AUGMENTATION = ("shift", "jitter", "rescale")
"""The same among ``positions``."""


class Classifier(Sharded, ABC):
    """Cross entropy, AdamW and a cosine schedule with warm-up; its constructor makes the model and sets the recipe.

    ``val_score``, which chooses the best checkpoint, is the validation accuracy; among equals it prefers the lower
    loss. Names of the classes are taken from the data module and kept in the checkpoint.
    """

    label_smoothing: float
    lr: float
    weight_decay: float
    warmup: float
    classes: tuple[str, ...] = ()

    @abstractmethod
    def classify(self, batch: Batch) -> Float[Tensor, "b classes"]:
        """Logits of the classes for the samples of a batch."""

    def setup(self, stage: str) -> None:
        """Takes the names of the classes from the data module, if it has them.

        Raises:
            ValueError: If they are not as many as the model has.
        """
        classes = tuple(getattr(getattr(self.trainer, "datamodule", None), "classes", ()))
        if classes and len(classes) != self.hparams["num_classes"]:
            raise ValueError(
                f"num_classes ({self.hparams['num_classes']}) must be {len(classes)}, for the data has the classes "
                f"{_listed(classes)}"
            )
        self.classes = classes

    def training_step(self, batch: Batch, batch_idx: int) -> Float[Tensor, ""]:
        """The loss that is minimised."""
        labels = batch[1]
        loss = F.cross_entropy(self.classify(batch), labels, label_smoothing=self.label_smoothing)
        self.log_loss(loss, len(labels))
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Logs ``val_loss``, ``val_accuracy`` and ``val_score``."""
        loss, accuracy = self._evaluate("val", batch)
        # The loss moves the score by less than one sample in 10,000 does, so it only decides between equals.
        self._log("val_score", accuracy - 1e-4 * loss / (1 + loss), batch)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Logs ``test_loss`` and ``test_accuracy``."""
        self._evaluate("test", batch)

    def predict_step(self, batch: Batch, batch_idx: int) -> Float[Tensor, "b classes"]:
        """The probability of each class for each sample, of which there may be none."""
        samples = batch[0]
        if not len(samples):
            return samples.new_empty(0, self.hparams["num_classes"])
        return self.classify(batch).float().softmax(-1)

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """AdamW with a cosine schedule."""
        return adamw_cosine(self, lr=self.lr, weight_decay=self.weight_decay, warmup=self.warmup)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuses the checkpoint of another model, or of other classes, before its weights are tried."""
        stored = checkpoint.get("hyper_parameters")
        check_same_model(
            {"hyper_parameters": stored and _without_augmentation(stored)},
            _without_augmentation(self.hparams),
            free=RECIPE,
        )
        classes = tuple(checkpoint.get("classes", ()))
        if classes and self.classes and classes != self.classes:
            raise ValueError(
                f"the checkpoint is of the classes {_listed(classes)}, but the data has {_listed(self.classes)}"
            )
        self.classes = self.classes or classes

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keeps the names of the classes with the weights."""
        checkpoint["classes"] = list(self.classes)

    def _evaluate(self, part: str, batch: Batch) -> tuple[Tensor, Tensor]:
        logits, labels = self.classify(batch), batch[1]
        loss, accuracy = F.cross_entropy(logits, labels), (logits.argmax(-1) == labels).float().mean()
        self._log(f"{part}_loss", loss, batch)
        self._log(f"{part}_accuracy", accuracy, batch)
        return loss, accuracy

    def _log(self, name: str, value: Tensor, batch: Batch) -> None:
        self.log(name, value, prog_bar=name == "val_accuracy", batch_size=len(batch[1]), sync_dist=True)


def _without_augmentation(hparams: Mapping[str, Any]) -> dict[str, Any]:
    positions = {name: value for name, value in (hparams.get("positions") or {}).items() if name not in AUGMENTATION}
    return {**hparams, "positions": positions}


def _listed(classes: Sequence[str], most: int = 12) -> str:
    return ", ".join(classes[:most]) + (f" and {len(classes) - most} more" if len(classes) > most else "")
