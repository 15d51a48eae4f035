"""``mmpos list``: the encodings by name."""

import argparse
import dataclasses
import inspect
import shutil
import sys
from collections.abc import Sequence

from ...catalogue import ENCODINGS, INTERFACES
from ...factory import list_encodings
from ...presets import PRESETS

WIDTH = 120
"""Columns where the output is no terminal."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    parser.add_argument("--kind", choices=list(INTERFACES), help="the slot that the encodings are for; all by default")


def run(arguments: argparse.Namespace, rest: Sequence[str]) -> None:
    """Prints a line for each name: its kind, and what it is."""
    names = list_encodings(arguments.kind)
    widest = max(map(len, names))
    room = shutil.get_terminal_size((WIDTH, 24)).columns if sys.stdout.isatty() else WIDTH
    for name in names:
        encoding = PRESETS[name].encoding if name in PRESETS else name
        kind, factory = ENCODINGS[encoding]
        line = f"{name:<{widest}}  {kind:<8}  {_summary(name, factory)}"
        print(line if len(line) <= room else line[: room - 3] + "...")


def _summary(name: str, factory: object) -> str:
    """The first line of what a class says of itself; of a preset, the encoding and what it chooses."""
    if name in PRESETS:
        encoding, chosen = PRESETS[name]
        return f"{encoding}({', '.join(f'{key}={_short(value)}' for key, value in chosen.items())})"
    return (inspect.getdoc(factory) or "").partition("\n")[0].replace("`", "")


def _short(value: object) -> str:
    """A value without the fields that are as usual."""
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return repr(value)
    fields = {field.name: (getattr(value, field.name), field.default) for field in dataclasses.fields(value)}
    changed = (f"{name}={_short(own)}" for name, (own, usual) in fields.items() if own != usual)
    return f"{type(value).__name__}({', '.join(changed)})"
