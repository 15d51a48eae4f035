"""Training of a decoder on questions about mixed rows."""

from typing import Any

import torch.nn.functional as F
from jaxtyping import Float
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor

from ..data.questions import END
from ..models import MixedRows, MultimodalTransformer
from .checkpoints import check_same_model
from .optim import adamw_cosine
from .sharding import Sharded

Batch = dict[str, Any]
"""`MixedRows` and what they are to be answered by, bytes (b, m)."""

RECIPE = ("drop_path", "lr", "weight_decay", "warmup")
"""Hyper-parameters that do not change what a checkpoint's weights mean."""

BETA2 = 0.98
"""Of AdamW: where to look is learned at once, when gradients grow, and a longer memory would slow that down."""


class QuestionModel(Sharded):
    """A `MultimodalTransformer` that learns to answer, with AdamW and a cosine schedule with warm-up.

    A batch has ``rows``, which end with all bytes of the answer but the last, and ``answer`` (b, m). An answer is right
    if every byte is the most likely one, which is when the model says it by itself.

    Args:
        num_tokens: Size of the vocabulary of text.
        patch_width: Numbers of a patch; None without pictures and films.
        sound_width: Numbers of a frame of sound; None without sound.
        dim: Channels of a token.
        depth: Number of blocks.
        num_heads: Heads per block.
        rule: Where tokens are: the name of a rule of `multimodal_coords`, or a mapping such as
            ``{name: aligned, text_step: 0.1}``.
        two_way: Whether the tokens of an image or a video see each other both ways.
        block: Further arguments of the blocks, such as ``{mlp: swiglu}``.
        additive: Slot of what is added to the tokens.
        rotary: Slot of what rotates queries and keys.
        bias: Slot of what is added to the logits.
        scale: Slot of what multiplies the logits.
        drop_path: Probability that a sample skips a branch of the last block; it grows linearly to that.
        lr: Peak learning rate.
        weight_decay: Decay of matrices; vectors, embeddings and learned encodings do not decay.
        warmup: Share of all steps in which the learning rate rises.

    Raises:
        ValueError: If the model cannot be built, or a checkpoint of another model is loaded.
    """

    def __init__(
        self,
        num_tokens: int = 256,
        patch_width: int | None = 16,
        sound_width: int | None = None,
        dim: int = 128,
        depth: int = 4,
        num_heads: int = 4,
        rule: str | dict[str, Any] = "aligned",
        two_way: bool = False,
        block: dict[str, Any] | None = None,
        additive: dict[str, Any] | None = None,
        rotary: dict[str, Any] | None = None,
        bias: dict[str, Any] | None = None,
        scale: dict[str, Any] | None = None,
        drop_path: float = 0.0,
        lr: float = 2e-3,
        weight_decay: float = 0.05,
        warmup: float = 0.1,
    ):
        super().__init__()
        self.save_hyperparameters()
        self.network = MultimodalTransformer(
            num_tokens,
            patch_width,
            sound_width,
            dim,
            depth,
            num_heads,
            rule=rule,
            two_way=two_way,
            drop_path=drop_path,
            block=block,
            additive=additive,
            rotary=rotary,
            bias=bias,
            scale=scale,
        )
        self.lr, self.weight_decay, self.warmup = lr, weight_decay, warmup

    def forward(self, rows: MixedRows, last: int | None = None) -> Float[Tensor, "b m tokens"]:
        """Logits of the next byte at every place, or at so many at the end."""
        return self.network(rows, last=last)

    def training_step(self, batch: Batch, batch_idx: int) -> Float[Tensor, ""]:
        """The loss that is minimised, of the bytes of the answer."""
        loss, _ = self._score(batch)
        self.log_loss(loss, len(batch["answer"]))
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Logs ``val_loss``, ``val_accuracy`` and ``val_score``, which chooses the best checkpoint."""
        loss = self._evaluate("val", batch)
        self.log("val_score", -loss, batch_size=len(batch["answer"]), sync_dist=True)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Logs ``test_loss`` and ``test_accuracy``."""
        self._evaluate("test", batch)

    def predict_step(self, batch: Batch, batch_idx: int) -> list[str]:
        """What the model answers to rows that end with the question."""
        answers = self.network.answer(batch["rows"], batch["answer"].shape[1], stop=END)
        return [bytes(token for token in answer.tolist() if token < END).decode(errors="replace") for answer in answers]

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """AdamW with a cosine schedule."""
        return adamw_cosine(self, lr=self.lr, weight_decay=self.weight_decay, warmup=self.warmup, beta2=BETA2)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuses the checkpoint of another model before its weights are tried."""
        check_same_model(checkpoint, self.hparams, free=RECIPE)

    def _evaluate(self, part: str, batch: Batch) -> Float[Tensor, ""]:
        loss, right = self._score(batch)
        for name, value in (("loss", loss), ("accuracy", right.float().mean())):
            self.log(f"{part}_{name}", value, prog_bar=part == "val", batch_size=len(right), sync_dist=True)
        return loss

    def _score(self, batch: Batch) -> tuple[Float[Tensor, ""], Tensor]:
        """The loss in nats a byte, and whether each answer is right."""
        answer = batch["answer"]
        logits = self(batch["rows"], last=answer.shape[1]).float()
        return F.cross_entropy(logits.flatten(0, 1), answer.flatten()), (logits.argmax(-1) == answer).all(dim=1)
