"""``mmpos show NAME``: what an encoding does, as tables, and as pictures in a file."""

import argparse
import inspect
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...catalogue import ENCODINGS
from ...encodings import Encoding
from ...factory import create_encoding
from ...presets import PRESETS, Preset
from ...values import read_yaml
from ..place import Place
from ..views import View, load_plots, views

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIZES: dict[int, tuple[int, ...]] = {1: (50,), 2: (14, 10), 3: (4, 14, 10)}
"""What an encoding is looked at on, by the number of its axes, unless told otherwise."""
USUAL = {"dim": 64, "num_heads": 8, "head_dim": 64, "train_length": 512}
"""Arguments that an encoding needs, where they are not given."""
FILES = (".png", ".svg", ".pdf")
ARGUMENT = re.compile(r"(?:--)?([A-Za-z_][\w-]*)=(.*)", re.DOTALL)
MOST_ROWS = 40


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    parser.usage = "mmpos show NAME [--argument VALUE | argument=VALUE ...] [options]"
    parser.description = (
        "Shows what an encoding does. Any other argument is one of the encoding's own: --dim 8 or dim=8, nested ones "
        'as YAML: scaling="{name: YaRN, factor: 4, train_length: 512}".'
    )
    parser.add_argument("name", help="a name that mmpos list knows")
    parser.add_argument("--height", type=int, help="rows of the grid that it is looked at on")
    parser.add_argument("--width", type=int, help="columns of the grid")
    parser.add_argument("--frames", type=int, help="frames of the grid")
    parser.add_argument("--length", type=int, help="tokens of the sequence; of a grid, the length for encodings by it")
    parser.add_argument("--spacing", type=float, default=1.0, help="coordinate units between neighbours (1)")
    parser.add_argument("--extend", type=float, metavar="FACTOR", help="extends the length of a RoPE so many times")
    parser.add_argument("--figure", nargs="+", metavar="VIEW", help="views to show, such as periods; all by default")
    parser.add_argument("--output", type=Path, help="file for the pictures, .png, .svg or .pdf")


def run(arguments: argparse.Namespace, rest: Sequence[str]) -> None:
    """Prints the tables, or writes the pictures.

    Raises:
        ValueError: If an argument does not fit.
        TypeError: If an argument is unknown or missing.
        ImportError: If there is no matplotlib for the pictures.
    """
    output: Path | None = arguments.output
    if output is not None and output.suffix.lower() not in FILES:
        raise ValueError(f"output must end in one of {', '.join(FILES)}, got {output}")
    if not arguments.spacing > 0:
        raise ValueError(f"spacing must be positive, got {arguments.spacing}")
    given = parse_arguments(rest)
    asked = _asked(arguments)
    encoding = create(arguments.name, given, asked)
    sizes = asked or SIZES.get(encoding.axes) or (5,) * encoding.axes
    found = _chosen(views(encoding, Place(sizes, arguments.spacing, arguments.length), arguments.extend), arguments)
    print(encoding)
    print_tables(found)
    if output is not None:
        write_figure(found, f"{arguments.name}: {' x '.join(map(str, sizes))} tokens", output)
        print(f"pictures: {output}")


def parse_arguments(words: Sequence[str]) -> dict[str, Any]:
    """Arguments of an encoding from the command line, with values as YAML has them.

    Raises:
        ValueError: If a word is neither ``--key value`` nor ``key=value``.

    Example:
        >>> parse_arguments(["--dim", "8", "base=100", "--learned-scale"])
        {'dim': 8, 'base': 100, 'learned_scale': True}
    """
    found, left = {}, list(words)
    while left:
        word = left.pop(0)
        if match := ARGUMENT.fullmatch(word):
            key, text = match.groups()
        elif word.startswith("--") and len(word) > 2:
            key, text = word[2:], left.pop(0) if left and not _is_key(left[0]) else "true"
        else:
            raise ValueError(f"arguments of the encoding are --key value or key=value, got {word!r}")
        try:
            found[key.replace("-", "_")] = read_yaml(text)
        except ValueError as error:
            raise ValueError(f"{key} is not YAML: {text!r}") from error
    return found


def create(name: str, given: Mapping[str, Any], sizes: tuple[int, ...] | None = None) -> Encoding:
    """The encoding of this name, with usual sizes where it needs some that are not given.

    Args:
        name: A class or preset of the factory.
        given: Its arguments.
        sizes: Tokens on each axis, where they are known: learned tables have them, and axes are as many.

    Example:
        >>> create("LearnedTable", {"dim": 8}, sizes=(7, 5))
        LearnedTable(dim=8, size=(7, 5))
    """
    if name in PRESETS or name in ENCODINGS:
        preset = PRESETS.get(name, Preset(name, {}))
        parameters = inspect.signature(ENCODINGS[preset.encoding][1]).parameters
        usual: dict[str, Any] = USUAL | dict.fromkeys(("size", "window"), sizes or SIZES[1])
        missing = [key for key, parameter in parameters.items() if parameter.default is parameter.empty]
        filled = {key: usual[key] for key in missing if key in usual and key not in preset.arguments}
        if sizes is not None and "axes" in parameters and "axes" not in preset.arguments:
            filled["axes"] = len(sizes)
        given = filled | dict(given)
    encoding = create_encoding(name, **given)
    assert isinstance(encoding, Encoding)
    return encoding


def print_tables(found: Mapping[str, View]) -> None:
    """Prints the views that have a table."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console()
    for name, view in found.items():
        if not view.columns:
            console.print(f"\n{view.title} ({name}): a picture, with --output", highlight=False, style="bold")
            continue
        console.print(f"\n{view.title} ({name})", highlight=False, style="bold")
        table = Table(box=box.SIMPLE_HEAD)
        for column in view.columns:
            table.add_column(column, justify="left" if column == "meaning" else "right")
        for row in view.rows[:MOST_ROWS]:
            table.add_row(*row)
        console.print(table)
        if len(view.rows) > MOST_ROWS:
            console.print(f"... and {len(view.rows) - MOST_ROWS} rows more", highlight=False)


def write_figure(found: Mapping[str, View], title: str, path: Path) -> None:
    """Writes the pictures into one file: one alone at 8 x 5 inches, several side by side."""
    save = load_plots().save
    if len(found) == 1:
        (view,) = found.values()
        save(view.draw(None), path)
        return
    save(_panels(found, title), path)


def _panels(found: Mapping[str, View], title: str) -> "Figure":
    from matplotlib.figure import Figure

    rows = (len(found) + 1) // 2
    figure = Figure(figsize=(14, 4.6 * rows), dpi=70, layout="constrained")
    figure.suptitle(title)
    places = figure.subplots(rows, 2, squeeze=False).flatten()
    for ax, view in zip(places, found.values(), strict=False):
        view.draw(ax)
    for ax in places[len(found) :]:
        ax.set_axis_off()
    return figure


def _asked(arguments: argparse.Namespace) -> tuple[int, ...] | None:
    """Tokens on each axis, as asked for."""
    sides = {name: getattr(arguments, name) for name in ("frames", "height", "width", "length")}
    for name, size in sides.items():
        if size is not None and size < 2:
            raise ValueError(f"{name} must be at least 2, got {size}")
    frames, height, width, length = sides.values()
    if (height is None) != (width is None) or (frames is not None and height is None):
        raise ValueError("a grid has --height and --width, and a video --frames too")
    if height is None:
        return None if length is None else (length,)
    return (height, width) if frames is None else (frames, height, width)


def _chosen(found: dict[str, View], arguments: argparse.Namespace) -> dict[str, View]:
    names = arguments.figure or list(found)
    for name in names:
        if name not in found:
            raise ValueError(f"{arguments.name} has no view {name!r}; it has {', '.join(found)}")
    return {name: found[name] for name in names}


def _is_key(word: str) -> bool:
    return word.startswith("--") or ARGUMENT.fullmatch(word) is not None
