"""What a config of transformers says about rotation, for each layer, before any encoding is made of it.

A config has one set of settings, or one for each kind of layer, as ``rope_parameters``; older files have
``rope_scaling`` and ``rope_theta`` side by side instead. Some models do not rotate some of their layers.
"""

import copy
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from torch import nn

ORIGINAL = "original_max_position_embeddings"
ALIASES = {"su": "longrope", "mrope": "default"}


def text_config(config: Any) -> Any:
    """The config of the part that reads text; a mapping becomes an object with the same settings."""
    if not isinstance(config, Mapping):
        if not callable(getattr(config, "get_text_config", None)):
            raise TypeError(f"config must be a config of transformers or a mapping, got {type(config).__name__}")
        config = config.get_text_config()
        check_conflicts(vars(config))
        return config
    fields = copy.deepcopy(dict(config))  # transformers fills in what it is given
    check_conflicts(fields)
    if fields.get("text_config"):
        check_conflicts(fields["text_config"])
    if "model_type" not in fields:
        return SimpleNamespace(**fields)
    try:
        from transformers import AutoConfig
    except ImportError as error:
        raise ImportError(
            "reading a config by its model_type needs transformers: install mmpos[transformers]"
        ) from error
    return AutoConfig.for_model(**fields).get_text_config()


def check_conflicts(fields: Mapping[str, Any]) -> None:
    """Refuses settings that are given twice with different values."""

    def compare(name: str, one: Any, other: Any) -> None:
        if one is not None and other is not None and one != other:
            raise ValueError(f"the config contradicts itself: {name} is {one!r} and {other!r}")

    for name in ("rope_scaling", "rope_parameters"):
        if fields.get(name) is not None and not isinstance(fields[name], Mapping):
            raise TypeError(f"{name} must be a mapping, got {fields[name]!r}")
    old, new = (fields.get(name) or {} for name in ("rope_scaling", "rope_parameters"))
    for given in (old, new):
        if isinstance(given.get("type"), str):
            compare("type and rope_type", *(named(given.get(key)) for key in ("type", "rope_type")))
    if is_nested(new):
        return
    old, new = (normal(given) if given else {} for given in (old, new))
    for name in sorted(old.keys() & new.keys()):
        compare(f"{name} of rope_scaling and rope_parameters", old[name], new[name])
    for name in ("rope_theta", "partial_rotary_factor", ORIGINAL):
        compare(name, fields.get(name), {**old, **new}.get(name))


def is_nested(parameters: Mapping[str, Any]) -> bool:
    """Whether settings are given for each kind of layer."""
    return any(isinstance(each, Mapping) for each in parameters.values())


def parameters_by_kind(config: Any) -> dict[str | None, dict[str, Any] | None]:
    """The settings of each kind of layer, or those of all under None; None for a kind that does not rotate."""
    given = {**(get(config, "rope_scaling") or {}), **(get(config, "rope_parameters") or {})}
    beside = {name: get(config, name) for name in ("rope_theta", "partial_rotary_factor", ORIGINAL)}
    if not given and beside["rope_theta"] is None:
        raise ValueError(f"{name_of(config)} has no rotary settings: neither rope_parameters nor rope_theta")
    beside = {name: value for name, value in beside.items() if value is not None}
    if not is_nested(given):
        return {None: {**beside, **normal(given)}}
    kinds = {kind: each for kind, each in given.items() if each is None or isinstance(each, Mapping)}
    return {kind: None if each is None else {**beside, **normal(each)} for kind, each in kinds.items()}


def layer_kinds(config: Any, kinds: Mapping[str | None, Any], count: int) -> list[str | None]:
    """The key under which each of ``count`` layers has its settings."""
    if None in kinds:
        return [None] * count
    types = get(config, "layer_types")
    if types is None:
        raise ValueError(f"settings for the kinds {sorted(map(str, kinds))} need layer_types, the kind of each layer")
    missing = set(types) - kinds.keys()
    if missing:
        raise ValueError(f"there are layers of the kind {sorted(missing)} but settings for {sorted(map(str, kinds))}")
    return list(types)


def rotating_layers(config: Any) -> list[bool]:
    """Whether each layer rotates, where not all do; one True where a config does not say how many layers there are."""
    count, types = get(config, "num_hidden_layers"), get(config, "layer_types")
    if count == 0:
        raise ValueError(f"{name_of(config)} has no layers: num_hidden_layers is 0")
    if get(config, "no_rope_layers"):
        return [bool(turns) for turns in config.no_rope_layers]  # 1 where a layer rotates, for all its name
    model_type, window = get(config, "model_type"), get(config, "sliding_window")
    if model_type == "cohere2" or (model_type == "exaone4" and window is not None):
        return [kind == "sliding_attention" for kind in types]
    return [True] * (count or 1)


def head_width(config: Any) -> int:
    """Channels per head."""
    if get(config, "head_dim"):
        return config.head_dim
    if not (get(config, "hidden_size") and get(config, "num_attention_heads")):
        raise ValueError(f"{name_of(config)} needs head_dim, or hidden_size and num_attention_heads")
    return config.hidden_size // config.num_attention_heads


def normal(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with their type under one key and one name."""
    kind = parameters.get("rope_type", parameters.get("type"))
    rest = {name: value for name, value in parameters.items() if name != "type"}
    return {**rest, "rope_type": named(kind) or "default"}


def named(kind: Any) -> Any:
    """The name of a type, for one of its other names."""
    if kind is None:
        return None
    if not isinstance(kind, str):
        raise TypeError(f"rope_type must be a name, got {kind!r}")
    return ALIASES.get(kind, kind)


def get(config: Any, name: str) -> Any:
    """A setting, None where a config lacks it."""
    return getattr(config, name, None)


def check_module(model: Any) -> None:
    """Refuses what is no module."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a model of transformers, got {type(model).__name__}")


def name_of(config: Any) -> str:
    """A config, for errors."""
    return "the config" if isinstance(config, SimpleNamespace) else type(config).__name__
