"""The CSV file of a study's results: whole or not at all, and never the result of other settings."""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

from .study import Cell, Study

Row = dict[str, str]


def read_rows(path: Path) -> list[Row]:
    """The rows of a CSV file, none if there is no such file."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Writes the rows to a CSV file, whole or not at all; a column that a row lacks is empty there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = list(dict.fromkeys(name for row in rows for name in row))
    if "seconds" in columns:  # of some rows only others have columns
        columns = [*(name for name in columns if name != "seconds"), "seconds"]
    partial = path.with_name(f"{path.name}.part")
    with partial.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    partial.replace(path)


def of_cell(rows: Iterable[Row], cell: Cell) -> list[Row]:
    """The rows of a cell, of whatever settings."""
    key = cell.key | ({} if cell.task else {"task": ""})
    return [row for row in rows if all(row.get(name, "") == value for name, value in key.items())]


def current(rows: Iterable[Row], cell: Cell) -> list[Row]:
    """The rows of a cell with the settings that it has now."""
    fingerprint = cell.fingerprint
    return [row for row in of_cell(rows, cell) if row["fingerprint"] == fingerprint]


def replace(rows: Iterable[Row], cell: Cell, new: Sequence[Row]) -> list[Row]:
    """The rows with the new ones of a cell in place of its old ones."""
    rows = list(rows)
    old = {id(row) for row in of_cell(rows, cell)}
    return [*(row for row in rows if id(row) not in old), *new]


def check_columns(study: Study, rows: Sequence[Row]) -> None:
    """Whether the table can be made of a run's rows.

    Raises:
        ValueError: If a column that the study names is not there, or no number where one is needed.
    """
    there = [name for name in rows[0] if name not in ("task", "encoding", "seed", "fingerprint")]
    wanted = {f"metrics[{metric.name}]": metric.name for metric in study.metrics}
    wanted |= {key: name for key in ("columns", "rows") if (name := getattr(study, key)) not in ("", "task")}
    wanted |= {"references": study.references[0]} if study.references else {}
    for key, name in wanted.items():
        if name not in there:
            raise ValueError(f"{study.path}: {key}: the results have no column {name!r}; they have {', '.join(there)}")
    for metric in study.metrics:
        for row in rows:
            try:
                float(row[metric.name])
            except ValueError:
                raise ValueError(f"{study.path}: {metric.name} is no number: {row[metric.name]!r}") from None
