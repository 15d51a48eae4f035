"""Forecasts of 96 rows from 96, by encoding, on regular and irregular time: python -m benchmarks.series --jobs 2.

Each encoding is trained from ``configs/series`` with each seed, and its best checkpoint tested: on all windows of
``sf_traffic``, and on 2,000 of the others, spread over the test part. ``results/series.csv`` has a row for each run,
with the errors of forecasts that need no training on the same windows; the tables are made of it.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev

from .study import RESULTS, ROOT, read_rows, run_study, setting

SEEDS = ("0", "1", "2")
SEVEN_CHANNELS = [
    "--data.source", "beijing_pm25", "--data.batch_size", "16", "--data.limit", "2000", "--model.instance", "none",
]  # fmt: skip
BY_CHANNEL = [
    "--model.times", "{coords: {rotary: [time], additive: [fraction_of_day, fraction_of_week, fraction_of_year, "
    "variate]}}",
    "--model.additive", "{name: Sum, on: [[0, 1, 2], [3]], parts: ["
    "{name: Seasonal, axes: 3, harmonics: [3, 1, 1]}, {name: LearnedTable, size: [7]}]}",
    "--model.block", "{proj_drop: 0.2}", "--model.patch", "48",
]  # fmt: skip
SHORT = ["--trainer.max_epochs", "1", "--trainer.limit_train_batches"]
DATA = {
    "sf_traffic": [],
    "beijing_pm25": [*SEVEN_CHANNELS, *BY_CHANNEL, *SHORT, "1800"],
    "beijing_pm25, all rows": [*SEVEN_CHANNELS, "--model.patch", "4", *SHORT, "300"],
    "beijing_pm25, 40 % dropped": [*SEVEN_CHANNELS, "--model.patch", "4", "--data.drop", "0.4", *SHORT, "300"],
    "metro_traffic": [
        "--data.source", "metro_traffic", "--data.channels", "[vehicles]", "--data.limit", "2000",
        "--data.timezone", "America/Chicago", "--model.patch", "4", *SHORT, "600",
    ],
}  # fmt: skip
REGULAR = ("index", "learned", "time_rope", "calendar", "calendar_time_rope")
IRREGULAR = ("index", "time_rope")
ENCODINGS = {
    "sf_traffic": REGULAR,
    "beijing_pm25": ("calendar_time_rope",),
    **dict.fromkeys(("beijing_pm25, all rows", "beijing_pm25, 40 % dropped", "metro_traffic"), IRREGULAR),
}
PATH = RESULTS / "series.csv"


def errors(folder: Path) -> list[dict[str, str]]:
    """Errors of the model and of forecasts that need no training, from the folder of a run."""
    (path,) = folder.rglob("forecasts.csv")
    rows = {"naive" if place == 1 else row["forecast"]: row for place, row in enumerate(read_rows(path))}
    return [{f"{name} {measure}": row[measure] for name, row in rows.items() for measure in ("mse", "mae")}]


def table(rows: Sequence[dict[str, str]]) -> str:
    """Mean and standard deviation over seeds, as Markdown: a table of regular and one of irregular time."""
    return "\n\n".join(one_table(rows, data) for data in (list(DATA)[:2], list(DATA)[2:]))


def one_table(rows: Sequence[dict[str, str]], data: Sequence[str]) -> str:
    """A row for each encoding and two columns for each data set."""
    lines = [f"| encoding | {' | '.join(f'{name}, MSE | MAE' for name in data)} |", "|---" * (2 * len(data) + 1) + "|"]
    for encoding in dict.fromkeys(encoding for name in data for encoding in ENCODINGS[name]):
        cells = [spread(rows, name, encoding, f"model {measure}") for name in data for measure in ("mse", "mae")]
        lines.append(f"| {encoding} | {' | '.join(cells)} |")
    for label in ("naive", "linear", "linear with calendar"):
        cells = [reference(rows, name, f"{label} {measure}") for name in data for measure in ("mse", "mae")]
        lines.append(f"| *{label}* | {' | '.join(cells)} |")
    return "\n".join(lines)


def spread(rows: Sequence[dict[str, str]], data: str, encoding: str, column: str) -> str:
    """Mean and standard deviation of a column over seeds; nothing where there is no run."""
    values = [float(row[column]) for row in rows if (row["data"], row["encoding"]) == (data, encoding)]
    return f"{mean(values):.3f} ± {stdev(values) if len(values) > 1 else 0:.3f}" if values else ""


def reference(rows: Sequence[dict[str, str]], data: str, column: str) -> str:
    """What needs no training, the same for all runs on the data."""
    return next((f"{float(row[column]):.3f}" for row in rows if row["data"] == data), "")


def main() -> None:
    """Runs what is missing and prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    parser.add_argument("--data", nargs="*", choices=DATA, default=list(DATA))
    arguments = parser.parse_args()
    cells = [
        {"data": data, "encoding": encoding, "seed": seed}
        for data in arguments.data
        for seed in SEEDS
        for encoding in ENCODINGS[data]
    ]
    commands = [
        ["--config", str(ROOT / "configs" / "series" / f"{cell['encoding']}.yaml"), "--seed_everything", cell["seed"],
         *DATA[cell["data"]]]
        for cell in cells
    ]  # fmt: skip
    run_study(PATH, cells, commands, jobs=arguments.jobs, collect=errors)
    rows = read_rows(PATH)
    print(table(rows))
    print(f"Mean and standard deviation over seeds {', '.join(SEEDS)}; {setting()}.")


if __name__ == "__main__":
    main()
