"""Time of a training step of a ViT-S/16 at 224 x 224 by encoding, beside timm's: python -m benchmarks.vit_step.

Forward and backward of batch 8 in float32, all models in one process, in turns; medians, and of the ratios in each turn
to timm's model without rotation, to timm's model with the same encoding, and of mixed rotation to axial rotation.
"""

import argparse
import math
from collections.abc import Callable
from statistics import median

import timm
import torch
from torch import Tensor, nn

from mmpos.models import VisionTransformer

from .timing import Call, ratios, setting, take_turns

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


def step(model: nn.Module, images: Tensor) -> Call:
    """One forward and backward pass."""

    def run() -> None:
        model(images).square().mean().backward()
        model.zero_grad(set_to_none=True)

    return run


def table(times: dict[str, list[float]]) -> str:
    """Markdown: milliseconds, ratios to no rotation and to timm's model with the same encoding."""
    lines = ["| model | step, ms | to timm without rotation | to timm's own |", "|---|---|---|---|"]
    to_plain = ratios(times, "timm, learned table")
    for name, each in times.items():
        to_own = ratios(times, f"timm, {name.partition(', ')[2]}")[name]
        lines.append(f"| {name} | {median(each):.0f} | {to_plain[name]:.2f} | {to_own:.2f} |")
    mixed = [f"{ratios(times, f'{owner}, axial rotation')[f'{owner}, mixed rotation']:.2f} ({owner})"
             for owner in ("mmpos", "timm")]  # fmt: skip
    return "\n".join([*lines, "", f"Mixed rotation over axial rotation: {', '.join(mixed)}."])


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7, help="timed steps of each model")
    repeats = parser.parse_args().repeats
    torch.manual_seed(0)
    images = torch.randn(8, 3, 224, 224)
    calls = {name: step(make().train(), images) for name, make in MODELS.items()}
    print(table(take_turns(calls, images.device, repeats=repeats, seconds=math.inf)))
    print(f"Medians of {repeats} steps of batch 8 in float32; {setting(images.device)}.")


if __name__ == "__main__":
    main()
