"""Training steps per second of a vision transformer and a language model, with each encoding in its slot."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmpos.catalogue import ENCODINGS
from mmpos.models import TextTransformer, VisionTransformer

from ..specs import make, shape, spec
from ..timing import Call, ratios, take_turns
from . import Item, Row, Setup

Loss = Callable[[nn.Module], Tensor]
IMAGE = {
    "image_size": 224,
    "patch_size": 16,
    "in_chans": 3,
    "num_classes": 1000,
    "dim": 384,
    "depth": 12,
    "num_heads": 6,
}
SMALL_IMAGE = IMAGE | {"image_size": 32, "depth": 1, "num_classes": 10, "dim": 48}
TEXT = {"num_tokens": 256, "dim": 384, "depth": 12, "num_heads": 6, "length": 1024}
SMALL_TEXT = TEXT | {"depth": 1, "length": 32, "dim": 48}
TIMM = {
    "timm, learned table": "vit_small_patch16_224",
    "timm, axial rotation": "vit_small_patch16_rope_224",
    "timm, mixed rotation": "vit_small_patch16_rope_mixed_224",
}
MIXED = {"name": "RoPE", "axes": 2, "base": 10.0, "spectrum": {"name": "Mixed"}, "per_layer": True}
WITHOUT = "none"


def run(setup: Setup) -> Iterator[Item]:
    images = vision(setup)
    yield from against_none("vision", images, see(setup), setup)
    yield from against_none("text", language(setup), read(setup), setup)


def vision(setup: Setup) -> dict[str, Callable[[], nn.Module]]:
    """Models of images by encoding: no position, all of the factory that have two axes, and timm's."""
    sizes: dict[str, Any] = SMALL_IMAGE if setup.small else IMAGE
    models = {
        name: partial(VisionTransformer, **sizes, class_token=True, **slot)
        for name, slot in slots(2, sizes["dim"]).items()
    }
    models["RoPE, mixed"] = partial(VisionTransformer, **sizes, class_token=True, rotary=MIXED)
    with suppress(ImportError):
        import timm

        options = {"img_size": 32, "depth": 1, "num_classes": 10, "embed_dim": 48} if setup.small else {}
        models |= {name: partial(timm.create_model, model, **options) for name, model in TIMM.items()}
    return models


def language(setup: Setup) -> dict[str, Callable[[], nn.Module]]:
    """Language models by encoding: no position, and all of the factory on one axis."""
    sizes: dict[str, Any] = SMALL_TEXT if setup.small else TEXT
    return {name: partial(TextTransformer, **sizes, **slot) for name, slot in slots(1, sizes["dim"]).items()}


def slots(axes: int, dim: int) -> dict[str, dict[str, Any]]:
    """Arguments of a model by encoding; sizes that a spec leaves out are the model's."""
    found: dict[str, dict[str, Any]] = {WITHOUT: {}}
    for name, (kind, _) in ENCODINGS.items():
        if make(spec(name, axes), shape(256, axes)).axes == axes:
            found[name] = {kind: spec(name, axes, dim)}
    return found


def see(setup: Setup) -> Loss:
    """The loss of a batch of images."""
    batch, side, classes = (2, 32, 10) if setup.small else (128, 224, 1000)
    images = torch.randn(batch, 3, side, side, device=setup.device)
    labels = torch.randint(classes, (batch,), device=setup.device)
    return lambda model: F.cross_entropy(model(images).float(), labels)


def read(setup: Setup) -> Loss:
    """The loss of a batch of rows of bytes."""
    batch, length = (2, 32) if setup.small else (16, 1024)
    rows = torch.randint(256, (batch, length + 1), device=setup.device)
    return lambda model: F.cross_entropy(model(rows[:, :-1]).float().flatten(0, 1), rows[:, 1:].flatten())


def against_none(task: str, models: dict[str, Callable[[], nn.Module]], loss: Loss, setup: Setup) -> Iterator[Item]:
    """Each model takes turns with the one that has no position."""
    plain = step_of(models[WITHOUT](), loss, setup)
    for name, build in models.items():
        yield {"task": task, "encoding": name}, partial(measure, build, plain, loss, setup)


def measure(build: Callable[[], nn.Module], plain: Call, loss: Loss, setup: Setup) -> Row:
    calls = {WITHOUT: plain, "own": step_of(build(), loss, setup)}
    times = take_turns(calls, setup.device, repeats=2 if setup.small else 10, seconds=0 if setup.small else 1.5)
    return {
        "steps_per_s": f"{1000 / median(times['own']):.1f}",
        "ratio_of_time": f"{ratios(times, WITHOUT)['own']:.2f}",
    }


def step_of(model: nn.Module, loss: Loss, setup: Setup) -> Call:
    """Forward pass in bfloat16 on a GPU, backward pass and AdamW."""
    model = model.to(setup.device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=setup.device.type == "cuda")

    def step() -> None:
        with torch.autocast(setup.device.type, torch.bfloat16, enabled=setup.device.type == "cuda"):
            value = loss(model)
        value.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step
