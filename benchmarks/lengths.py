"""Language models trained on 128 bytes and tested on longer texts: python -m benchmarks.lengths --jobs 2.

Each encoding is trained from ``configs/text`` with each seed, and its best checkpoint tested on stretches of test
documents cut at 1, 2, 4 and 8 times the length in training, in every way to extend it that applies.
``results/lengths.csv`` has a row for each; the table and ``results/lengths.png`` are made of it.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev

from mmpos.training.lengths import TUNED, WAYS

from .study import RESULTS, ROOT, read_rows, run_study, setting

ENCODINGS = (
    "none", "sinusoidal", "learned", "rope", "rope_randomized", "xpos", "alibi", "t5", "kerple", "fire",
    "relative_logits", "interleaved",
)  # fmt: skip
SEEDS = ("0", "1", "2")
LENGTHS = ("128", "256", "512", "1024")
STEPS = "800"
PATH = RESULTS / "lengths.csv"


def lengths(folder: Path) -> list[dict[str, str]]:
    """The rows that `LengthEvaluation` left below the folder of a run."""
    (path,) = folder.rglob("lengths.csv")
    return read_rows(path)


def command(encoding: str, seed: str) -> list[str]:
    """Arguments of ``train.py fit``; heads are tuned where there is no other encoding."""
    ways = (*WAYS, TUNED) if encoding == "none" else WAYS
    return [
        "--config", str(ROOT / "configs" / "text" / f"{encoding}.yaml"), "--seed_everything", seed,
        "--trainer.limit_train_batches", STEPS,
        "--trainer.callbacks+", "LengthEvaluation", "--trainer.callbacks.every_n_epochs", "0",
        "--trainer.callbacks.how", ",".join(ways),
    ]  # fmt: skip


def table(rows: Sequence[dict[str, str]]) -> str:
    """Bits per byte, mean and standard deviation over seeds, as Markdown: a row for each encoding and way."""
    lines = [f"| encoding | extended by | {' | '.join(LENGTHS)} |", "|---" * (len(LENGTHS) + 2) + "|"]
    for encoding, how in curves(rows):
        cells = [bits(rows, encoding, how, length) for length in LENGTHS]
        texts = (f"{mean(cell):.3f} ± {stdev(cell) if len(cell) > 1 else 0:.3f}" for cell in cells)
        lines.append(f"| {encoding} | {'' if how == 'extend' else how} | {' | '.join(texts)} |")
    return "\n".join(lines)


def curves(rows: Sequence[dict[str, str]]) -> list[tuple[str, str]]:
    """Encodings and the ways that apply to them."""
    return [
        (encoding, how)
        for encoding in ENCODINGS
        for how in (*WAYS, TUNED)
        if all(bits(rows, encoding, how, length) for length in LENGTHS)
    ]


def bits(rows: Sequence[dict[str, str]], encoding: str, how: str, length: str, column: str = "bits") -> list[float]:
    """Bits per byte of each seed."""
    key = (encoding, how, length)
    return [float(row[column]) for row in rows if (row["encoding"], row["how"], row["length"]) == key]


def plot(rows: Sequence[dict[str, str]], path: Path) -> None:
    """Bits per byte over the length, with encodings as they are and extended in the way that is best at the longest."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    longest = LENGTHS[-1]
    figure, panels = plt.subplots(1, 2, figsize=(12, 4.8), sharey=True, layout="constrained")
    for encoding, color in zip(ENCODINGS, plt.get_cmap("tab20").colors, strict=False):
        ways = [how for name, how in curves(rows) if name == encoding]
        if not ways:
            continue
        best = min(ways, key=lambda how: mean(bits(rows, encoding, how, longest)))
        for panel, how in zip(panels, ("extend", best), strict=True):
            values = [bits(rows, encoding, how, length) for length in LENGTHS]
            label = encoding if panel is panels[0] or how == "extend" else f"{encoding}, {how}"
            style = {"color": "black"} if encoding == "none" else {"color": color}
            panel.plot(range(len(LENGTHS)), [mean(value) for value in values], marker=".", label=label, **style)
            panel.fill_between(
                range(len(LENGTHS)), [min(value) for value in values], [max(value) for value in values],
                alpha=0.15, linewidth=0, **style,
            )  # fmt: skip
    for panel, title in zip(panels, ("as trained", "the best way to extend each, without training"), strict=True):
        panel.set_xticks(range(len(LENGTHS)), LENGTHS)
        panel.set(title=title, xlabel=f"bytes of context; {LENGTHS[0]} in training")
        panel.grid(alpha=0.3)
        panel.legend(fontsize="x-small", ncols=2)
    panels[0].set_ylabel("bits per byte of test documents")
    figure.savefig(path, dpi=120)


def main() -> None:
    """Runs what is missing, prints the table and draws the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    parser.add_argument("--encodings", nargs="*", choices=ENCODINGS, default=ENCODINGS)
    arguments = parser.parse_args()
    cells = [{"encoding": encoding, "seed": seed} for seed in SEEDS for encoding in arguments.encodings]
    run_study(PATH, cells, [command(**cell) for cell in cells], jobs=arguments.jobs, collect=lengths)
    rows = read_rows(PATH)
    print(table(rows))
    plot(rows, PATH.with_suffix(".png"))
    print(
        f"Bits per byte, mean and standard deviation over seeds {', '.join(SEEDS)}, after {STEPS} steps of 8 rows; "
        f"{setting()}."
    )


if __name__ == "__main__":
    main()
