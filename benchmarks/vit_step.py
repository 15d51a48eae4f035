"""Time of a training step of a ViT-S/16 at 224 x 224 by encoding, beside timm's: python -m benchmarks.vit_step.

Forward and backward of batch 8 in float32, all models in one process, runs interleaved; medians, and their ratio to
timm's model without rotation.
"""

import argparse
import time
from collections.abc import Callable
from statistics import median

import timm
import torch
from torch import Tensor, nn

from mmpos.models import VisionTransformer

from .study import setting

SIZES = {"image_size": 224, "patch_size": 16, "in_chans": 3, "num_classes": 1000, "dim": 384, "depth": 12}
AXIAL = {"name": "RoPE", "axes": 2, "base": 100.0}
MIXED = {"name": "RoPE", "axes": 2, "base": 10.0, "spectrum": {"name": "Mixed"}, "per_layer": True}


def ours(**slots) -> Callable[[], nn.Module]:
    return lambda: VisionTransformer(**SIZES, num_heads=6, class_token=True, **slots)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "timm, learned table": lambda: timm.create_model("vit_small_patch16_224"),
    "timm, axial rotation": lambda: timm.create_model("vit_small_patch16_rope_224"),
    "timm, mixed rotation": lambda: timm.create_model("vit_small_patch16_rope_mixed_224"),
    "mmpos, learned table": ours(additive={"name": "LearnedTable"}),
    "mmpos, axial rotation": ours(rotary=AXIAL),
    "mmpos, mixed rotation": ours(rotary=MIXED),
}


def step(model: nn.Module, images: Tensor) -> float:
    """Seconds of one forward and backward pass."""
    start = time.perf_counter()
    model(images).square().mean().backward()
    model.zero_grad(set_to_none=True)
    return time.perf_counter() - start


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7, help="timed steps of each model")
    repeats = parser.parse_args().repeats
    torch.manual_seed(0)
    images = torch.randn(8, 3, 224, 224)
    models = {name: make().train() for name, make in MODELS.items()}
    times: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(repeats + 1):
        for name, model in models.items():
            times[name].append(step(model, images))
    medians = {name: median(values[1:]) for name, values in times.items()}
    print("| model | step, ms | ratio |\n|---|---|---|")
    for name, seconds in medians.items():
        print(f"| {name} | {1000 * seconds:.0f} | {seconds / medians['timm, learned table']:.2f} |")
    print(f"Median of {repeats} steps of batch 8 in float32; {setting()}.")


if __name__ == "__main__":
    main()
