"""Trains what is missing of a study, here or on a Ray cluster, and writes what is known after every cell."""

import importlib.util
import os
import re
import shutil
import signal
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from threading import Event, current_thread, main_thread
from typing import Any, NamedTuple

from filelock import FileLock, Timeout
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from .cell import Outcome, run_cell
from .results import Row, check_columns, current, of_cell, read_rows, replace, write_rows
from .study import Cell, Study
from .table import caption, summarise, table

FOLDER = Path("runs", "compare")


@dataclass(frozen=True)
class Files:
    """Where the results of a study are.

    Args:
        folder: Folder of the results.
        name: Name of the study.
    """

    folder: Path
    name: str

    @property
    def results(self) -> Path:
        """The CSV file."""
        return self.folder / f"{self.name}.csv"

    @property
    def table(self) -> Path:
        """The Markdown table."""
        return self.folder / f"{self.name}.md"

    @property
    def plot(self) -> Path:
        """The picture."""
        return self.folder / f"{self.name}.png"

    @property
    def runs(self) -> Path:
        """Folder of the runs and of the logs of those that failed."""
        return self.folder / self.name

    def of(self, cell: Cell) -> Path:
        """Folder of a cell's run."""
        words = re.sub(r"[^\w.+-]+", "_", f"{cell.task} {cell.encoding}".strip())
        return self.runs / f"{words}-{cell.fingerprint}-{cell.seed}"


class Report(NamedTuple):
    """What became of a study.

    Args:
        rows: Results of all cells that are done.
        failed: Cells that failed this time.
        plotted: Whether there was matplotlib to draw the picture with.
    """

    rows: list[Row]
    failed: list[Outcome]
    plotted: bool


def files_of(study: Study, output: Path | None = None) -> Files:
    """Where the results lie: in ``output``, else where the study says, else in ``runs/compare``."""
    return Files(output or study.output or FOLDER, study.path.stem)


def compare(
    study: Study,
    *,
    output: Path | None = None,
    jobs: int = 1,
    ray: str | None = None,
    keep: bool = False,
    console: Console | None = None,
) -> Report:
    """Trains the cells of a study that have no result yet, and writes the CSV file, the table and the plot.

    Args:
        study: What to train.
        output: Folder of the results; where the study says by default.
        jobs: Cells at a time on a machine, which share its cores.
        ray: Runs cells as Ray tasks: on the cluster at this address, or on this machine if it is empty.
        keep: Keeps checkpoints and logs of all runs; else only logs of those that failed.
        console: Where progress is shown; on standard error by default.

    Raises:
        ValueError: If a cell cannot be trained as it is written, before any is.
        RuntimeError: If another process works on these results.
        ImportError: If there is no Ray for ``ray``.
    """
    if jobs < 1:
        raise ValueError(f"jobs must be positive, got {jobs}")
    files = files_of(study, output)
    files.runs.mkdir(parents=True, exist_ok=True)
    lock = FileLock(files.runs / "lock")
    try:
        with lock.acquire(timeout=0):
            try:
                return _compare(study, files, jobs, ray, keep, console or Console(stderr=True))
            finally:
                _remove_empty(files)
    except Timeout:
        raise RuntimeError(f"another process works on {files.results}; give other results another --output") from None


def _compare(study: Study, files: Files, jobs: int, ray: str | None, keep: bool, console: Console) -> Report:
    rows = read_rows(files.results)
    if rows and "fingerprint" not in rows[0]:
        raise ValueError(f"{files.results} has no column fingerprint: it is of something else; give another --output")
    left = [cell for cell in study.cells if not current(rows, cell)]
    stale = sum(bool(of_cell(rows, cell)) for cell in left)
    for cell in study.cells:
        if done := current(rows, cell):
            check_columns(study, done)
    if stale:
        console.print(f"{stale} results are of other settings than those of now: these cells are trained again")
    failed: list[Outcome] = []
    if left:
        from .check import check_cells

        check_cells(left)
        start = _local if ray is None else _on_ray
        threads = max((os.cpu_count() or 1) // jobs, 1)
        outcomes = start(left, files, jobs, threads, keep, ray)
        with _Bar(console, len(study.cells), len(study.cells) - len(left)) as bar, closing(outcomes):
            for outcome in outcomes:
                if outcome.error:
                    failed.append(outcome)
                    log = files.of(outcome.cell) / "log.txt"
                    log.parent.mkdir(parents=True, exist_ok=True)
                    log.write_text(outcome.log, encoding="utf-8")  # it may have run on another machine
                else:
                    rows = replace(rows, outcome.cell, outcome.rows)
                    write_rows(files.results, rows)
                    check_columns(study, outcome.rows)
                    summarise(study, rows)
                bar.tell(outcome)
    plotted = write_tables(study, files, rows)
    return Report(rows, failed, plotted)


def write_tables(study: Study, files: Files, rows: Sequence[Row]) -> bool:
    """Writes the Markdown table and, where there is matplotlib, the plot; says whether there was."""
    if not any(current(rows, cell) for cell in study.cells):
        return importlib.util.find_spec("matplotlib") is not None
    files.table.write_text(f"{table(study, rows)}\n\n{caption(study, rows)}\n", encoding="utf-8")
    if importlib.util.find_spec("matplotlib") is None:
        return False
    from .plot import plot

    plot(study, rows, files.plot)
    return True


Outcomes = Generator[Outcome, None, None]


def _local(cells: Sequence[Cell], files: Files, jobs: int, threads: int, keep: bool, _: str | None) -> Outcomes:
    """Runs cells on this machine, some at a time; closed early, it ends those that run."""
    stop = Event()

    def run(cell: Cell) -> Outcome:
        return run_cell(cell, files.of(cell).absolute(), threads, keep, stop)

    with ThreadPoolExecutor(jobs) as pool:
        futures: list[Future[Outcome]] = [pool.submit(run, cell) for cell in cells]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)


def _on_ray(cells: Sequence[Cell], files: Files, jobs: int, threads: int, keep: bool, address: str | None) -> Outcomes:
    """Runs cells as tasks of Ray, each with the cores of one of ``jobs`` and a GPU if there are any."""
    try:
        import ray  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ImportError("--ray needs Ray: pip install 'mmpos[ray]'") from error
    was_there, ending = ray.is_initialized(), signal.getsignal(signal.SIGTERM)
    if not was_there:
        ray.init(address=address or None, log_to_driver=False, configure_logging=False)
    try:
        gpus = 1 if ray.cluster_resources().get("GPU") else 0
        task: Any = ray.remote(run_cell).options(num_cpus=threads, num_gpus=gpus)
        pending = {task.remote(cell, files.of(cell).absolute(), threads, keep): cell for cell in cells}
        try:
            while pending:
                (done,), _ = ray.wait(list(pending), num_returns=1)
                cell = pending.pop(done)
                yield _get(ray.get, done, cell)
        finally:
            for task in pending:
                ray.cancel(task, force=True)
    finally:
        if not was_there:
            ray.shutdown()
            if current_thread() is main_thread():
                signal.signal(signal.SIGTERM, ending)  # Ray has one of its own


def _get(get: Callable[[Any], Outcome], done: Any, cell: Cell) -> Outcome:
    """What a task returned; that of a machine which was lost is a failure."""
    try:
        return get(done)
    except Exception as error:
        return Outcome(cell, [], f"the Ray task failed: {str(error).strip().splitlines()[-1]}", str(error))


class _Bar:
    """A line for each cell, and how many are done, failed and left."""

    def __init__(self, console: Console, total: int, done: int):
        counts = "{task.fields[done]} done, {task.fields[failed]} failed, {task.fields[left]} left"
        self.progress = Progress(BarColumn(), TextColumn(counts), TimeElapsedColumn(), console=console)
        self.done, self.failed, self.left = done, 0, total - done
        self.task = self.progress.add_task("", total=total, completed=done, **self._counts())

    def _counts(self) -> dict[str, Any]:
        return {"done": self.done, "failed": self.failed, "left": self.left}

    def tell(self, outcome: Outcome) -> None:
        """One more cell has ended."""
        self.left -= 1
        self.done += not outcome.error
        self.failed += bool(outcome.error)
        what = "FAILED" if outcome.error else f"{outcome.rows[0]['seconds']} s"
        self.progress.console.print(f"{outcome.cell.name}: {what}", markup=False, highlight=False)
        self.progress.update(self.task, advance=1, **self._counts())

    def __enter__(self) -> "_Bar":
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()


def _remove_empty(files: Files) -> None:
    """Removes the folder of runs, and the lock with it, if there is no run in it."""
    if {path.name for path in files.runs.iterdir()} <= {"lock"}:
        shutil.rmtree(files.runs, ignore_errors=True)
