"""Small tables over time as CSV files."""

import gzip
from datetime import UTC, datetime, timedelta

import torch


def write_table(path, rows, header="time,a,b"):
    """A file of rows of text, compressed if its name says so."""
    text = "\n".join([header, *rows]) + "\n"
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def hourly(count, start=datetime(2020, 2, 28, 20), step=timedelta(hours=1), values=lambda row: f"{row},{-row * row}"):
    return [f"{start + row * step},{values(row)}" for row in range(count)]


def seconds(*instants):
    """Seconds since 1970 of datetimes in UTC."""
    return torch.tensor([int(instant.replace(tzinfo=UTC).timestamp()) for instant in instants])
