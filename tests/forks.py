"""Processes beside that of a test: forks, which need not import anything again."""

import io
import multiprocessing
import os
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path


def start(log: Path, function: Callable[..., object], *args: object) -> multiprocessing.Process:
    """A process that calls the function; what it prints goes to a file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads of the test runner hold no lock of ours
        process = multiprocessing.get_context("fork").Process(target=_call, args=(log, function, *args))
        process.start()
    return process


def together(folder: Path, function: Callable[..., object], *args: object, timeout: float = 150) -> None:
    """Calls the function in two processes, with the rank of each first; fails with what they print."""
    logs = [folder / f"log{rank}" for rank in range(2)]
    processes = [start(log, function, rank, *args) for rank, log in enumerate(logs)]
    deadline = time.monotonic() + timeout
    try:
        for process, log in zip(processes, logs, strict=True):
            process.join(max(deadline - time.monotonic(), 0))
            assert process.exitcode == 0, log.read_text()
    finally:
        for process in processes:
            process.kill()
            process.join()


def _call(log: Path, function: Callable[..., object], *args: object) -> None:
    sys.stdout = sys.stderr = file = io.TextIOWrapper(io.FileIO(log, "w"), line_buffering=True)
    for stream in (1, 2):
        os.dup2(file.fileno(), stream)
    warnings.resetwarnings()  # they are printed, not errors
    function(*args)
