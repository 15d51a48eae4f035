"""Time series in CSV files: a column of timestamps and columns of numbers."""

import csv
import gzip
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from ..calendar.names import check_name, unknown
from .instants import from_wall, is_timestamp, parse_timestamps

ASSETS = Path(__file__).parent / "assets"
SERIES = ("sf_traffic", "beijing_pm25", "metro_traffic")
"""Series that come with the package; ``assets/SOURCES.md`` says where they are from."""

MISSING = ("", "nan", "na", "n/a", "null", "none")

Duplicates = Literal["error", "first"]


class Series(NamedTuple):
    """A table of numbers over time.

    Args:
        names: Names of the channels.
        times: Instants in ascending order, in ticks since 1970 UTC.
        values: What was measured, NaN where it is missing.
        unit: What a tick is: "s", "ms", "us" or "ns".
        column: Name of the timestamps.
        aware: Whether the file gives its timestamps with an offset from UTC.
    """

    names: tuple[str, ...]
    times: Int64[Tensor, " n"]
    values: Float64[Tensor, "n c"]
    unit: str
    column: str
    aware: bool


class Column(NamedTuple):
    """The cells of one column, and the lines of the file that they stand in."""

    name: str
    cells: tuple[str, ...]
    lines: tuple[int, ...]


def find_series(source: str | Path) -> Path:
    """The file of a series that comes with the package, or the one at a path.

    Raises:
        ValueError: If it is neither, and looks like a name.
        FileNotFoundError: If it looks like a path.
    """
    if source in SERIES:
        return ASSETS / f"{source}.csv.gz"
    path = Path(source)
    if path.is_file():
        return path
    if path.suffix or len(path.parts) > 1:
        raise FileNotFoundError(f"source has {path}, which is no file")
    raise ValueError(unknown("source", str(source), SERIES, f"{', '.join(SERIES)}, or the path of a CSV file"))


def read_series(
    path: Path,
    *,
    timestamps: str | None = None,
    channels: Sequence[str] | None = None,
    timezone: str | None = None,
    duplicates: Duplicates = "error",
) -> Series:
    """Reads a CSV file, plain or compressed (``.gz``), with commas, semicolons or tabs between its columns.

    Timestamps with an offset from UTC are instants. Those without are UTC, or, with ``timezone``, what the clock there
    showed: in an hour that comes twice the order of the rows decides (see `from_wall`), and a time that the clock
    skipped is an error. An empty cell, or one that says nan, na or null, is missing.

    Args:
        path: The file; its first line has the names.
        timestamps: Name of the column of timestamps; found if there is one that looks so.
        channels: Names of the columns of numbers, in the order of the result. Unless given, all that have a name and
            hold nothing but numbers, and at least one.
        timezone: Zone of timestamps without an offset.
        duplicates: What to do about rows that repeat a timestamp: refuse them, or keep the first.

    Raises:
        ValueError: If the file has no rows or rows of another length, a column is unknown, ambiguous or no numbers, or
            the timestamps are unsorted, repeated, mixed or not on the clock of the zone.
    """
    columns = _read_columns(path)
    column = _find_timestamps(columns, timestamps, path)
    times, unit, aware = _read_times(column, timezone, path)
    values = _read_channels([other for other in columns if other is not column], channels, path)
    kept = _check_order(times, column, duplicates, path)
    stacked = np.stack(list(values.values()), axis=1)
    return Series(tuple(values), times[kept], torch.from_numpy(stacked)[kept], unit, column.name, aware)


def _read_columns(path: Path) -> list[Column]:
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8-sig", newline="") as file:
        try:
            names, rows = _read_rows(file, path)
        except (UnicodeDecodeError, csv.Error, gzip.BadGzipFile) as error:
            raise ValueError(f"{path} is no CSV file in UTF-8: {error}") from error
    if not rows:
        raise ValueError(f"{path} is empty: it has {'a line of names and no rows' if names else 'no lines'}")
    repeated = {name for name in names if name and names.count(name) > 1}
    if repeated:
        raise ValueError(f"{path} has several columns of the name {sorted(repeated)[0]!r}; rename them")
    lines, cells = zip(*rows, strict=True)
    return [Column(name, column, lines) for name, column in zip(names, zip(*cells, strict=True), strict=True)]


def _read_rows(file: Iterator[str], path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    header = next(file, "")
    separator = max(",;\t", key=header.count)
    names = [name.strip() for name in next(csv.reader([header], delimiter=separator), [])]
    reader = csv.reader(file, delimiter=separator)
    rows = [(reader.line_num + 1, row) for row in reader if row]
    for line, row in rows:
        if len(row) != len(names):
            raise ValueError(f"line {line} of {path} has {len(row)} cells, but there are {len(names)} names")
    return names, rows


def _find_timestamps(columns: list[Column], name: str | None, path: Path) -> Column:
    by_name = {column.name: column for column in columns}
    if name is not None:
        check_name(f"timestamps column of {path.name}:", name, by_name)
        return by_name[name]
    found = [column for column in columns if is_timestamp(column.cells[0])]
    if len(found) == 1:
        return found[0]
    what = f"{len(found)} columns of timestamps, {', '.join(repr(column.name) for column in found)}"
    raise ValueError(
        f"{path} has {what if found else 'no column of timestamps such as 2016-07-01 02:00:00'}; "
        f"{'name one by timestamps=' if found else 'its columns are ' + ', '.join(by_name)}"
    )


def _read_times(column: Column, timezone: str | None, path: Path) -> tuple[Int64[Tensor, " n"], str, bool]:
    try:
        times, unit, aware = parse_timestamps(column.cells)
    except ValueError as error:
        message, *row = error.args
        place = f"line {column.lines[row[0]]} of {path}" if row else str(path)
        raise ValueError(f"column {column.name!r} in {place}: {message}") from error
    if aware or timezone is None:
        return times, unit, aware
    times, skipped = from_wall(times, timezone, unit)
    if skipped.any():
        row = int(skipped.int().argmax())
        raise ValueError(
            f"column {column.name!r} of {path} has {int(skipped.sum())} timestamps that the clock of {timezone} "
            f"skipped, the first in line {column.lines[row]}: {column.cells[row]!r}; if the data keep one offset "
            "all year, give that as timezone, such as '+01:00'"
        )
    return times, unit, aware


def _check_order(times: Int64[Tensor, " n"], column: Column, duplicates: Duplicates, path: Path) -> Tensor:
    """Which rows are kept."""
    gaps = times.diff()
    kept = torch.ones(len(times), dtype=torch.bool)
    for wrong, what, advice in (
        (gaps < 0, "lie before the one in front of them", "sort the file by time"),
        (gaps == 0, "repeat the one in front of them", "take them out, or keep the first by duplicates='first'"),
    ):
        if wrong.any() and (advice.startswith("sort") or duplicates == "error"):
            row = int(wrong.int().argmax()) + 1
            raise ValueError(
                f"{int(wrong.sum())} of {len(times)} timestamps of {path} {what}, the first in line "
                f"{column.lines[row]}: {column.cells[row]!r}; {advice}"
            )
    kept[1:] = gaps > 0
    return kept


def _read_channels(columns: list[Column], names: Sequence[str] | None, path: Path) -> dict[str, np.ndarray]:
    if names is None:
        read = {column.name: _read_numbers(column) for column in columns if column.name}  # pandas' index has no name
        values = {name: array for name, array in read.items() if isinstance(array, np.ndarray)}
        if not values:
            raise ValueError(f"{path} has no column of numbers; its columns are {', '.join(read) or 'timestamps only'}")
        return values
    if not names or len(set(names)) < len(names):
        raise ValueError(f"channels must be different names of columns, got {list(names)}")
    by_name = {column.name: column for column in columns}
    values = {}
    for name in names:
        check_name(f"column of {path.name}:", name, by_name)
        array = _read_numbers(by_name[name])
        if not isinstance(array, np.ndarray):
            raise ValueError(f"column {name!r} of {path} has {array}")
        values[name] = array
    return values


def _read_numbers(column: Column) -> np.ndarray | str:
    """The numbers of a column, or why it has none."""
    numbers = []
    for cell, line in zip(column.cells, column.lines, strict=True):
        try:
            number = float(cell)
        except ValueError:
            if cell.strip().lower() not in MISSING:
                return f"{cell!r} in line {line}, which is no number"
            number = math.nan
        if math.isinf(number):
            return f"{cell!r} in line {line}, which is not finite"
        numbers.append(number)
    array = np.array(numbers)
    return "no number in it" if np.isnan(array).all() else array
