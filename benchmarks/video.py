"""Moving digits by encoding, on clips of other rates and sizes than learned: python -m benchmarks.video --jobs 2.

Each encoding is trained from ``configs/video`` with each seed, and its best checkpoint tested on the same motions in
clips of each form, with times and places that follow the rate and the resolution or do not. ``results/video.csv`` has a
row for each; the table is made of it.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from mmpos.training.video import COORDINATES

from .study import RESULTS, ROOT, read_rows, run_study, setting, spread

ENCODINGS = ("none", "space", "sinusoidal", "learned", "rope", "factorised")
SEEDS = ("0", "1", "2")
FORMS = {
    "8x24@8": "as learned",
    "shuffled": "shuffled",
    "16x24@16": "twice the frames",
    "8x24@12": "another rate",
    "8x48@8": "twice the side",
    "16x48@16": "twice both",
}
EVALUATION = [
    "--trainer.callbacks+", "ClipEvaluation", "--trainer.callbacks.forms", ",".join(FORMS),
]  # fmt: skip
PATH = RESULTS / "video.csv"


def forms(folder: Path) -> list[dict[str, str]]:
    """The rows that `ClipEvaluation` left below the folder of a run."""
    (path,) = folder.rglob("clips.csv")
    return read_rows(path)


def table(rows: Sequence[dict[str, str]]) -> str:
    """Mean and standard deviation over seeds, as Markdown: a row for each encoding and kind that changes something."""
    lines = [f"| encoding | scaled | {' | '.join(FORMS.values())} |", "|---" * (len(FORMS) + 2) + "|"]
    for encoding in ENCODINGS:
        own = [row for row in rows if row["encoding"] == encoding]
        results = {kind: [accuracies(own, kind, form) for form in FORMS] for kind in COORDINATES}
        seen = []
        for kind, cells in results.items():
            if all(cells) and cells not in seen:
                seen.append(cells)
                lines.append(f"| {encoding} | {'-' if kind == 'index' else kind} | {' | '.join(map(spread, cells))} |")
    return "\n".join(lines)


def accuracies(rows: Sequence[dict[str, str]], kind: str, form: str) -> list[float]:
    """Accuracy of each seed on clips of a form; none where there is no run."""
    return [float(row["accuracy"]) for row in rows if (row["coordinates"], row["form"]) == (kind, form)]


def main() -> None:
    """Runs what is missing and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    parser.add_argument("--encodings", nargs="*", choices=ENCODINGS, default=list(ENCODINGS))
    parser.add_argument("--seeds", nargs="*", default=list(SEEDS))
    arguments = parser.parse_args()
    cells = [{"encoding": encoding, "seed": seed} for seed in arguments.seeds for encoding in arguments.encodings]
    commands = [
        ["--config", str(ROOT / "configs" / "video" / f"{cell['encoding']}.yaml"), "--seed_everything", cell["seed"],
         *EVALUATION]
        for cell in cells
    ]  # fmt: skip
    run_study(PATH, cells, commands, jobs=arguments.jobs, collect=forms)
    print(table(read_rows(PATH)))
    print(f"Accuracy in percent, mean and standard deviation over seeds {', '.join(SEEDS)}; {setting()}.")


if __name__ == "__main__":
    main()
