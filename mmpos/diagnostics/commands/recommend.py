"""``mmpos recommend``: which encoding for what, and why."""

import argparse
from collections.abc import Sequence

from ..advice import TOPICS, Advice, advice, markdown


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    parser.description = "Says which encoding to take in which situation, with the reason and its source."
    parser.add_argument("topic", nargs="*", metavar="TOPIC", help=f"{', '.join(TOPICS[1:])}; all by default")
    parser.add_argument("--markdown", action="store_true", help="the table as it stands in the documents")


def run(arguments: argparse.Namespace, rest: Sequence[str]) -> None:
    """Prints a paragraph for each situation.

    Raises:
        ValueError: If a topic is unknown.
    """
    rows = advice(arguments.topic)
    print(markdown(rows) if arguments.markdown else "\n\n".join(map(_paragraph, rows)))


def _paragraph(row: Advice) -> str:
    """What a row says, a line each; pages of the documents by where they are in the repository."""
    where = row.url if "://" in row.url else f"docs/{row.url}"
    return "\n".join(
        [
            f"{row.topic}: {row.situation}",
            f"  take     {row.choice.replace('`', '')}",
            f"  because  {row.reason}",
            f"  source   {row.source}: {where}",
        ]
    )
