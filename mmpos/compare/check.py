"""Whether cells can run: their arguments are parsed and their models built, and nothing is trained."""

import logging
import warnings
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from ..cli import CommandLine
from ..errors import USER_ERRORS, explain
from .study import Cell

MOST = 5
"""Problems that are told one by one."""


class Check(CommandLine):
    """The command line up to the point where it would train."""

    def _run_subcommand(self, subcommand: str) -> None:
        pass


def check_cells(cells: Sequence[Cell]) -> None:
    """Parses and builds each cell, seeds apart.

    Raises:
        ValueError: With all that is wrong, a line for each cell.
    """
    distinct = {(cell.task, cell.encoding, cell.fingerprint): cell for cell in cells}
    problems = {cell.name.rpartition(",")[0]: problem for cell in distinct.values() if (problem := check_cell(cell))}
    if problems:
        lines = [f"  {name}: {problem}" for name, problem in list(problems.items())[:MOST]]
        more = [f"  and {len(problems) - MOST} more"] if len(problems) > MOST else []
        raise ValueError("\n".join([f"{len(problems)} of {len(distinct)} cannot be trained:", *lines, *more]))


def check_cell(cell: Cell) -> str:
    """What is wrong with a cell; empty if nothing is."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    with TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in ("config", "base"):
            Path(folder, f"{name}.yaml").write_text(getattr(cell, name), encoding="utf-8")
        arguments = ["fit", f"--config={folder}/config.yaml", "--run=run", f"--trainer.default_root_dir={folder}"]
        try:
            Check.start([*arguments, *cell.command()], Path(folder, "base.yaml") if cell.base else None)
        except USER_ERRORS as error:
            return explain(error).replace(f"{folder}/", "")
    return ""
