"""Errors about names that are not known."""

import difflib
from collections.abc import Iterable


def check_name(what: str, name: str, known: Iterable[str]) -> None:
    """Refuses a name that is not one of the known ones, and suggests the closest of them.

    Args:
        what: What it names, such as "calendar field".
        name: The name given.
        known: The names there are.

    Raises:
        ValueError: If the name is not known.
        TypeError: If it is no text.
    """
    known = list(known)
    if not isinstance(name, str):
        raise TypeError(f"{what} must be text, got {name!r}")
    if name not in known:
        raise ValueError(unknown(what, name, known, ", ".join(known)))


def unknown(what: str, name: str, options: Iterable[str], known: str, like: str | None = None) -> str:
    """The message that a name is not known.

    Args:
        what: What it names.
        name: The name given.
        options: Names of which the closest three are suggested, if any is close.
        known: What is known, in words.
        like: What they should be close to, if not to the name itself.
    """
    lower, word = {option.lower(): option for option in options}, (like or name).lower()
    close = difflib.get_close_matches(word, lower) or [option for option in lower if len(word) > 2 and word in option]
    close = [repr(lower[option]) for option in close[:3]]
    hint = f"did you mean {' or '.join(close)}? Known" if close else "known"
    return f"unknown {what} {name!r}; {hint}: {known}"
