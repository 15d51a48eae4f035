"""Results as a table: mean and spread over seeds, a row for each encoding."""

import os
import platform
from collections.abc import Sequence
from importlib.metadata import version
from statistics import mean, stdev
from typing import NamedTuple

from .results import Row, current
from .study import Metric, Study


class Line(NamedTuple):
    """A row of the table.

    Args:
        encoding: Name of the encoding, or of a reference.
        way: What tells it from other rows of the encoding; empty if there is nothing.
        values: The value of each seed, by column and metric.
        reference: Whether it is a reference, which knows neither encodings nor seeds.
    """

    encoding: str
    way: str
    values: dict[tuple[str, str], dict[int, float]]
    reference: bool = False

    def of(self, column: str, metric: Metric) -> list[float]:
        """The values of all seeds."""
        return list(self.values.get((column, metric.name), {}).values())


class Summary(NamedTuple):
    """Columns and rows of the table, as they are shown, and how many cells are missing in it."""

    columns: list[str]
    lines: list[Line]
    missing: int


def summarise(study: Study, rows: Sequence[Row]) -> Summary:
    """Sorts results into the table. Rows of an encoding that say nothing beside its first are left out.

    Raises:
        ValueError: If a run has several results for one place.
    """
    lines: dict[tuple[str, str], Line] = {}
    references: dict[str, Line] = {}
    columns: dict[str, None] = {}
    missing = 0
    encodings = list(dict.fromkeys(cell.encoding for cell in study.cells))
    for cell in study.cells:
        found = current(rows, cell)
        missing += not found
        for row in found:
            column = study.label(row[study.columns]) if study.columns else ""
            columns[column] = None
            if study.references and row[study.references[0]] != study.references[1]:
                name = study.label(row[study.references[0]])
                line = references.setdefault(name, Line(name, "", {}, reference=True))
                for metric in study.metrics:
                    line.values.setdefault((column, metric.name), {}).setdefault(0, float(row[metric.name]))
                continue
            way = study.label(row[study.rows]) if study.rows else ""
            line = lines.setdefault((cell.encoding, way), Line(study.label(cell.encoding), way, {}))
            for metric in study.metrics:
                seeds = line.values.setdefault((column, metric.name), {})
                if cell.seed in seeds:
                    raise ValueError(
                        f"{study.path}: {cell.name} has several results for {', '.join(filter(None, (column, way)))}: "
                        "columns and rows must tell them apart"
                    )
                seeds[cell.seed] = float(row[metric.name])
    first: dict[str, Line] = {}
    kept = [
        line
        for _, line in sorted(lines.items(), key=lambda item: encodings.index(item[0][0]))
        if first.setdefault(line.encoding, line) is line or _says_more(line, first[line.encoding])
    ]
    return Summary(list(columns), [*kept, *references.values()], missing)


def _says_more(line: Line, first: Line) -> bool:
    return any(first.values.get(place) != value for place, value in line.values.items())


def table(study: Study, rows: Sequence[Row]) -> str:
    """The results as a Markdown table: mean and standard deviation over seeds."""
    columns, lines, _ = summarise(study, rows)
    many = len(study.metrics) > 1
    heads = [study.label("encoding"), *([study.label(study.rows)] if study.rows else [])]
    for column in columns:
        for metric in study.metrics:
            name = study.label(metric.name)
            heads.append(f"{column}, {name}" if column and many else column or name)
    shown = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for line in lines:
        name = f"*{line.encoding}*" if line.reference else line.encoding
        cells = [spread(line.of(column, metric), metric) for column in columns for metric in study.metrics]
        shown.append(f"| {' | '.join([name, *([line.way] if study.rows else []), *cells])} |")
    return "\n".join(shown)


def spread(values: Sequence[float], metric: Metric) -> str:
    """Mean and standard deviation over seeds in the metric's unit; one value alone, and nothing of none.

    Example:
        >>> spread([1.0, 2.0], Metric("mse", digits=2)), spread([2.0], Metric("mse", digits=0))
        ('1.50 ± 0.71', '2')
    """
    numbers = [mean(values), *([stdev(values)] if len(values) > 1 else [])] if values else []
    return " ± ".join(f"{metric.scale * number:.{metric.digits}f}" for number in numbers)


def axis(study: Study, metric: Metric) -> str:
    """A metric with its unit, and which way is better."""
    unit = f" in {metric.unit}" if metric.unit else ""
    return f"{study.label(metric.name)}{unit}{f', {metric.better} is better' if metric.better else ''}"


def caption(study: Study, rows: Sequence[Row]) -> str:
    """What the table shows, and what it was made on."""
    missing = summarise(study, rows).missing
    measured = "; ".join(axis(study, metric) for metric in study.metrics)
    seeds = ", ".join(map(str, study.seeds))
    over = f"mean and standard deviation over seeds {seeds}" if len(study.seeds) > 1 else f"seed {seeds}"
    lack = f"{missing} of {len(study.cells)} cells are missing. " if missing else ""
    return f"{lack}{measured[0].upper()}{measured[1:]}; {over}. {setting()}."


def setting() -> str:
    """Versions and cores of this machine."""
    packages = ", ".join(f"{name} {version(name).split('+')[0]}" for name in ("torch", "lightning", "timm"))
    return f"{packages}, Python {platform.python_version()}, {os.cpu_count()} cores"
