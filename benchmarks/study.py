"""Runs the cells of a study as training commands of their own and keeps their results in one CSV file.

A cell that the file has already is not run again, so a study that was stopped goes on where it was.
"""

import csv
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from importlib.metadata import version
from pathlib import Path
from statistics import mean, stdev
from tempfile import TemporaryDirectory
from threading import Lock

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"


def last_test(folder: Path) -> list[dict[str, str]]:
    """What the last test logged below the folder of a run."""
    (metrics,) = folder.rglob("metrics.csv")
    return [{name: value for name, value in read_rows(metrics)[-1].items() if name.startswith("test")}]


def run_study(
    path: Path,
    cells: Sequence[dict[str, str]],
    commands: Sequence[list[str]],
    *,
    jobs: int = 1,
    collect: Callable[[Path], list[dict[str, str]]] = last_test,
) -> list[dict[str, str]]:
    """Trains what is missing in the file and returns all of its rows.

    Args:
        path: CSV file of the results.
        cells: What tells a run from others, a column each.
        commands: Arguments of ``train.py fit`` for each cell.
        jobs: Runs at the same time, which share the cores.
        collect: Results of a run from its folder, a row each.
    """
    done = read_rows(path)
    keys = list(cells[0])
    missing = [(cell, command) for cell, command in zip(cells, commands, strict=True)
               if not any(all(row[key] == cell[key] for key in keys) for row in done)]  # fmt: skip
    lock = Lock()
    with ThreadPoolExecutor(jobs) as pool:
        futures = {pool.submit(train, command, jobs, collect): cell for cell, command in missing}
        for count, future in enumerate(as_completed(futures), 1):
            rows = [futures[future] | row for row in future.result()]
            with lock:
                done.extend(rows)
                write_rows(path, done)
            for row in rows:
                print(f"{count}/{len(missing)}", *row.values(), flush=True)
    return [row for row in done if any(all(row[key] == cell[key] for key in keys) for cell in cells)]


def train(
    command: list[str], jobs: int = 1, collect: Callable[[Path], list[dict[str, str]]] = last_test
) -> list[dict[str, str]]:
    """Runs ``train.py fit`` in a folder of its own; what is collected there, and the seconds it took."""
    threads = max((os.cpu_count() or 1) // jobs, 1)
    with TemporaryDirectory() as folder:
        start = time.perf_counter()
        subprocess.run(
            [sys.executable, str(ROOT / "train.py"), "fit", *command, "--trainer.default_root_dir", folder,
             "--trainer.enable_progress_bar", "false"],
            check=True, stdout=subprocess.DEVNULL, env=os.environ | {"OMP_NUM_THREADS": str(threads)},
        )  # fmt: skip
        seconds = time.perf_counter() - start
        return [row | {"seconds": f"{seconds:.0f}"} for row in collect(Path(folder))]


def read_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file, none if there is no such file."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def write_rows(path: Path, rows: Sequence[dict[str, str]]) -> None:
    """Writes the rows to a CSV file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".part")
    with partial.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    partial.replace(path)


def spread(values: Sequence[float]) -> str:
    """Mean and standard deviation in percent."""
    return f"{100 * mean(values):.1f} ± {100 * (stdev(values) if len(values) > 1 else 0):.1f}"


def setting() -> str:
    """What a table was made on."""
    packages = ", ".join(f"{name} {version(name).split('+')[0]}" for name in ("torch", "lightning", "timm"))
    return f"{packages}, Python {platform.python_version()}, {os.cpu_count()} cores"
