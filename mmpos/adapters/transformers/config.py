"""Rotary encodings of the settings in a config of transformers, and back."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ...encodings import RoPE
from ...scaling import NTK, DynamicNTK, Llama3, LongRoPE, PositionInterpolation, Proportional, Scaling, YaRN
from ...spectra import Sections
from .settings import ORIGINAL, get, head_width, layer_kinds, parameters_by_kind, rotating_layers, text_config
from .vision import MODEL_TYPES, patch_rope

TYPES = ("default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional")
# Models that pair channels (2i, 2i + 1), where others pair (i, i + p).
INTERLEAVED = {"cohere", "cohere2", "ernie4_5", "ernie4_5_moe", "glm", "glm4", "helium", "llama4_text"}

Layers = RoPE | None | list[RoPE | None]


def rope_from_config(config: Any) -> Layers:
    """The rotary encoding that a config of transformers asks for.

    Args:
        config: A config, or what its JSON file holds, in either spelling. Without ``model_type`` a mapping is read as
            it stands; that needs ``head_dim`` or the sizes that give it.

    Returns:
        The encoding of all layers, or None if none rotates; where layers differ, a list with the encoding or None of
        each, in which layers of a kind share one object. Multimodal sections (M-RoPE) make it one of three axes, a
        DINOv3 ViT one of two, for patch centres from -1 to 1 (`mmpos.normalise`).
        Where no original length is given, ``max_position_embeddings`` is taken, as transformers does.

    Raises:
        ValueError: If the config has no rotary settings, keys contradict each other, the type is unknown, or a
            setting that the type needs is missing.

    Example:
        >>> rope_from_config({"head_dim": 64, "rope_scaling": {"type": "linear", "factor": 2.0}})
        RoPE(head_dim=64, axes=1, base=10000.0, rotary_dim=64, layout='half', scaling=PositionInterpolation(factor=2.0))
    """
    config = text_config(config)
    if get(config, "model_type") in MODEL_TYPES:
        return patch_rope(config)
    kinds = parameters_by_kind(config)
    ropes = {kind: None if each is None else _rope(each, config) for kind, each in kinds.items()}
    turning = rotating_layers(config)
    names = layer_kinds(config, kinds, len(turning))
    layers = [ropes[name] if turns else None for name, turns in zip(names, turning, strict=True)]
    return layers[0] if all(rope is layers[0] for rope in layers) else layers


def rope_to_config(rope: Layers, layer_types: Sequence[str] | None = None) -> dict[str, Any]:
    """The ``rope_parameters`` with which transformers turns as ``rope`` does; `rope_from_config` reads them back.

    `NTK` becomes the base that it amounts to, and no rotation the type "proportional" with a share of 0.

    Args:
        rope: The encoding of all layers, or one or None for each. Layers that do not rotate are no matter of
            ``rope_parameters`` where the others are alike: the config says so elsewhere.
        layer_types: The kind of each layer, needed where they differ in more than that.

    Raises:
        ValueError: If transformers has no words for the encoding, or layers of one kind differ.

    Example:
        >>> rope_to_config(RoPE(head_dim=64, scaling=Llama3(8.0, 1.0, 4.0, train_length=8192)))["rope_type"]
        'llama3'
    """
    for each in rope if isinstance(rope, list | tuple) else [rope]:
        if not isinstance(each, RoPE | None):
            raise TypeError(f"rope must be a RoPE, None, or a list of these, got {each!r}")
    if not isinstance(rope, list | tuple):
        return _to_parameters(rope)
    if layer_types is None:
        one = {id(each): each for each in rope if each is not None}
        if len(one) > 1:
            raise ValueError(f"{len(one)} encodings differ between layers: layer_types must say of which kind each is")
        return _to_parameters(next(iter(one.values()), None))
    return {kind: _to_parameters(each) for kind, each in group_by_kind(rope, layer_types).items()}


def group_by_kind(layers: Sequence[RoPE | None], kinds: Sequence[str]) -> dict[str, RoPE | None]:
    """The encoding of each kind of layer; refuses layers of one kind with two."""
    if len(layers) != len(kinds):
        raise ValueError(f"rope has {len(layers)} entries, but there are {len(kinds)} layers")
    found: dict[str, RoPE | None] = {}
    for index, (kind, rope) in enumerate(zip(kinds, layers, strict=True)):
        if kind in found and not alike(found[kind], rope):
            raise ValueError(f"layers of the kind {kind!r} turn alike, but layer {index} has another rope: {rope}")
        found.setdefault(kind, rope)
    return found


def alike(one: RoPE | None, other: RoPE | None) -> bool:
    """Whether two encodings are one, or fixed ones with the same settings."""
    if one is other or one is None or other is None:
        return one is other
    return not one.is_learned and not other.is_learned and repr(one) == repr(other)


def _rope(parameters: Mapping[str, Any], config: Any) -> RoPE | None:
    """The encoding of settings; None if they turn nothing."""
    head_dim, share = head_width(config), parameters.get("partial_rotary_factor")
    model_type, proportional = get(config, "model_type"), parameters["rope_type"] == "proportional"
    share = 1.0 if share is None else _number("partial_rotary_factor", share)
    if not 0 <= share <= 1:
        raise ValueError(f"partial_rotary_factor must be from 0 to 1, got {share}")
    if not int(head_dim * share / (2 if proportional else 1)):
        return None
    sections = parameters.get("mrope_section")
    if sections is None and model_type == "qwen3_vl_text":
        sections = (24, 20, 20)
    interleaved = bool(parameters.get("mrope_interleaved")) or str(model_type).startswith("qwen3_vl")
    base = parameters.get("rope_theta")
    return RoPE(
        head_dim,
        axes=1 if sections is None else len(sections),
        base=10000.0 if base is None else _number("rope_theta", base),
        spectrum=None if sections is None else Sections(sections, interleaved=interleaved),
        rotary_dim=head_dim if proportional else int(head_dim * share),
        layout="interleaved" if model_type in INTERLEAVED else "half",
        scaling=_scaling(parameters, get(config, "max_position_embeddings")),
    )


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, got {value!r}")
    return float(value)


def _scaling(parameters: Mapping[str, Any], reach: int | None) -> Scaling | None:
    kind = parameters["rope_type"]
    if kind not in TYPES:
        raise ValueError(f"unknown rope_type {kind!r}; known: {', '.join(TYPES)}")

    def need(*names: str) -> list[Any]:
        known = {ORIGINAL: reach, **{name: each for name, each in parameters.items() if each is not None}}
        known.setdefault("factor", reach / known[ORIGINAL] if reach and kind in ("yarn", "longrope") else None)
        missing = [name for name in names if known.get(name) is None]
        if missing:
            raise ValueError(f"rope_type {kind!r} needs {' and '.join(missing)}, got {dict(parameters)}")
        return [known[name] for name in names]

    def value(name: str, default: Any = None) -> Any:
        return default if parameters.get(name) is None else parameters[name]

    match kind:
        case "linear":
            return PositionInterpolation(*need("factor"))
        case "dynamic":
            if reach is None:
                raise ValueError("rope_type 'dynamic' needs max_position_embeddings, from which on it grows")
            return DynamicNTK(*need("factor"), train_length=reach)
        case "yarn":
            more = {name: value(name) or None for name in ("attention_factor", "mscale", "mscale_all_dim")}
            fast, slow = value("beta_fast") or 32, value("beta_slow") or 1
            truncate = value("truncate", True)
            return YaRN(*need("factor", ORIGINAL), beta_fast=fast, beta_slow=slow, truncate=truncate, **more)
        case "longrope":
            short, long, length, factor = need("short_factor", "long_factor", ORIGINAL, "factor")
            return LongRoPE(short, long, length, factor=factor, attention_factor=value("attention_factor"))
        case "llama3":
            return Llama3(*need("factor", "low_freq_factor", "high_freq_factor", ORIGINAL))
        case "proportional":
            if value("factor", 1) != 1:
                raise ValueError(f"rope_type 'proportional' with a factor ({value('factor')}) is not offered")
            return Proportional(value("partial_rotary_factor", 1.0))
    return None


def _to_parameters(rope: RoPE | None) -> dict[str, Any]:
    if rope is None:
        return {"rope_type": "proportional", "rope_theta": 10000.0, "partial_rotary_factor": 0.0}
    for name, ours in (("xpos", rope.xpos), ("rotary_heads", rope.rotary_heads)):
        if ours is not None:
            raise ValueError(f"transformers has no words for {name}={ours!r}")
    multimodal = isinstance(rope.spectrum, Sections) and rope.spectrum.series is None
    if not (multimodal or (rope.spectrum is None and rope.axes == 1)):
        raise ValueError(f"transformers has no words for spectrum={rope.spectrum!r} on {rope.axes} axes")
    scalings = rope.scaling if isinstance(rope.scaling, Sequence) else [rope.scaling]
    if any(each != scalings[0] for each in scalings):
        raise ValueError(f"transformers has no words for a scaling of each axis, {rope.scaling}")
    parameters: dict[str, Any] = {"rope_type": "default", "rope_theta": float(rope.base)}
    if rope.rotary_dim != rope.head_dim:
        share = rope.rotary_dim / rope.head_dim
        exact = int(rope.head_dim * share) == rope.rotary_dim
        parameters["partial_rotary_factor"] = share if exact else math.nextafter(share, 1)
    if isinstance(rope.spectrum, Sections):
        parameters["mrope_section"] = list(rope.spectrum.sections)
        if rope.spectrum.interleaved:
            parameters["mrope_interleaved"] = True
    return parameters | _of_scaling(scalings[0], rope)


def _of_scaling(scaling: Scaling | None, rope: RoPE) -> dict[str, Any]:
    """What a scaling adds to the settings or changes in them."""
    match scaling:
        case None:
            return {}
        case PositionInterpolation():
            return {"rope_type": "linear", "factor": scaling.factor}
        case NTK():
            power = rope.rotary_dim / (rope.rotary_dim - 2) if rope.rotary_dim > 2 else 0
            return {"rope_theta": rope.base * scaling.factor**power}
        case DynamicNTK():
            return {"rope_type": "dynamic", "factor": scaling.factor}
        case Llama3():
            names = ("factor", "low_freq_factor", "high_freq_factor")
            return {"rope_type": "llama3", **{name: getattr(scaling, name) for name in names}} | _original(scaling)
        case Proportional() if rope.rotary_dim == rope.head_dim:
            return {"rope_type": "proportional", "partial_rotary_factor": scaling.share}
        case YaRN():
            found: dict[str, Any] = {"rope_type": "yarn", "factor": scaling.factor, **_original(scaling)}
            found |= {name: getattr(scaling, name) for name in ("beta_fast", "beta_slow", "truncate")}
            more = {name: getattr(scaling, name) for name in ("attention_factor", "mscale", "mscale_all_dim")}
            return found | {name: float(value) for name, value in more.items() if value is not None}
        case LongRoPE():
            found = {"rope_type": "longrope", **_original(scaling)}
            found |= {"short_factor": list(scaling.short_factors), "long_factor": list(scaling.long_factors)}
            if scaling.factor is not None:
                found["factor"] = scaling.factor
            if scaling.factor is None or scaling.attention_factor is not None:
                found["attention_factor"] = float(scaling.attention())
            return found
    raise ValueError(f"transformers has no words for scaling={scaling!r} of {rope.rotary_dim} channels")


def _original(scaling: YaRN | Llama3 | LongRoPE) -> dict[str, Any]:
    return {ORIGINAL: scaling.train_length}
