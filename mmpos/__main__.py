"""The command ``mmpos``: looks at encodings. Training is ``train.py``."""

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import NamedTuple

DEBUG = "MMPOS_DEBUG"


class Command(NamedTuple):
    """A subcommand.

    Args:
        module: Has ``add_arguments(parser)`` and ``run(arguments, rest)``; loads when the command is used.
        help: What it does.
        open_ended: Whether it takes arguments that it did not declare, as ``rest``.
    """

    module: str
    help: str
    open_ended: bool = False


COMMANDS = {
    "list": Command("mmpos.diagnostics.commands.names", "names of the encodings"),
    "show": Command("mmpos.diagnostics.commands.show", "what an encoding does, as tables and pictures", True),
    "recommend": Command("mmpos.diagnostics.commands.recommend", "which encoding for what, and why"),
    "compare": Command("mmpos.compare.command", "trains encodings of a study file by seeds, and makes their table"),
}


def main(words: Sequence[str] | None = None) -> None:
    """Runs a subcommand. A user's error is one message and an exit status; ``MMPOS_DEBUG=1`` shows the traceback.

    Args:
        words: Arguments; those of the process by default.
    """
    words = sys.argv[1:] if words is None else words
    parser = argparse.ArgumentParser(prog="mmpos", description="Positional encodings: see what they do.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        own = commands.add_parser(name, help=command.help, allow_abbrev=False)
        own.add_argument("--imports", action="append", default=[], metavar="MODULE", help="registers your encodings")
        if words and words[0] == name:
            importlib.import_module(command.module).add_arguments(own)
    arguments, rest = parser.parse_known_args(words)
    command = COMMANDS[arguments.command]
    if rest and not command.open_ended:
        parser.error(f"unknown arguments: {' '.join(rest)}")
    try:
        if arguments.imports and "" not in sys.path:
            sys.path.insert(0, "")  # modules of the working directory, as python -m sees them
        for module in arguments.imports:
            importlib.import_module(module)
        importlib.import_module(command.module).run(arguments, rest)
    except BrokenPipeError:  # a pager or head has seen enough
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    except (ImportError, OSError, TypeError, ValueError) as error:
        if os.environ.get(DEBUG):
            raise
        sys.exit(f"error: {error}\n({DEBUG}=1 shows the traceback)")


if __name__ == "__main__":
    main()
