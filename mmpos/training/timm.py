"""Training of timm's vision transformers with our encodings in their slots."""

from typing import Any

import timm
from jaxtyping import Float
from timm.models import is_model
from torch import Tensor

from ..adapters.timm import add_bias, add_rotary, remove_pos_embed, replace_pos_embed
from ..adapters.timm.parts import grid_of, head_width, parts_of
from ..models import GridPositions, StackEncodings
from ..values import check_arguments
from .classify import Batch, Classifier


class TimmClassifier(Classifier):
    """Any image classifier of timm, trained with cross entropy, AdamW and a cosine schedule with warm-up.

    What a slot has stands in the place of what the model has there; an empty slot leaves the model as it is. Models
    that take encodings of ours are those of `mmpos.adapters.timm.add_rotary`.

    Args:
        name: Name of the model, as ``timm.list_models()`` has it.
        num_classes: Number of classes.
        pretrained: Whether weights are downloaded to start from.
        options: Further arguments of ``timm.create_model``, such as ``{img_size: 32, patch_size: 4}``.
        pos_embed: Whether the model keeps its own position embedding where ``additive`` is empty.
        positions: How patches become coordinates; arguments of `mmpos.models.GridPositions`.
        additive: Slot of what is added to the patches.
        rotary: Slot of what rotates queries and keys.
        bias: Slot of what is added to the logits.
        label_smoothing: Share of the target that is spread over all classes in training.
        lr: Peak learning rate.
        weight_decay: Decay of matrices; vectors and learned encodings do not decay.
        warmup: Share of all steps in which the learning rate rises.

    Raises:
        ValueError: If timm has no such model, it does not take what the slots have, or a checkpoint of another model is
            loaded.
    """

    def __init__(
        self,
        name: str = "vit_tiny_patch16_224",
        num_classes: int = 10,
        pretrained: bool = False,
        options: dict[str, Any] | None = None,
        pos_embed: bool = True,
        positions: dict[str, Any] | None = None,
        additive: dict[str, Any] | None = None,
        rotary: dict[str, Any] | None = None,
        bias: dict[str, Any] | None = None,
        label_smoothing: float = 0.1,
        lr: float = 2e-3,
        weight_decay: float = 0.05,
        warmup: float = 0.1,
    ):
        super().__init__()
        if not is_model(name.partition(".")[0]):
            near = ", ".join(timm.list_models(f"*{name[:8]}*")[:5])
            raise ValueError(f"timm has no model {name!r}" + (f"; some near it: {near}" if near else ""))
        check_arguments("positions", GridPositions, positions or {})
        self.save_hyperparameters()
        self.network: Any = timm.create_model(name, pretrained=pretrained, num_classes=num_classes, **options or {})
        where = GridPositions(**positions) if positions else None
        if additive or rotary or bias:
            _fill_slots(self.network, where, additive=additive, rotary=rotary, bias=bias)
        if additive is None and not pos_embed:
            remove_pos_embed(self.network)
        self.label_smoothing, self.lr, self.weight_decay, self.warmup = label_smoothing, lr, weight_decay, warmup

    def forward(self, images: Float[Tensor, "b c height width"]) -> Float[Tensor, "b classes"]:
        """Logits of the classes."""
        return self.network(images)

    def classify(self, batch: Batch) -> Float[Tensor, "b classes"]:
        """Logits of the classes for the images of a batch."""
        return self(batch[0])


def _fill_slots(model: Any, positions: GridPositions | None, **slots: Any) -> None:
    """Puts encodings in the place of those of the model; learned rotations are of each layer, others of all."""
    parts = parts_of(model)
    attention = next(module for _, _, module in parts.attentions())
    encodings: Any = StackEncodings(
        len(parts.layers),
        dim=model.embed_dim,
        num_heads=attention.num_heads,
        num_kv_heads=getattr(attention, "num_kv_heads", None),
        head_dim=head_width(attention),
        size=grid_of(model),
        **slots,
    )
    if encodings.additive is not None:
        replace_pos_embed(model, encodings.additive, positions=positions)
    for add, modules, kind in ((add_rotary, encodings.rotary, 0), (add_bias, encodings.bias, 1)):
        if len(modules):
            numbers = [layer[kind] for layer in encodings.layers]
            add(model, [None if number is None else modules[number] for number in numbers], positions=positions)
