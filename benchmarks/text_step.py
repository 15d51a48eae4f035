"""Time of a training step of the language model by encoding: python -m benchmarks.text_step.

Forward, backward and AdamW on 8 rows of 128 bytes in float32, all models of ``configs/text`` in one process, runs
interleaved; medians, and their ratio to the model with no encoding.
"""

import argparse
import time
from statistics import median

import torch
import yaml
from torch import Tensor

from mmpos.training.text import LanguageModel, cross_entropy

from .lengths import ENCODINGS
from .study import ROOT, setting


def make(encoding: str) -> LanguageModel:
    """The model of a config."""
    config = yaml.safe_load((ROOT / "configs" / "text" / f"{encoding}.yaml").read_text(encoding="utf-8"))
    return LanguageModel(**config["model"].get("init_args", {})).train()


def step(model: LanguageModel, optimizer: torch.optim.Optimizer, rows: Tensor) -> float:
    """Seconds of one step."""
    start = time.perf_counter()
    inputs = rows[:, :-1]
    coords = model.positions.vary(model.network.count(inputs)) if model.positions.varies else None
    cross_entropy(model.network(inputs, coords=coords), rows[:, 1:]).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    return time.perf_counter() - start


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=21, help="timed steps of each model")
    repeats = parser.parse_args().repeats
    torch.manual_seed(0)
    rows = torch.randint(255, (8, 129))
    models = {encoding: make(encoding) for encoding in ENCODINGS}
    optimizers = {encoding: torch.optim.AdamW(model.parameters()) for encoding, model in models.items()}
    times: dict[str, list[float]] = {encoding: [] for encoding in models}
    for _ in range(repeats + 2):
        for encoding, model in models.items():
            times[encoding].append(step(model, optimizers[encoding], rows))
    medians = {encoding: median(values[2:]) for encoding, values in times.items()}
    print("| encoding | step, ms | ratio |\n|---|---|---|")
    for encoding, seconds in medians.items():
        print(f"| {encoding} | {1000 * seconds:.1f} | {seconds / medians['none']:.2f} |")
    print(f"Median of {repeats} steps of 8 rows of 128 in float32; {setting()}.")


if __name__ == "__main__":
    main()
