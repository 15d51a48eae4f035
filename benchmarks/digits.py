"""Test accuracy on digits of each encoding, after 30 epochs and after the full training: python -m benchmarks.digits.

Every row of ``results/digits.csv`` is one run of ``train.py fit``; the table is made from that file.
"""

import argparse
from collections.abc import Sequence

from .study import RESULTS, ROOT, read_rows, run_study, setting, spread

ENCODINGS = ("none", "sinusoidal", "learned", "alibi", "swin", "continuous", "relative_logits", "rope")
EPOCHS = ("30", "150")
SEEDS = ("0", "1", "2")
PATH = RESULTS / "digits.csv"


def table(rows: Sequence[dict[str, str]]) -> str:
    """Mean and standard deviation over seeds, as Markdown."""
    lines = [f"| encoding | {' | '.join(f'{epochs} epochs' for epochs in EPOCHS)} |", "|---" * (len(EPOCHS) + 1) + "|"]
    for encoding in ENCODINGS:
        cells = [
            spread(
                [float(row["test_accuracy"]) for row in rows if (row["encoding"], row["epochs"]) == (encoding, epochs)]
            )
            for epochs in EPOCHS
        ]
        lines.append(f"| {encoding} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Runs what is missing and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    jobs = parser.parse_args().jobs
    cells = [
        {"encoding": encoding, "epochs": epochs, "seed": seed}
        for epochs in EPOCHS
        for encoding in ENCODINGS
        for seed in SEEDS
    ]
    commands = [
        ["--config", str(ROOT / "configs" / "image" / f"{cell['encoding']}.yaml"), "--seed_everything", cell["seed"],
         "--trainer.max_epochs", cell["epochs"]]
        for cell in cells
    ]  # fmt: skip
    run_study(PATH, cells, commands, jobs=jobs)
    print(table(read_rows(PATH)))
    print(f"Test accuracy in percent, mean and standard deviation over seeds {', '.join(SEEDS)}; {setting()}.")


if __name__ == "__main__":
    main()
