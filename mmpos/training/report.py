"""What a run tells at its end."""

import csv
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table


def print_results(
    metrics: Mapping[str, float],
    *,
    parameters: int,
    seconds: float,
    checkpoint: str | os.PathLike[str] | None = None,
) -> None:
    """Prints one short table: metrics, size, time, and where the files of the run are.

    Args:
        metrics: Values by name; one that ends in ``accuracy`` is a share and shown in percent.
        parameters: Number of parameters.
        seconds: Time that the command took.
        checkpoint: What was tested; the other files of a run are two folders up.
    """
    table = Table(box=box.SIMPLE_HEAD, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in sorted(metrics.items()):
        table.add_row(name.replace("_", " "), f"{value:.2%}" if name.endswith("accuracy") else f"{value:.4f}")
    table.add_row("parameters", f"{parameters:,}")
    table.add_row("seconds", f"{seconds:.1f}")
    if checkpoint is not None:
        run = run_folder(checkpoint)
        files = {"checkpoint": Path(checkpoint), "metrics": run / "metrics.csv", "config": run / "config.yaml"}
        for name, path in files.items():
            if path.exists():
                table.add_row(name, show_path(path))
    Console().print(table)


def print_accuracies(results: Sequence[tuple[str, str, float | None, int]], head: str, what: str) -> None:
    """Prints a table of (row, column, accuracy or None, number of samples), below ``head`` and of so many ``what``."""
    rows, columns = (list(dict.fromkeys(names)) for names in list(zip(*results, strict=True))[:2])
    cells = {(row, column): accuracy for row, column, accuracy, _ in results}
    table = Table(box=box.SIMPLE_HEAD, title=f"accuracy of {results[0][3]:,} test {what}", title_justify="left")
    table.add_column(head, style="bold")
    for column in columns:
        table.add_column(column, justify="right")
    for row in rows:
        found = [cells[row, column] for column in columns]
        table.add_row(row, *("-" if accuracy is None else f"{accuracy:.2%}" for accuracy in found))
    Console().print(table)


def run_folder(checkpoint: str | os.PathLike[str]) -> Path:
    """The folder of the run that a checkpoint is of: two up from ``checkpoints/best.ckpt``, else where it lies."""
    folder = Path(checkpoint).parent
    return folder.parent if folder.name == "checkpoints" else folder


def show_path(path: Path) -> str:
    """The path, seen from the working directory if it lies below."""
    path = path.absolute()
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def write_rows(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Writes a CSV file."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(rows)


def items(value: Any) -> list[Any]:
    """The items of a list, of text with commas, or one by itself."""
    if isinstance(value, str):
        return [item.strip() for item in value.split(",")]
    return list(value) if isinstance(value, Sequence) else [value]
