"""Time of seven calendar fields of a million timestamps beside pandas' accessors: python -m benchmarks.calendar.

All in one process, runs interleaved; medians, and their ratio to pandas for the same timestamps and zone.
"""

import argparse
import time
from collections.abc import Callable
from statistics import median

import numpy as np
import pandas as pd
import torch

from mmpos.calendar import calendar_coords, calendar_fields

from .specs import FIELDS
from .study import setting


def runs(index: pd.DatetimeIndex, zone: str | None) -> dict[str, Callable[[], object]]:
    """What is timed, by name, for an index in UTC."""
    ticks, unit = torch.tensor(index.asi8), np.datetime_data(index.dtype)[0]
    local = index if zone is None else index.tz_localize("UTC").tz_convert(zone)

    def fields(ticks):
        return calendar_fields(ticks, FIELDS, unit=unit, timezone=zone)

    def coords(ticks):
        return calendar_coords(ticks, FIELDS, unit=unit, timezone=zone)

    compiled_fields, compiled_coords = (torch.compile(function, fullgraph=True) for function in (fields, coords))
    return {
        "pandas, accessors": lambda: [getattr(local, name) for name in FIELDS.values()],
        "mmpos, calendar_fields": lambda: fields(ticks),
        "mmpos, calendar_coords": lambda: coords(ticks),
        "mmpos, calendar_fields, compiled": lambda: compiled_fields(ticks),
        "mmpos, calendar_coords, compiled": lambda: compiled_coords(ticks),
    }


def milliseconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return 1000 * (time.perf_counter() - start)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--number", type=int, default=10**6, help="timestamps")
    parser.add_argument("--repeats", type=int, default=9, help="timed runs of each")
    arguments = parser.parse_args()
    seconds = np.random.default_rng(0).integers(0, 1_800_000_000, arguments.number)
    print("| timestamps | what | ms | ratio |\n|---|---|---|---|")
    for unit, zone in (("s", None), ("ns", None), ("s", "Europe/Berlin")):
        index = pd.DatetimeIndex(seconds.astype("datetime64[s]")).as_unit(unit)
        timed = runs(index, zone)
        times: dict[str, list[float]] = {name: [] for name in timed}
        for _ in range(arguments.repeats + 1):
            for name, run in timed.items():
                times[name].append(milliseconds(run))
        medians = {name: median(values[1:]) for name, values in times.items()}
        for name, value in medians.items():
            where = unit if zone is None else f"{unit}, {zone}"
            print(f"| {where} | {name} | {value:.1f} | {value / medians['pandas, accessors']:.2f} |")
    print(f"Median of {arguments.repeats} runs over {arguments.number:,} timestamps; {setting()}.")


if __name__ == "__main__":
    main()
