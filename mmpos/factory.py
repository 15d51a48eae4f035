"""Encodings by name: one table for Python, YAML and users' own."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from .catalogue import ENCODINGS, INTERFACES, Kind
from .encodings import AdditiveEncoding, AttentionBias, Encoding, LogitScale, RotaryEncoding
from .presets import PRESETS
from .values import check_arguments, listed, read_yaml, suggest, to_value

Slot = dict[str, Any] | Callable[..., nn.Module] | None

PARTS = "parts"
"""The argument of a combination that holds specs of encodings of the same kind."""


class Encodings(NamedTuple):
    """The four slots of a modality; an empty one is no position."""

    additive: AdditiveEncoding | None = None
    rotary: RotaryEncoding | None = None
    bias: AttentionBias | None = None
    scale: LogitScale | None = None


def list_encodings(kind: Kind | None = None) -> list[str]:
    """Names that `create_encoding` knows, of one kind or of all: classes, presets and what was registered.

    Raises:
        ValueError: If the kind is unknown.

    Example:
        >>> [name for name in list_encodings(kind="additive") if "Table" in name]
        ['FactorizedTable', 'LearnedTable']
    """
    if kind is not None:
        _check_kind(kind)
    return sorted(name for name in _names() if kind in (None, _kind(name)))


def register_encoding(name: str, factory: Callable[..., nn.Module], *, kind: Kind | None = None) -> None:
    """Makes an encoding of the user's own known by name, to `create_encoding` and in every config.

    Args:
        name: The name; not one that is taken.
        factory: The class, or a function that builds the module.
        kind: The slot it is for; needed for functions only, a class says it by its interface.

    Raises:
        ValueError: If the name is taken, the kind is unknown, or a function comes without one.
        TypeError: If the factory is not callable, or a class that implements none of the interfaces.
    """
    if not isinstance(name, str) or not name:
        raise TypeError(f"the encoding name must be text, got {name!r}")
    if kind is not None:
        _check_kind(kind)
    if name in _names():
        raise ValueError(f"the encoding name {name!r} is taken")
    if not callable(factory):
        raise TypeError(f"factory must be a class or a function, got {factory!r}")
    if isinstance(factory, type):
        kinds: list[Kind] = [own for own, interface in INTERFACES.items() if issubclass(factory, interface)]
        if not kinds:
            raise TypeError(
                f"{factory.__name__} implements none of {', '.join(i.__name__ for i in INTERFACES.values())}"
            )
        if kind is not None and kind in INTERFACES and kind not in kinds:
            raise ValueError(f"{factory.__name__} is no {INTERFACES[kind].__name__} and cannot be of kind {kind}")
        kind = kind or kinds[0]
    if kind is None:
        raise ValueError(f"kind must be one of {', '.join(INTERFACES)} when the factory is a function")
    _check_kind(kind)
    ENCODINGS[name] = (kind, factory)


def create_encoding(name: str, **arguments: Any) -> nn.Module:
    """Builds the encoding of this name, a class or a preset, whose arguments may be overridden.

    Raises:
        ValueError: If the name is unknown; the closest is suggested.
        TypeError: If an argument is unknown or a needed one is missing.

    Example:
        >>> create_encoding("RoPE", head_dim=64, axes=2)
        RoPE(head_dim=64, axes=2, base=10000.0, rotary_dim=64, layout='half')
    """
    factory, preset = _find(name)
    arguments = preset | _to_values(arguments, _kind(name))
    check_arguments(name, factory, arguments)
    return factory(**arguments)


def build(
    spec: Slot,
    *,
    kind: Kind,
    dim: int | None = None,
    num_heads: int | None = None,
    num_kv_heads: int | None = None,
    head_dim: int | None = None,
    size: tuple[int, ...] | None = None,
) -> Encoding | None:
    """Fills a slot: from a spec as it stands in YAML, from a callable, or with nothing.

    Args:
        spec: ``{"name": ..., argument: value, ...}``, a class or function, a module that is built already, or None.
        kind: The slot.
        dim: Model width. This and the other sizes are given to constructors that name them, unless the spec does.
        num_heads: Heads of queries.
        num_kv_heads: Heads of keys and values; as many as ``num_heads`` if None.
        head_dim: Channels per head; ``dim // num_heads`` if None.
        size: Tokens on each axis.

    Raises:
        ValueError: If the spec has no name, the name is unknown or of another kind.
        TypeError: If the spec is none of the above, or arguments are unknown or missing.

    Example:
        >>> build({"name": "RoPE", "axes": 2}, kind="rotary", dim=384, num_heads=6)
        RoPE(head_dim=64, axes=2, base=10000.0, rotary_dim=64, layout='half')
    """
    _check_kind(kind)
    if spec is None:
        return None
    if isinstance(spec, nn.Module):
        return _check_built(spec, kind, type(spec).__name__)
    if isinstance(spec, Mapping):
        spec = {"on" if key is True else key: value for key, value in spec.items()}  # YAML reads the bare word so
        width = dim if spec.get("name") == "Sum" else None  # the parts of other combinations have widths of their own
        arguments = _to_values({key: value for key, value in spec.items() if key != "name"}, kind, width, size)
        name = spec.get("name")
        if not isinstance(name, str):
            raise ValueError(
                f"the {kind} slot must have a name, got {dict(spec)!r}; known: {listed(list_encodings(kind))}"
            )
        factory, preset = _find(name, kind)
    elif callable(spec):
        name, factory, preset, arguments = getattr(spec, "__name__", repr(spec)), spec, {}, {}
    else:
        raise TypeError(f"the {kind} slot must be {{name: ...}}, a callable or null, got {spec!r}")

    known = inspect.signature(factory).parameters
    bound = factory.keywords if isinstance(factory, partial) else {}
    if head_dim is None and dim is not None and num_heads is not None:
        head_dim = dim // num_heads
        if dim % num_heads and "head_dim" in known and "head_dim" not in {**bound, **arguments}:
            raise ValueError(f"dim ({dim}) must be a multiple of num_heads ({num_heads}) where no head_dim is given")
    sizes = {"dim": dim, "num_heads": num_heads, "num_kv_heads": num_kv_heads or num_heads, "head_dim": head_dim}
    sizes |= {"size": size, "window": size}
    sizes = {key: value for key, value in sizes.items() if key in known and key not in bound and value is not None}
    arguments = preset | sizes | arguments
    check_arguments(name, factory, arguments)
    encoding = _check_built(factory(**arguments), kind, name)
    if kind == "additive" and dim is not None and getattr(encoding, "dim", dim) != dim:
        raise ValueError(f"{name} gives {encoding.dim} channels, but a token has {dim}")
    return encoding


def load_encodings(
    path: str | Path,
    *,
    dim: int | None = None,
    num_heads: int | None = None,
    num_kv_heads: int | None = None,
    head_dim: int | None = None,
    size: tuple[int, ...] | None = None,
) -> dict[str, Encodings]:
    """Builds the slots of every modality that a YAML file names.

    The file has a block for each modality with the slots ``additive``, ``rotary``, ``bias`` and ``scale``; one that
    is left out or null is empty. Sizes are given to constructors that name them, as `build` does.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is not of this form, or a slot cannot be built; the message names the slot.
        TypeError: If the arguments in a slot do not fit its encoding.

    Example:
        >>> load_encodings("positions.yaml", dim=384, num_heads=6)["image"].rotary
        RoPE(head_dim=64, axes=2, base=100.0, rotary_dim=64, layout='half')
    """
    try:
        blocks = read_yaml(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not YAML: {error}") from error
    if not isinstance(blocks, Mapping) or not all(
        isinstance(modality, str) and isinstance(slots, Mapping) for modality, slots in blocks.items()
    ):
        raise ValueError(f"{path} must have a block of slots for each modality, got {blocks!r}")
    sizes: dict[str, Any] = {
        "dim": dim, "num_heads": num_heads, "num_kv_heads": num_kv_heads, "head_dim": head_dim, "size": size
    }  # fmt: skip
    return {modality: _load_slots(f"{path}: {modality}", slots, sizes) for modality, slots in blocks.items()}


def _load_slots(where: str, slots: Mapping, sizes: dict[str, Any]) -> Encodings:
    for kind in slots:
        if kind not in INTERFACES:
            raise ValueError(f"{where} has an unknown slot {suggest(str(kind), INTERFACES)}")
    built = {}
    for kind, spec in slots.items():
        try:
            built[kind] = build(spec, kind=kind, **sizes)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{where}.{kind}: {error}") from error
    return Encodings(**built)


def _to_values(
    arguments: Mapping[str, Any], kind: Kind, dim: int | None = None, size: tuple[int, ...] | None = None
) -> dict[str, Any]:
    """Arguments as Python has them; the parts of a combination are built, with the size of the axes that each is on."""
    values = {key: value if key == PARTS else to_value(value) for key, value in arguments.items()}
    if PARTS in values:
        parts, on = values[PARTS], values.get("on")
        if isinstance(parts, str) or not isinstance(parts, Sequence):
            raise TypeError(f"{PARTS} must be a list of encodings, got {parts!r}")
        if size is None or on is None or len(on) != len(parts):
            sizes = [size] * len(parts)
        else:
            sizes = [tuple(size[axis] for axis in axes) for axes in on]
        values[PARTS] = [build(part, kind=kind, dim=dim, size=own) for part, own in zip(parts, sizes, strict=True)]
    return values


def _names() -> list[str]:
    return [*ENCODINGS, *PRESETS]


def _kind(name: str) -> Kind:
    return ENCODINGS[PRESETS[name].encoding if name in PRESETS else name][0]


def _find(name: str, kind: Kind | None = None) -> tuple[Callable[..., nn.Module], dict[str, Any]]:
    """What builds the encoding of this name, and the arguments that a preset has for it."""
    if not isinstance(name, str):
        raise TypeError(f"the name of an encoding must be text, got {name!r}")
    if name not in _names():
        raise ValueError(f"unknown encoding {suggest(name, _names())}")
    if kind not in (None, _kind(name)):
        known = listed(list_encodings(kind))
        raise ValueError(f"{name} is for the {_kind(name)} slot, not for {kind}; known there: {known}")
    encoding, preset = PRESETS.get(name, (name, {}))
    return ENCODINGS[encoding][1], preset


def _check_kind(kind: str) -> None:
    if not isinstance(kind, str) or kind not in INTERFACES:
        raise ValueError(f"unknown kind {suggest(str(kind), INTERFACES)}")


def _check_built(module: nn.Module, kind: Kind, name: str) -> Encoding:
    if not isinstance(module, INTERFACES[kind]):
        raise ValueError(f"{name} is no {INTERFACES[kind].__name__} and cannot stand in the {kind} slot")
    return module
