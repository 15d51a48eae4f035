"""Questions about pictures, films and sound, by the rule that places tokens: python -m benchmarks.multimodal.

Each config of ``configs/multimodal`` is trained with each seed on each kind of question, for 90 seconds at most, and
its best checkpoint tested on 1,000 questions about digits that no training has seen. ``results/multimodal.csv`` has a
row for each run; the table is made of it.
"""

import argparse
from collections.abc import Sequence

from .study import RESULTS, ROOT, read_rows, run_study, setting, spread

RULES = ("none", "sequential", "mrope", "mrope_interleaved", "aligned")
SEEDS = ("0", "1", "2")
TASKS = {
    "picture": [],
    "sound": ["--data", "SoundQuestions", "--data.num_questions", "64000", "--model.sound_width", "8"],
}
LIMIT = ["--trainer.max_time", "00:00:01:30"]
PATH = RESULTS / "multimodal.csv"


def table(rows: Sequence[dict[str, str]]) -> str:
    """Right answers in percent, mean and standard deviation over seeds, as Markdown."""
    lines = [f"| config | {' | '.join(TASKS)} |", "|---" * (len(TASKS) + 1) + "|"]
    for rule in RULES:
        cells = [
            [float(row["test_accuracy"]) for row in rows if (row["rule"], row["task"]) == (rule, task)]
            for task in TASKS
        ]
        lines.append(f"| {rule} | {' | '.join(spread(cell) if cell else '' for cell in cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Runs what is missing and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    parser.add_argument("--rules", nargs="*", choices=RULES, default=RULES)
    parser.add_argument("--tasks", nargs="*", choices=TASKS, default=list(TASKS))
    parser.add_argument("--seeds", nargs="*", choices=SEEDS, default=SEEDS)
    arguments = parser.parse_args()
    cells = [
        {"task": task, "rule": rule, "seed": seed}
        for task in arguments.tasks
        for rule in arguments.rules
        for seed in arguments.seeds
    ]
    commands = [
        ["--config", str(ROOT / "configs" / "multimodal" / f"{cell['rule']}.yaml"), "--seed_everything", cell["seed"],
         *TASKS[cell["task"]], *LIMIT]
        for cell in cells
    ]  # fmt: skip
    run_study(PATH, cells, commands, jobs=arguments.jobs)
    print(table(read_rows(PATH)))
    print(f"Right answers in percent, mean and standard deviation over seeds {', '.join(SEEDS)}; {setting()}.")


if __name__ == "__main__":
    main()
