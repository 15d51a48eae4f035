"""Where in a long input a fact is found again: python -m benchmarks.depth.

A row has eight facts at random places among filler, and at its end a question for each. A model of two layers learns
to answer on rows of 128 tokens and is tested on rows of 128 and 512, by the depth of the fact. ``results/depth.csv``
has the accuracy in each eighth of the row; the table and ``results/depth.png`` are made of it.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev

import torch
import torch.nn.functional as F
import yaml
from torch import Tensor

from mmpos.models import TextTransformer

from .study import RESULTS, ROOT, read_rows, setting, write_rows

ENCODINGS = ("none", "sinusoidal", "learned", "rope", "xpos", "alibi", "t5", "kerple", "fire", "relative_logits")
SEEDS = (0, 1, 2)
FILLERS, FACTS, VALUES = 64, 8, 8
TRAINED, TESTED, BINS = 128, (128, 512), 8
STEPS, ROWS = 300, 32
PATH = RESULTS / "depth.csv"


def make_rows(count: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens ``(b, length + facts)``, and the value and the place ``(b, facts)`` of the fact of each question."""
    tokens = torch.randint(FILLERS, (count, length), generator=generator)
    places = torch.rand(count, length, generator=generator).argsort(-1)[:, :FACTS]
    values = torch.randint(VALUES, (count, FACTS), generator=generator)
    tokens.scatter_(1, places, FILLERS + torch.arange(FACTS) * VALUES + values)
    asked = torch.rand(count, FACTS, generator=generator).argsort(-1)
    questions = FILLERS + FACTS * VALUES + asked
    return torch.cat([tokens, questions], dim=1), values.gather(1, asked), places.gather(1, asked)


def train(encoding: str, seed: int) -> TextTransformer:
    """A model with the slots of ``configs/text``, which answers questions."""
    config = yaml.safe_load((ROOT / "configs" / "text" / f"{encoding}.yaml").read_text(encoding="utf-8"))
    slots = {key: value for key, value in config["model"].get("init_args", {}).items() if key != "length"}
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    num_tokens = FILLERS + FACTS * VALUES + FACTS
    model = TextTransformer(num_tokens, dim=64, depth=2, num_heads=2, length=TRAINED + FACTS, **slots)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, STEPS, pct_start=0.1)
    for _ in range(STEPS):
        tokens, values, _ = make_rows(ROWS, TRAINED, generator)
        optimizer.zero_grad()
        F.cross_entropy(model(tokens)[:, -FACTS:, :VALUES].mT, values).backward()
        optimizer.step()
        schedule.step()
    return model.eval()


@torch.no_grad()
def accuracies(model: TextTransformer, length: int, rows: int = 256) -> list[float]:
    """Share of right answers to questions about each eighth of the row, from its beginning."""
    longer, generator = model.at_length(length + FACTS), torch.Generator().manual_seed(99)
    right, count = torch.zeros(BINS), torch.zeros(BINS)
    for _ in range(rows // ROWS):
        tokens, values, places = make_rows(ROWS, length, generator)
        hits = longer(tokens)[:, -FACTS:, :VALUES].argmax(-1) == values
        parts = (places * BINS // length).flatten()
        right.index_add_(0, parts, hits.flatten().float())
        count.index_add_(0, parts, torch.ones(parts.shape))
    return (right / count).tolist()


def table(rows: Sequence[dict[str, str]]) -> str:
    """Percent at the beginning, in the middle and at the end of the longest rows, as Markdown."""
    columns = {"first eighth": (0,), "middle": (BINS // 2 - 1, BINS // 2), "last eighth": (BINS - 1,)}
    length = str(TESTED[-1])
    lines = [f"| encoding | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for encoding in ENCODINGS:
        cells = []
        for parts in columns.values():
            seeds = [[accuracy(rows, encoding, seed, length, part) for part in parts] for seed in SEEDS]
            shares = [100 * mean(share) for share in seeds]
            cells.append(f"{mean(shares):.0f} ± {stdev(shares):.0f}")
        lines.append(f"| {encoding} | {' | '.join(cells)} |")
    return "\n".join(lines)


def accuracy(rows: Sequence[dict[str, str]], encoding: str, seed: int, length: str, part: int) -> float:
    """What one run has in one part."""
    key = (encoding, str(seed), length, str(part))
    (value,) = (row["accuracy"] for row in rows if (row["encoding"], row["seed"], row["length"], row["part"]) == key)
    return float(value)


def plot(rows: Sequence[dict[str, str]], path: Path) -> None:
    """Accuracy by depth, a panel for each length."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(TESTED), figsize=(12, 4.5), sharey=True, layout="constrained")
    for panel, length in zip(panels, map(str, TESTED), strict=True):
        for encoding, color in zip(ENCODINGS, ("black", *plt.get_cmap("tab10").colors), strict=False):
            values = [[100 * accuracy(rows, encoding, seed, length, part) for seed in SEEDS] for part in range(BINS)]
            depth = [(part + 0.5) * int(length) / BINS for part in range(BINS)]
            panel.plot(depth, [mean(value) for value in values], marker=".", color=color, label=encoding)
            panel.fill_between(depth, [min(v) for v in values], [max(v) for v in values], color=color, alpha=0.12, lw=0)
        trained = "as in training" if int(length) == TRAINED else f"{TRAINED} in training"
        panel.set(title=f"rows of {length} tokens, {trained}", xlabel="place of the fact")
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("right answers in percent")
    panels[0].legend(fontsize="small", loc="lower right", ncols=2)
    figure.savefig(path, dpi=120)


def main() -> None:
    """Runs what is missing, prints the table and draws the picture."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    torch.set_num_threads(1)
    rows = read_rows(PATH)
    for seed in SEEDS:
        for encoding in ENCODINGS:
            if any((row["encoding"], row["seed"]) == (encoding, str(seed)) for row in rows):
                continue
            start = time.perf_counter()
            model = train(encoding, seed)
            seconds = f"{time.perf_counter() - start:.0f}"
            for length in TESTED:
                rows += [
                    {"encoding": encoding, "seed": str(seed), "length": str(length), "part": str(part),
                     "accuracy": f"{share:.4f}", "seconds": seconds}
                    for part, share in enumerate(accuracies(model, length))
                ]  # fmt: skip
            write_rows(PATH, rows)
            print(encoding, seed, seconds, "s", flush=True)
    print(table(rows))
    plot(rows, PATH.with_suffix(".png"))
    seeds = ", ".join(map(str, SEEDS))
    print(f"Percent of right answers, mean and standard deviation over seeds {seeds}; one thread, {setting()}.")


if __name__ == "__main__":
    main()
