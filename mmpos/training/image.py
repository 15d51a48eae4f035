"""Training of image classifiers."""

from typing import Any, Literal

from jaxtyping import Float
from torch import Tensor

from ..models import VisionTransformer
from ..models.stack import AdditiveTo
from .classify import Batch, Classifier


class ImageClassifier(Classifier):
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

    def forward(self, images: Float[Tensor, "b c height width"]) -> Float[Tensor, "b classes"]:
        """Logits of the classes."""
        return self.network(images)

    def classify(self, batch: Batch) -> Float[Tensor, "b classes"]:
        """Logits of the classes for the images of a batch."""
        return self(batch[0])
