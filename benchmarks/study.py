"""What benchmarks share: where results are, their CSV files, and what they were made on."""

from pathlib import Path

from mmpos.compare.results import read_rows, write_rows
from mmpos.compare.table import setting

__all__ = ["RESULTS", "ROOT", "read_rows", "setting", "write_rows"]

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
