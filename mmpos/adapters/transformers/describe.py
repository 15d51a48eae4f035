"""What the layers of a transformers model do about position, and what looks wrong."""

import copy
from collections.abc import Sequence
from dataclasses import Field, dataclass, fields, is_dataclass
from typing import Any

from torch import nn

from ...encodings import RoPE
from ...frequencies import Periods
from ...scaling import Scaling
from ...spectra import Axial
from .biases import STACKS, biases_of, stacks_of
from .config import rope_from_config
from .module import ALL, FAMILIES, TransformersRotary
from .replace import ALL_FAMILIES, by_kind, of_patches
from .settings import ORIGINAL, check_conflicts, get, head_width, parameters_by_kind, rotating_layers
from .vision import PatchRotary, turns_as_said
from .write import turn_alike

WINDOWS = ("sliding_attention", "chunked_attention")
KNOWN = {
    *("rope_type", "type", "rope_theta", "partial_rotary_factor", "mrope_section", "mrope_interleaved"),
    *("factor", ORIGINAL, "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"),
    *("short_factor", "long_factor", "low_freq_factor", "high_freq_factor"),
}


@dataclass(frozen=True)
class Layer:
    """What one layer does; None where there is no such thing.

    Args:
        layer: Its number, from 0.
        kind: Its entry in ``layer_types``, or "encoder" or "decoder" in a model with biases that has both.
        rotates: Whether it turns queries and keys.
        base: Base of the frequencies.
        scaling: The scaling, as `mmpos.scaling` has it.
        width: Channels of each head that turn.
        head_dim: Channels of each head.
        layout: Which channels pair up.
        window: Keys that a query sees at most.
        bias: The class of the attention bias, as `bias_from_model` has it.
    """

    layer: int
    kind: str | None
    rotates: bool
    base: float | None
    scaling: Scaling | None
    width: int | None
    head_dim: int | None
    layout: str | None
    window: int | None
    bias: str | None


@dataclass(frozen=True)
class Description:
    """A row for each layer, and sentences on what looks wrong; prints as a table."""

    layers: tuple[Layer, ...]
    problems: tuple[str, ...]

    def __str__(self) -> str:
        names = [each.name for each in fields(Layer)]
        rows = [names, *([_cell(getattr(layer, name)) for name in names] for layer in self.layers)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([*lines, *(f"! {problem}" for problem in self.problems)])


def describe(model: nn.Module) -> Description:
    """A table of what the layers of a model do about position, and what looks wrong in its config and module.

    It shows the encodings that the model uses: those of its config, or ours where they are exchanged.

    Args:
        model: Any model of transformers; its text part is described if it has one.

    Example:
        >>> from transformers import LlamaConfig, LlamaModel
        >>> config = LlamaConfig(hidden_size=16, num_attention_heads=2, num_hidden_layers=1, intermediate_size=8)
        >>> print(describe(LlamaModel(config)))
        layer  kind  rotates  base     scaling  width  head_dim  layout  window  bias
        0      -     yes      10000.0  -        8      8         half    -       -
    """
    config: Any = getattr(model, "config", None)
    if config is None:
        raise TypeError(f"model must be a model of transformers, got {type(model).__name__}")
    rows = _of_biases(model)
    if rows:
        return Description(tuple(rows), ())
    config = config.get_text_config()
    module = next((each for each in model.modules() if _is_rotary(each)), None)
    problems: list[str] = []
    count = get(config, "num_hidden_layers")
    if count == 0:
        return Description((), ("the model has no layers",))
    count = count or 1
    ropes: list[RoPE | None] = [None] * count
    if get(config, "rope_parameters") or get(config, "rope_scaling") or get(config, "rope_theta"):
        try:
            check_conflicts(vars(config))
            found = rope_from_config(config)
            ropes = list(found) if isinstance(found, list) else [found] * count
            problems += _of_settings(config)
        except (TypeError, ValueError) as error:
            problems.append(str(error))
    if isinstance(module, PatchRotary):
        ropes = [module.rope_of(ALL)] * count
    elif isinstance(module, TransformersRotary):
        ropes = _of_module(module, config, count)
    elif module is not None:
        problems += _of_frequencies(module, ropes, config)
    layers = [_layer(index, rope, config) for index, rope in enumerate(ropes)]
    return Description(tuple(layers), tuple(dict.fromkeys(problems)))


def _is_rotary(module: nn.Module) -> bool:
    return isinstance(module, TransformersRotary | PatchRotary) or type(module).__name__ in ALL_FAMILIES


def _of_biases(model: nn.Module) -> list[Layer]:
    """The layers of a model with attention biases, none if it has no such."""
    if not any(type(each).__name__ in STACKS for each in model.modules()):
        return []
    stacks, rows = stacks_of(model), []
    for name, stack in stacks.items():
        kind, biases = name if len(stacks) > 1 else None, biases_of(stack)
        slot = STACKS[type(stack).__name__]
        for index, attention in enumerate(slot.attentions(stack)):
            bias = biases[index if len(biases) > 1 else 0]
            shown = None if bias is None else type(bias).__name__
            rows.append(Layer(index, kind, False, None, None, None, slot.width_of(attention), None, None, shown))
    return rows


def _layer(index: int, rope: RoPE | None, config: Any) -> Layer:
    types: Sequence[str] | None = get(config, "layer_types")
    kind = types[index] if types else None
    window = get(config, "attention_chunk_size" if kind == "chunked_attention" else "sliding_window")
    if types is not None and kind not in WINDOWS:
        window = None
    bias = "ALiBi" if get(config, "alibi") else None
    head_dim = head_width(config) if rope is None and get(config, "num_attention_heads") else None
    if rope is None:
        return Layer(index, kind, False, None, None, None, head_dim, None, window, bias)
    scaling = rope.scaling if isinstance(rope.scaling, Scaling | None) else rope.scaling[0]
    return Layer(index, kind, True, _base(rope), scaling, rope.rotary_dim, rope.head_dim, rope.layout, window, bias)


def _base(rope: RoPE) -> float:
    """The base, or the ratio of periods where a series of these takes its place."""
    series = rope.spectrum.series if isinstance(rope.spectrum, Axial) else None
    return series.max_period / series.min_period if isinstance(series, Periods) else rope.base


def _of_module(module: TransformersRotary, config: Any, count: int) -> list[RoPE | None]:
    """The encodings of ours that stand in the model."""
    kinds = config.layer_types if module.family.by_kind else [ALL] * count
    found = [module.rope_of(kind) for kind in kinds]
    turning = zip(found, rotating_layers(config), strict=True)
    return [rope if turns else None for rope, turns in turning]


def _of_settings(config: Any) -> list[str]:
    """What looks wrong in the settings."""
    problems, reach = [], get(config, "max_position_embeddings")
    for kind, parameters in parameters_by_kind(config).items():
        if parameters is None:
            continue
        where = "" if kind is None else f" of {kind}"
        unknown = sorted(parameters.keys() - KNOWN)
        if unknown:
            problems.append(f"rope_parameters{where} have keys that transformers does not read: {', '.join(unknown)}")
        factor, original = parameters.get("factor"), parameters.get(ORIGINAL)
        if parameters["rope_type"] in ("yarn", "longrope", "llama3"):
            if original is None:
                problems.append(f"factor ({factor}){where} without {ORIGINAL}; max_position_embeddings is taken")
            elif factor and reach and reach != factor * original:
                smaller = "smaller" if reach < factor * original else "larger"
                problems.append(
                    f"max_position_embeddings ({reach}) is {smaller} than factor * {ORIGINAL}{where} "
                    f"({factor} * {original} = {factor * original:g})"
                )
        if kind is not None and parameters.get("truncate") is False:
            problems.append(f"transformers ignores truncate=False{where}, nested by the kind of layer")
    return problems


def _of_frequencies(module: nn.Module, ropes: list[RoPE | None], config: Any) -> list[str]:
    """What the model's own module does otherwise than the config says."""
    kinds = {each.dtype for each in module.buffers() if each.is_floating_point() and each.dtype.itemsize < 4}
    if kinds:
        return [f"frequencies were rounded to {kinds.pop()} when the model was cast"]
    if any(each.is_meta for each in module.buffers()):
        return []
    if of_patches(module):
        right = turns_as_said(module, ropes[0], config)
        return [] if right else ["the model does not turn as its config says"]
    own, family = copy.deepcopy(module).cpu(), FAMILIES[type(module).__name__]  # it may change as it is called
    try:
        ours = TransformersRotary(own, config, family, by_kind(ropes, config, family))
    except ValueError as error:
        return [f"the model does not do what its config says: {error}"]
    if turn_alike(ours, own, config.max_position_embeddings):
        return []
    return ["the model does not turn as its config says"]


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Scaling) and is_dataclass(value):  # without what is as usual, or long
        shown = {each.name: getattr(value, each.name) for each in fields(value) if _is_worth_showing(value, each)}
        return f"{type(value).__name__}({', '.join(f'{name}={each}' for name, each in shown.items())})"
    return "-" if value is None else str(value)


def _is_worth_showing(scaling: Any, field: Field) -> bool:
    value = getattr(scaling, field.name)
    return value != field.default and not isinstance(value, tuple)
