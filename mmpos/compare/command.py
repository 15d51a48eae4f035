"""``mmpos compare FILE``: trains the encodings of a study file and makes their table."""

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .run import Report, compare, files_of
from .study import Study, read_study
from .table import caption, table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    parser.description = (
        "Trains each encoding of the file with each seed, and writes a CSV file, a Markdown table and a plot. What has "
        "a result is not trained again, so the same command goes on where one was stopped."
    )
    parser.add_argument("file", type=Path, help="study file, such as configs/compare/image.yaml")
    parser.add_argument("--output", type=Path, help="folder of the results, if other than the file says")
    parser.add_argument("--jobs", type=int, default=1, help="cells at a time on a machine, sharing its cores (1)")
    ray = "run cells as Ray tasks, on the cluster at ADDRESS or else on this machine"
    parser.add_argument("--ray", nargs="?", const="", metavar="ADDRESS", help=ray)
    parser.add_argument("--keep", action="store_true", help="keep checkpoints and logs of all runs")
    parser.add_argument("--dry-run", action="store_true", help="check the file and its cells, list them, train nothing")


def run(arguments: argparse.Namespace, rest: Sequence[str]) -> None:
    """Runs the study and prints its table; the exit status is 1 if a cell failed."""
    if getattr(arguments, "imports", []):
        raise ValueError("imports are arguments of the cells: write imports into the arguments of the file")
    study = read_study(arguments.file)
    if arguments.dry_run:
        _list(study, arguments.output)
        return
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        options: dict[str, Any] = {name: getattr(arguments, name) for name in ("output", "jobs", "ray", "keep")}
        report = compare(study, **options)
    except RuntimeError as error:  # another process has the lock
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        print("interrupted; finished cells are kept, and the same command goes on from there", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)
    finally:
        signal.signal(signal.SIGTERM, before)
    _tell(study, report, arguments.output)


def _terminate(*_: object) -> None:
    sys.exit(128 + signal.SIGTERM)


def _list(study: Study, output: Path | None) -> None:
    """Prints what would be trained."""
    from .check import check_cells
    from .results import current, read_rows

    rows = read_rows(files_of(study, output).results)
    check_cells(study.cells)
    for cell in study.cells:
        print(f"{'done' if current(rows, cell) else 'left'}  {cell.name}")


def _tell(study: Study, report: Report, output: Path | None) -> None:
    """Prints the table, where its files are, and what failed."""
    files = files_of(study, output)
    if report.rows:
        print(f"{table(study, report.rows)}\n\n{caption(study, report.rows)}\n")
        print(f"results: {files.results}\ntable: {files.table}")
        print(f"plot: {files.plot}" if report.plotted else "no plot: it needs matplotlib (pip install 'mmpos[viz]')")
    if report.failed:
        for outcome in report.failed:
            error = outcome.error.replace("\n", "\n    ")
            print(f"\nfailed: {outcome.cell.name}\n    {error}\n    log: {files.of(outcome.cell) / 'log.txt'}",
                  file=sys.stderr)  # fmt: skip
        sys.exit(f"error: {len(report.failed)} of {len(study.cells)} cells failed; the same command tries them again")
