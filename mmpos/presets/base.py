"""A preset: what a paper or a released model chose."""

from typing import Any, NamedTuple


class Preset(NamedTuple):
    """The name of an encoding, and its arguments where they are not the defaults."""

    encoding: str
    arguments: dict[str, Any]
