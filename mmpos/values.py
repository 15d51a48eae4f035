"""Arguments by name: what a word or a mapping in a config stands for, and what is wrong with it."""

import difflib
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .encodings.additive import Octaves
from .encodings.rotary import XPos
from .frequencies import Bands, Geometric, Harmonics, Periods, Seasons
from .scaling import NTK, ClipLow, DynamicNTK, Llama3, LongRoPE, PositionInterpolation, Proportional, RIFLEx, YaRN
from .spectra import Axial, Given, Learned, Mixed, Sections, Shared

# Values inside a spec, such as ``spectrum: {name: Mixed}``.
VALUES: dict[str, Callable[..., Any]] = {
    "Axial": Axial,
    "Bands": Bands,
    "ClipLow": ClipLow,
    "DynamicNTK": DynamicNTK,
    "Geometric": Geometric,
    "Given": Given,
    "Harmonics": Harmonics,
    "Learned": Learned,
    "Llama3": Llama3,
    "LongRoPE": LongRoPE,
    "Mixed": Mixed,
    "NTK": NTK,
    "Octaves": Octaves,
    "Periods": Periods,
    "PositionInterpolation": PositionInterpolation,
    "Proportional": Proportional,
    "RIFLEx": RIFLEx,
    "Seasons": Seasons,
    "Sections": Sections,
    "Shared": Shared,
    "XPos": XPos,
    "YaRN": YaRN,
}

# What no config comes near.
MOST_LEVELS, MOST_VALUES = 40, 100_000

# What YAML 1.1 reads as text though everybody means a number: an exponent without a point or a sign.
NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")


def to_value(value: Any) -> Any:
    """An argument as Python has it: numbers that YAML reads as text, and values by name, at any depth."""
    if isinstance(value, str) and NUMBER.fullmatch(value):
        return float(value)
    if isinstance(value, list | tuple):
        return type(value)(to_value(item) for item in value)
    if not isinstance(value, Mapping):
        return value
    arguments = {key: to_value(item) for key, item in value.items()}
    if "name" not in arguments:
        return arguments
    name = str(arguments.pop("name"))
    if name not in VALUES:
        raise ValueError(f"unknown value {suggest(name, VALUES)}")
    check_arguments(name, VALUES[name], arguments)
    return VALUES[name](**arguments)


def check_arguments(name: str, factory: Callable, arguments: Mapping[str, Any]) -> None:
    """Refuses arguments that a class or function does not take, and suggests the closest that it does."""
    parameters = inspect.signature(factory).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    for key in arguments:
        if key not in parameters:
            raise TypeError(f"{name} has no argument {suggest(str(key), parameters)}")
    missing = [key for key, p in parameters.items() if p.default is p.empty and p.kind is not p.VAR_POSITIONAL]
    missing = [key for key in missing if key not in arguments]
    if missing:
        raise TypeError(f"{name} needs {', '.join(missing)}")


def suggest(name: str, known: Iterable[str]) -> str:
    """The name in quotes, the closest known one, and all known ones, for an error."""
    lower = {option.lower(): option for option in known}
    close = difflib.get_close_matches(name.lower(), lower, n=1)
    hint = f"; did you mean {lower[close[0]]!r}? Known" if close else "; known"
    return f"{name!r}{hint}: {listed(lower.values())}"


def listed(names: Iterable[str]) -> str:
    """Names in a row."""
    return ", ".join(sorted(names, key=str.lower)) or "none"


def read_yaml(text: str) -> Any:
    """What YAML says, of plain values alone: no tag makes an object, and what is ambiguous or endless is refused.

    Raises:
        ValueError: If it is no YAML, a key stands twice in a mapping, or it unfolds to more than any config has.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        """Refuses a key that stands twice, of which YAML would take the last."""

        def construct_mapping(self, node, deep=False):
            seen = []
            for key_node, _ in node.value:
                if key_node.tag == "tag:yaml.org,2002:merge":
                    continue
                key = self.construct_object(key_node, deep=True)
                if key in seen:
                    raise ValueError(f"{key!r} stands twice (line {key_node.start_mark.line + 1})")
                seen.append(key)
            return super().construct_mapping(node, deep)

    try:
        found = yaml.load(text, Loader)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    except (ArithmeticError, AttributeError, LookupError, TypeError) as error:  # of a value that its tag does not fit
        raise ValueError(f"a value does not fit its tag: {error}") from error
    _check_size(found)
    return found


def _check_size(found: Any) -> None:
    """Refuses values that aliases unfold to millions, or to themselves without an end."""
    waiting, count = [(found, 0)], 0
    while waiting:
        value, depth = waiting.pop()
        count += 1
        if depth > MOST_LEVELS or count > MOST_VALUES:
            raise ValueError(f"it unfolds to more than {MOST_VALUES} values or {MOST_LEVELS} levels")
        if isinstance(value, Mapping):
            waiting += [(item, depth + 1) for pair in value.items() for item in pair]
        elif isinstance(value, list | tuple | set):
            waiting += [(item, depth + 1) for item in value]
