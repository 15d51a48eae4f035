"""One cell of a study: a training command in a process and a folder of its own.

``python -m mmpos.compare.cell BASE fit ...`` is the command line with a base config (or ``-`` for none) that ends when
whoever started it does.
"""

import csv
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

from .study import Cell

TAIL = 6
"""Last lines of its log that are told of a run that failed."""


class Outcome(NamedTuple):
    """What became of a cell.

    Args:
        cell: The cell.
        rows: Its rows of results; none if it failed.
        error: Why it failed; empty if it did not.
        log: What it printed.
    """

    cell: Cell
    rows: list[dict[str, str]]
    error: str = ""
    log: str = ""


def run_cell(cell: Cell, folder: Path, threads: int, keep: bool, stop: threading.Event | None = None) -> Outcome:
    """Trains a cell in a folder, which is emptied first.

    Args:
        cell: What to train.
        folder: Where its configs, log and run lie meanwhile.
        threads: Threads for PyTorch.
        keep: Leaves the run there; otherwise only the log of a failed one stays.
        stop: Ends the run when set.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in ("config", "base"):
        (folder / f"{name}.yaml").write_text(getattr(cell, name), encoding="utf-8")
    base = str(folder / "base.yaml") if cell.base else "-"
    command = [
        sys.executable, "-m", "mmpos.compare.cell", base, "fit", f"--config={folder / 'config.yaml'}", "--run=run",
        f"--trainer.default_root_dir={folder}", "--trainer.enable_progress_bar=false", *cell.command(),
    ]  # fmt: skip
    package = str(Path(__file__).parents[2])
    paths = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": paths, "COLUMNS": "120"}
    path = folder / "log.txt"
    start = time.perf_counter()
    with path.open("wb") as log:
        # The pipe closes when this process ends, however it ends; a session of its own keeps Ctrl-C for us.
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT, env=environment,
            start_new_session=True,
        )  # fmt: skip
        try:
            while process.poll() is None and not (stop is not None and stop.is_set()):
                time.sleep(0.1)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            status = process.wait()
            if process.stdin is not None:
                process.stdin.close()
    seconds = time.perf_counter() - start
    said = path.read_text(encoding="utf-8", errors="replace")
    rows, error = [], failure(status, said)
    if not error:
        try:
            found = last_test(folder) if not cell.results else read_table(folder, cell.results)
            rows = [{**cell.key, "fingerprint": cell.fingerprint, **row, "seconds": f"{seconds:.0f}"} for row in found]
        except ValueError as problem:
            error = str(problem)
    if not keep:
        clear(folder, log=bool(error))
    return Outcome(cell, rows, error, said)


def clear(folder: Path, log: bool) -> None:
    """Removes a cell's folder, or all in it but the log."""
    if not log:
        shutil.rmtree(folder)
        return
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != "log.txt":
            path.unlink()


def failure(status: int, log: str) -> str:
    """Why a run failed, from its exit status and the end of its log; empty if it did not."""
    if status == 0:
        return ""
    how = f"ended by signal {-status}" if status < 0 else f"exit status {status}"
    lines = [line.rstrip() for line in log.splitlines() if line.strip() and "MMPOS_DEBUG=1 shows" not in line]
    return "\n".join([how, *lines[-TAIL:]])


def last_test(folder: Path) -> list[dict[str, str]]:
    """What the last test logged below the folder of a run, as one row."""
    last = read_table(folder, "metrics.csv")[-1]
    row = {name: value for name, value in last.items() if name.startswith("test")}
    if not row:
        raise ValueError(f"the run logged no test; the last row of its metrics has {', '.join(last)}")
    return [row]


def read_table(folder: Path, name: str) -> list[dict[str, str]]:
    """The rows of the one CSV file of this name below a folder."""
    paths = sorted(folder.rglob(name))
    if len(paths) != 1:
        left = sorted({path.name for path in folder.rglob("*.csv")})
        raise ValueError(f"the run left {len(paths)} files {name}; its CSV files: {', '.join(left) or 'none'}")
    with paths[0].open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    if not rows:
        raise ValueError(f"the run left {name} without rows")
    return rows


def end_with_parent() -> None:
    """Ends this process and those that it started once the other end of its standard input is closed."""

    def wait() -> None:
        while os.read(0, 1024):
            pass
        if os.getpgrp() == os.getpid():  # those of nobody else
            os.killpg(0, signal.SIGKILL)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


if __name__ == "__main__":
    end_with_parent()
    from mmpos.cli import main

    main(sys.argv[2:], base_config=None if sys.argv[1] == "-" else Path(sys.argv[1]))
