"""Questions about pictures, films and sound, by the rule that places tokens: python -m benchmarks.multimodal.

Each config of ``configs/multimodal``, of questions about pictures, and of ``configs/sound`` is trained with each seed,
and its best checkpoint tested on 1,000 questions about digits that no training has seen.
``results/multimodal.csv`` has a row for each run; the table is made of it.
"""

import argparse
from collections.abc import Sequence

from .study import RESULTS, ROOT, read_rows, run_study, setting, spread

RULES = {
    "multimodal": ("none", "sequential", "mrope", "mrope_interleaved", "aligned"),
    "sound": ("none", "sequential", "mrope", "aligned"),
}
SEEDS = ("0", "1", "2")
PATH = RESULTS / "multimodal.csv"


def table(rows: Sequence[dict[str, str]]) -> str:
    """Right answers in percent, mean and standard deviation over seeds, as Markdown."""
    lines = ["| config | pictures | sound |", "|---|---|---|"]
    for rule in RULES["multimodal"]:
        cells = [
            [float(row["test_accuracy"]) for row in rows if (row["rule"], row["task"]) == (rule, task)]
            for task in RULES
        ]
        lines.append(f"| {rule} | {' | '.join(spread(cell) if cell else '' for cell in cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Runs what is missing and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    parser.add_argument("--tasks", nargs="*", choices=RULES, default=list(RULES))
    parser.add_argument("--seeds", nargs="*", choices=SEEDS, default=SEEDS)
    arguments = parser.parse_args()
    cells = [
        {"task": task, "rule": rule, "seed": seed}
        for task in arguments.tasks
        for rule in RULES[task]
        for seed in arguments.seeds
    ]
    configs = [str(ROOT / "configs" / cell["task"] / f"{cell['rule']}.yaml") for cell in cells]
    commands = [
        ["--config", config, "--seed_everything", cell["seed"]] for config, cell in zip(configs, cells, strict=True)
    ]
    run_study(PATH, cells, commands, jobs=arguments.jobs)
    print(table(read_rows(PATH)))
    print(f"Right answers in percent, mean and standard deviation over seeds {', '.join(SEEDS)}; {setting()}.")


if __name__ == "__main__":
    main()
