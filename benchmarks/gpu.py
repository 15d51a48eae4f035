"""All that a GPU has to show, in under eight minutes: python -m benchmarks.gpu [--small] [--output FOLDER].

Four parts: ``correctness`` of every encoding against the CPU, ``bandwidth`` of a rotation beside a copy, ``steps`` of
training per second, and ``flex``, biases in FlexAttention's kernel. Each has a budget of seconds, after which what is
left of it is left out, and what fails is reported and stops nothing else. Prints Markdown and writes ``gpu_PART.csv``.
The small form takes every line of it on a CPU. Exits with 1 if anything failed.
"""

import argparse
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from .device import Part, Row, Setup, bandwidth, correctness, flex, steps
from .study import RESULTS, write_rows
from .timing import setting

PARTS: dict[str, tuple[Part, float]] = {
    "bandwidth": (bandwidth.run, 50),
    "flex": (flex.run, 90),
    "steps": (steps.run, 130),
    "correctness": (correctness.run, 170),
}
"""What is measured, and the seconds after which no more of it is begun."""

SUMMARIES: dict[str, Callable[[Sequence[Row]], Sequence[Row]]] = {"correctness": correctness.summary}
"""What is printed of a part; its file has all rows."""


def run_part(part: Part, setup: Setup, seconds: float, log: Path) -> tuple[list[Row], list[str]]:
    """Rows of a part, and what went wrong or was left out; where an error came from goes to the log."""
    rows: list[Row] = []
    notes: list[str] = []
    start = time.perf_counter()
    items = iter(part(setup))
    while True:
        about: Row = {}
        try:
            about, measure = next(items)
            if time.perf_counter() - start > seconds:
                left = ", ".join(about.values())
                notes.append(f"the time of {seconds:.0f} s was over before {left} and {sum(1 for _ in items)} more")
                break
            row = about | measure()
        except StopIteration:
            break
        except Exception as error:
            first_line = str(error).strip().partition("\n")[0]
            log.parent.mkdir(parents=True, exist_ok=True)
            with log.open("a", encoding="utf-8") as file:
                traceback.print_exc(file=file)
            notes.append(f"failed: {', '.join(about.values()) or 'the part'}: {type(error).__name__}: {first_line}")
            if not about:  # the generator itself, which cannot go on
                break
            continue
        rows.append(row)
        if row.get("ok") == "no":
            notes.append(f"failed: {', '.join(about.values())}: not as on the CPU, {row}")
    return rows, notes


def markdown(rows: Sequence[Row]) -> str:
    """A table of the rows."""
    columns = list(rows[0])
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row[column] for column in columns)} |" for row in rows)])


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the parts; 1 if anything failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=list(PARTS))
    parser.add_argument("--small", action="store_true", help="few and small, for a CPU")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the files")
    arguments = parser.parse_args(argv)
    setup = Setup(torch.device(arguments.device), arguments.small)
    failed = False
    start = time.perf_counter()
    print(f"{setting(setup.device)}\n", flush=True)
    for name in arguments.parts:
        part, seconds = PARTS[name]
        begun = time.perf_counter()
        rows, notes = run_part(part, setup, seconds, arguments.output / "gpu_errors.txt")
        print(f"## {name}, {time.perf_counter() - begun:.0f} s\n")
        if rows:
            write_rows(arguments.output / f"gpu_{name}.csv", rows)
            print(f"{markdown(SUMMARIES.get(name, list)(rows))}\n")
        for note in notes:
            print(f"* {note}")
        failed |= any(note.startswith("failed") for note in notes)
        print(flush=True)
    print(f"{time.perf_counter() - start:.0f} s in all.")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
