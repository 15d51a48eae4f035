"""Processes beside that of a test, which need not import anything again: forks of one that has done nothing else."""

import io
import multiprocessing
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path


def start(log: Path, function: Callable[..., object], *args: object) -> BaseProcess:
    """A process that calls the function of a module; what it prints goes to a file."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["mmpos.cli", "mmpos.compare", "sklearn.datasets", "sklearn.model_selection"])
    process = context.Process(target=_call, args=(log.absolute(), dict(os.environ), function, *args))
    process.start()
    return process


def command(log: Path, args: list[object]) -> BaseProcess:
    """A process that does what the command line would, in a group of its own."""
    return start(log, _command, [str(arg) for arg in args])


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


def _call(log: Path, environment: dict[str, str], function: Callable[..., object], *args: object) -> None:
    import torch

    sys.stdout = sys.stderr = file = io.TextIOWrapper(io.FileIO(log, "w"), line_buffering=True)
    for stream in (1, 2):
        os.dup2(file.fileno(), stream)
    os.environ.clear()
    os.environ.update(environment)
    warnings.resetwarnings()  # they are printed, not errors
    torch.set_num_threads(1)
    function(*args)


def _command(args: list[str]) -> None:
    from mmpos.cli import main

    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # tests may run where Ctrl-C is ignored
    main(args, base_config=Path(__file__).parents[1] / "configs" / "base.yaml")
