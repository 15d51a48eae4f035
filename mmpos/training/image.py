"""Training of image classifiers."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch.nn.functional as F
from jaxtyping import Float
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor

from ..models import VisionTransformer
from ..models.stack import AdditiveTo
from .checkpoints import check_same_model
from .optim import adamw_cosine

Batch = Sequence[Tensor]
"""Images (b, c, height, width) and labels (b)."""

RECIPE = ("drop_path", "patch_drop", "label_smoothing", "lr", "weight_decay", "warmup")
"""Hyper-parameters that do not change what a checkpoint's weights mean."""

AUGMENTATION = ("shift", "jitter", "rescale")
"""The same among ``positions``."""


class ImageClassifier(LightningModule):
    """A `VisionTransformer` trained with cross entropy, AdamW and a cosine schedule with warm-up.

    ``val_score``, which chooses the best checkpoint, is the validation accuracy; among equals it prefers the lower
    loss.

    Args:
        image_size: A side or (height, width) in pixels, a multiple of ``patch_size``.
        patch_size: A side or (height, width) in pixels.
        in_chans: Channels of an image.
        num_classes: Number of classes.
        dim: Channels of a token.
        depth: Number of blocks.
        num_heads: Heads per block.
        class_token: Whether a class token stands in front, and is read out in place of the mean over patches.
        reg_tokens: Number of register tokens behind it.
        pool: What is read out, if other than that: "token" or "avg".
        patch_drop: Share of the patches of an image that are left out in training.
        block: Further arguments of the blocks, such as ``{qk_norm: true}``.
        positions: How patches become coordinates and how these vary in training, such as ``{shift: 0.5, jitter: 1.2}``;
            arguments of `mmpos.models.GridPositions`.
        additive: Slot of what is added to the tokens.
        rotary: Slot of what rotates queries and keys.
        bias: Slot of what is added to the logits.
        scale: Slot of what multiplies the logits.
        additive_to: Where the additive encoding enters: "tokens", once, or "queries_keys", of every block.
        drop_path: Probability that a sample skips a branch of the last block; it grows linearly to that.
        label_smoothing: Share of the target that is spread over all classes in training.
        lr: Peak learning rate.
        weight_decay: Decay of matrices; vectors and learned encodings do not decay.
        warmup: Share of all steps in which the learning rate rises.

    Raises:
        ValueError: If the model cannot be built, or a checkpoint of another model is loaded.
    """

    def __init__(
        self,
        image_size: int | tuple[int, int] = 8,
        patch_size: int | tuple[int, int] = 2,
        in_chans: int = 1,
        num_classes: int = 10,
        dim: int = 64,
        depth: int = 4,
        num_heads: int = 4,
        class_token: bool = False,
        reg_tokens: int = 0,
        pool: Literal["token", "avg"] | None = None,
        patch_drop: float = 0.0,
        block: dict[str, Any] | None = None,
        positions: dict[str, Any] | None = None,
        additive: dict[str, Any] | None = None,
        rotary: dict[str, Any] | None = None,
        bias: dict[str, Any] | None = None,
        scale: dict[str, Any] | None = None,
        additive_to: AdditiveTo = "tokens",
        drop_path: float = 0.0,
        label_smoothing: float = 0.1,
        lr: float = 2e-3,
        weight_decay: float = 0.05,
        warmup: float = 0.1,
    ):
        super().__init__()
        self.save_hyperparameters()
        self.network = VisionTransformer(
            image_size,
            patch_size,
            in_chans,
            num_classes,
            dim,
            depth,
            num_heads,
            drop_path=drop_path,
            class_token=class_token,
            reg_tokens=reg_tokens,
            pool=pool,
            patch_drop=patch_drop,
            block=block,
            positions=positions,
            additive=additive,
            rotary=rotary,
            bias=bias,
            scale=scale,
            additive_to=additive_to,
        )
        self.label_smoothing, self.lr, self.weight_decay, self.warmup = label_smoothing, lr, weight_decay, warmup
        self.classes: tuple[str, ...] = ()

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

    def forward(self, images: Float[Tensor, "b c height width"]) -> Float[Tensor, "b classes"]:
        """Logits of the classes."""
        return self.network(images)

    def training_step(self, batch: Batch, batch_idx: int) -> Float[Tensor, ""]:
        """The loss that is minimised."""
        images, labels = batch
        loss = F.cross_entropy(self(images), labels, label_smoothing=self.label_smoothing)
        self.log("train_loss", loss, on_step=False, on_epoch=True, prog_bar=True, batch_size=len(labels))
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Logs ``val_loss``, ``val_accuracy`` and ``val_score``."""
        loss, accuracy = self._evaluate("val", batch)
        # The loss moves the score by less than one image in 10,000 does, so it only decides between equals.
        self._log("val_score", accuracy - 1e-4 * loss / (1 + loss), batch)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Logs ``test_loss`` and ``test_accuracy``."""
        self._evaluate("test", batch)

    def predict_step(self, batch: Batch, batch_idx: int) -> Float[Tensor, "b classes"]:
        """The probability of each class for each image, of which there may be none."""
        images = batch[0]
        return self(images).float().softmax(-1) if len(images) else images.new_empty(0, self.hparams["num_classes"])

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
        images, labels = batch
        logits = self(images)
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
