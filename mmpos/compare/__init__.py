"""Encodings measured against each other on a task: a file lists encodings and seeds, and each cell is a training run.

`read_study` reads and checks the file, `compare` trains what is missing and writes a CSV file, a table and a plot.
``mmpos compare FILE`` is the command.
"""

from .run import Files, Report, compare
from .study import Cell, Metric, Study, read_study

__all__ = ["Cell", "Files", "Metric", "Report", "Study", "compare", "read_study"]
