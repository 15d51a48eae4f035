"""Times and memory that can be compared: calls take turns in one process, and ratios are formed within each turn."""

import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from statistics import median

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

Call = Callable[[], object]

PACKAGES = (
    "torch", "timm", "transformers", "rotary-embedding-torch", "positional-encodings", "x-transformers", "diffusers",
    "pandas",
)  # fmt: skip
SHORTEST = 1.0  # ms; what is faster is called many times between two looks at the clock
MOST_CALLS = 1000
FEWEST_TURNS = 3


def milliseconds(call: Call, device: torch.device, number: int = 1) -> float:
    """Time of one call, as the mean of so many in a row; their results are given back one by one."""
    if device.type == "cuda":
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(number):
            call()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / number
    # Of one thread its own time is taken, which other programs do not lengthen.
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    begin = clock()
    for _ in range(number):
        call()
    return 1000 * (clock() - begin) / number


def take_turns(
    calls: Mapping[str, Call], device: torch.device, *, repeats: int, seconds: float
) -> dict[str, list[float]]:
    """Milliseconds of each call in every turn, of which there are as many as asked for or as fit into the time.

    Every call runs once before, so that nothing is compiled or allocated for the first time while the clock runs.
    """
    start = time.perf_counter()
    numbers = {}
    for name, call in calls.items():
        milliseconds(call, device)
        numbers[name] = max(1, min(MOST_CALLS, round(SHORTEST / max(milliseconds(call, device), 1e-6))))
    times: dict[str, list[float]] = {name: [] for name in calls}
    done = 0
    while done < FEWEST_TURNS or (done < repeats and time.perf_counter() - start < seconds):
        for name, call in calls.items():
            times[name].append(milliseconds(call, device, numbers[name]))
        done += 1
    return times


def ratios(times: Mapping[str, list[float]], to: str) -> dict[str, float]:
    """Median over the turns of each time's ratio to that of the call ``to`` in the same turn."""
    return {
        name: median(own / limit for own, limit in zip(each, times[to], strict=True)) for name, each in times.items()
    }


def peak(call: Call, device: torch.device) -> int:
    """Bytes that one call holds at most beyond what was held before, the result among them.

    On a CPU these are tensors of PyTorch's allocator only, not buffers that libraries allocate themselves.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        return torch.cuda.max_memory_allocated(device) - before
    with _hushed(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = call()  # held until the profile ends
    del result
    held = highest = 0
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        highest = max(highest, held)
    return highest


@contextmanager
def _hushed() -> Iterator[None]:
    """Without the lines that PyTorch's profiler writes past Python to the error stream, whatever its log level."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def clone(result: object) -> Call:
    """The copy limit: a call that copies every tensor of a result, which nothing that writes them can beat by much."""
    tensors = [part for part in (result if isinstance(result, tuple) else (result,)) if isinstance(part, Tensor)]
    return lambda: [part.clone() for part in tensors]


def setting(device: torch.device) -> str:
    """What a table was made on: versions of what is installed, date and machine."""
    found = []
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            found.append(f"{name} {version(name).split('+')[0]}")
    if device.type == "cuda":
        machine = torch.cuda.get_device_name(device)
    else:
        threads = torch.get_num_threads()
        machine = f"{threads} thread{'s' * (threads > 1)} of a {platform.machine()} CPU"
    return f"{time.strftime('%Y-%m-%d')}; {machine}; Python {platform.python_version()}, {', '.join(found)}"
