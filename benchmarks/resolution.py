"""Fashion-MNIST learned at 28 x 28 and tested at other sizes: python -m benchmarks.resolution --jobs 2.

Each encoding is trained from ``configs/fashion`` with each seed, and its best checkpoint tested at each size, in every
way to extend coordinates that applies to it. ``results/resolution.csv`` has a row for each; the table is made of it.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from mmpos.training.resolution import EXTENSIONS

from .study import RESULTS, ROOT, read_rows, run_study, setting, spread

ENCODINGS = (
    "none", "sinusoidal", "fourier", "learnable_fourier", "learned", "factorized", "alibi", "rope", "rope_mixed",
)  # fmt: skip
SEEDS = ("0", "1", "2")
SIZES = ("28x28", "42x42", "56x56", "28x56")
IMAGES = 2000
EVALUATION = [
    "--trainer.callbacks+", "ResolutionEvaluation", "--trainer.callbacks.sizes", ",".join(SIZES),
    "--trainer.callbacks.limit", str(IMAGES), "--trainer.callbacks.every_n_epochs", "0",
]  # fmt: skip
PATH = RESULTS / "resolution.csv"


def resolutions(folder: Path) -> list[dict[str, str]]:
    """The rows that `ResolutionEvaluation` left below the folder of a run."""
    (path,) = folder.rglob("resolution.csv")
    return read_rows(path)


def table(rows: Sequence[dict[str, str]]) -> str:
    """Mean and standard deviation over seeds, as Markdown: a row for each encoding and way that changes something."""
    lines = [f"| encoding | coordinates | {' | '.join(SIZES)} |", "|---" * (len(SIZES) + 2) + "|"]
    for encoding in ENCODINGS:
        own = [row for row in rows if row["encoding"] == encoding]
        results = {how: [accuracies(own, how, size) for size in SIZES] for how in EXTENSIONS}
        for how, cells in results.items():
            if all(cells) and (how == "extend" or cells != results["extend"]):
                lines.append(f"| {encoding} | {how} | {' | '.join(map(spread, cells))} |")
    return "\n".join(lines)


def accuracies(rows: Sequence[dict[str, str]], how: str, size: str) -> list[float]:
    """Accuracy of each seed in some way at some size; none where the way does not apply."""
    return [float(row["accuracy"]) for row in rows if (row["how"], row["size"]) == (how, size)]


def main() -> None:
    """Runs what is missing and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    parser.add_argument("--root", help="folder of Fashion-MNIST, if other than the config's")
    arguments = parser.parse_args()
    cells = [{"encoding": encoding, "seed": seed} for encoding in ENCODINGS for seed in SEEDS]
    root = ["--data.root", arguments.root] if arguments.root else []
    commands = [
        ["--config", str(ROOT / "configs" / "fashion" / f"{cell['encoding']}.yaml"), "--seed_everything", cell["seed"],
         *EVALUATION, *root]
        for cell in cells
    ]  # fmt: skip
    run_study(PATH, cells, commands, jobs=arguments.jobs, collect=resolutions)
    print(table(read_rows(PATH)))
    print(
        f"Accuracy in percent on {IMAGES:,} test images, the same at each size, mean and standard deviation over seeds "
        f"{', '.join(SEEDS)}; {setting()}."
    )


if __name__ == "__main__":
    main()
