"""Training of language models."""

import math
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn

from ..data.corpus import END
from ..models import TextTransformer
from ..models.blocks import LAYER_NORM
from ..models.sequence import SequencePositions
from ..values import check_arguments
from .checkpoints import check_same_model
from .optim import adamw_cosine
from .sharding import Sharded

RECIPE = ("drop_path", "positions", "lr", "weight_decay", "warmup")
"""Hyper-parameters that do not change what a checkpoint's weights mean."""

NORMS = {"layer": LAYER_NORM, "rms": nn.RMSNorm}


class LanguageModel(Sharded):
    """A `TextTransformer` that learns to predict the next byte, with AdamW and a cosine schedule with warm-up.

    A row of a batch has the inputs and, one place on, the targets. What is reported are bits per byte.

    Args:
        num_tokens: Size of the vocabulary.
        dim: Channels of a token.
        depth: Number of blocks.
        num_heads: Heads per block.
        length: Positions of a learned table, where there is one.
        window: Tokens that a token sees, itself and those before it; all if None.
        separator: Token that begins a document; None if a row is one document.
        norm: "layer" or "rms", what normalises.
        block: Further arguments of the blocks, such as ``{mlp: swiglu, num_kv_heads: 2}``.
        layers: A pattern of layers that differ, such as ``[{window: 64}, {window: 64}, {rotary: null}]``.
        positions: How positions vary in training, such as ``{subsample: 1024}``; arguments of
            `mmpos.models.sequence.SequencePositions`.
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
        dim: int = 128,
        depth: int = 4,
        num_heads: int = 4,
        length: int | None = None,
        window: int | None = None,
        separator: int | None = END,
        norm: Literal["layer", "rms"] = "rms",
        block: dict[str, Any] | None = None,
        layers: list[dict[str, Any]] | None = None,
        positions: dict[str, Any] | None = None,
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
        check_arguments("positions", SequencePositions, positions or {})
        self.positions = SequencePositions(**positions or {})
        self.network = TextTransformer(
            num_tokens,
            dim,
            depth,
            num_heads,
            length=length,
            window=window,
            separator=separator,
            drop_path=drop_path,
            block=block,
            norm_layer=NORMS[norm],
            layers=layers,
            additive=additive,
            rotary=rotary,
            bias=bias,
            scale=scale,
        )
        self.lr, self.weight_decay, self.warmup = lr, weight_decay, warmup
        self.draws: torch.Generator | None = None
        self.draws_state: Tensor | None = None

    def forward(self, tokens: Int[Tensor, "b n"]) -> Float[Tensor, "b n tokens"]:
        """Logits of the next token at every place."""
        return self.network(tokens)

    def on_fit_start(self) -> None:
        """Gives positions a source of randomness of their own, which goes on where a checkpoint left it."""
        self.draws = torch.Generator().manual_seed(torch.initial_seed() + self.global_rank)
        if self.draws_state is not None:
            self.draws.set_state(self.draws_state)

    def training_step(self, batch: Int[Tensor, "b n"], batch_idx: int) -> Float[Tensor, ""]:
        """The loss that is minimised, in nats."""
        inputs = batch[:, :-1]
        coords = None
        if self.positions.varies:
            coords = self.positions.vary(self.network.count(inputs).cpu(), self.draws).to(inputs.device)
        loss = cross_entropy(self.network(inputs, coords=coords), batch[:, 1:]).mean()
        self.log(
            "train_bits",
            loss / math.log(2),
            on_step=False,
            on_epoch=True,
            prog_bar=True,
            batch_size=len(batch),
            sync_dist=True,
        )
        return loss

    def validation_step(self, batch: Int[Tensor, "b n"], batch_idx: int) -> None:
        """Logs ``val_bits``, and ``val_score``, which chooses the best checkpoint."""
        bits = self._evaluate("val", batch)
        self.log("val_score", -bits, batch_size=len(batch), sync_dist=True)

    def test_step(self, batch: Int[Tensor, "b n"], batch_idx: int) -> None:
        """Logs ``test_bits``."""
        self._evaluate("test", batch)

    def predict_step(self, batch: Int[Tensor, "b n"], batch_idx: int) -> Float[Tensor, "b targets"]:
        """Bits of each byte but the first."""
        return cross_entropy(self(batch[:, :-1]), batch[:, 1:]) / math.log(2)

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """AdamW with a cosine schedule."""
        return adamw_cosine(self, lr=self.lr, weight_decay=self.weight_decay, warmup=self.warmup)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuses the checkpoint of another model before its weights are tried."""
        check_same_model(checkpoint, self.hparams, free=RECIPE)
        self.draws_state = checkpoint.get("draws")

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keeps where the random positions are."""
        if self.draws is not None:
            checkpoint["draws"] = self.draws.get_state()

    def _evaluate(self, part: str, batch: Tensor) -> Float[Tensor, ""]:
        bits = cross_entropy(self(batch[:, :-1]), batch[:, 1:]).mean() / math.log(2)
        self.log(f"{part}_bits", bits, prog_bar=part == "val", batch_size=len(batch), sync_dist=True)
        return bits


def cross_entropy(logits: Float[Tensor, "b n tokens"], targets: Int[Tensor, "b n"]) -> Float[Tensor, "b n"]:
    """Nats of each target, in float32."""
    return F.cross_entropy(logits.float().mT, targets, reduction="none")
