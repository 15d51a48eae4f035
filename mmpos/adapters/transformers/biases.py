"""Attention biases of transformers' models: read from models, and exchanged for ours."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from ...encodings import AttentionBias
from ..layers import check_plain, check_there
from .settings import check_module
from .slots import NAME, Slot
from .stacks import BloomSlot, MptSlot, SwinSlot, T5Slot

STACKS: dict[str, type[Slot]] = {
    "BloomModel": BloomSlot,
    "MT5Stack": T5Slot,
    "MptModel": MptSlot,
    "Swinv2Encoder": SwinSlot,
    "T5Stack": T5Slot,
    "UMT5Stack": T5Slot,
}
KNOWN = "Bloom, MPT, T5, mT5, UMT5, Swin v2"

OfStack = AttentionBias | None | Sequence[AttentionBias | None]
Biases = OfStack | Mapping[str, OfStack]


def bias_from_model(model: nn.Module) -> Biases:
    """The attention bias that a model has now, as one of ours, with its weights copied.

    Args:
        model: A model of T5, mT5, UMT5, Bloom, MPT or Swin v2.

    Returns:
        The bias of all layers, or a list of those of the layers where each has its own (UMT5, Swin v2). A model with
        an encoder and a decoder gives ``{"encoder": ..., "decoder": ...}``. `replace_bias` takes all of these.

    Raises:
        ValueError: If the family is unknown.

    Example:
        >>> from transformers import BloomConfig, BloomModel
        >>> bias_from_model(BloomModel(BloomConfig(hidden_size=16, n_head=2, n_layer=1, vocab_size=8)))
        ALiBi(num_heads=2, axes=1)
    """
    found: dict[str, OfStack] = {}
    for name, stack in stacks_of(model).items():
        biases = biases_of(stack)
        found[name] = biases[0] if len(biases) == 1 else biases
    return found if len(found) > 1 else next(iter(found.values()))


def replace_bias(model: nn.Module, bias: Biases) -> None:
    """Makes the model add ``bias`` to its attention logits in the place of its own; `restore_bias` undoes it.

    With ``bias_from_model(model)`` it computes what it did. What ``bias`` learns belongs to the model: it is trained
    and in its ``state_dict``, below ``mmpos_bias``, where the learned bias of the model no longer is; other weights
    keep their names. The config cannot say so: load what was saved into a model with such a bias.

    Coordinates of tokens count the real ones of each row, as its mask has them, wherever padding stands; those of Swin
    v2 are (y, x) within a window.

    Args:
        model: As `bias_from_model` takes it, changed in place.
        bias: Any bias of coordinates alone for all layers, None for none, or a list with one or None for each layer
            where they differ (UMT5, Swin v2); of a model with an encoder and a decoder also a mapping as
            `bias_from_model` gives it, in which what is left out stays as it was. What is no mapping is copied for the
            decoder.

    Raises:
        ValueError: If the family is unknown, it has a bias of ours already, or ``bias`` does not fit its heads, its
            axes or its layers, or depends on content. The model is then as it was.
        TypeError: If ``bias`` is no such thing.
    """
    stacks = stacks_of(model)
    given: dict[str, Any] = dict(bias) if isinstance(bias, Mapping) else {}
    if not isinstance(bias, Mapping):  # each stack has its own, so that transformers, which ties no others, saves them
        given = {name: copy.deepcopy(bias) if number else bias for number, name in enumerate(stacks)}
    if not given or given.keys() - stacks.keys():
        raise ValueError(f"bias is for {sorted(given)}, but {type(model).__name__} has {sorted(stacks)}")
    plans = []
    for name, each in given.items():
        stack = stacks[name]
        if slot_of(stack) is not None:
            raise ValueError(f"{type(stack).__name__} has a bias of mmpos already; call restore_bias(model) first")
        kind = STACKS[type(stack).__name__]
        biases = _for_layers(each, kind, stack, name)
        plans.append((kind(stack, biases), stack))
    for slot, stack in plans:
        slot.enter(stack)


def restore_bias(model: nn.Module) -> None:
    """Puts the model's own attention bias back."""
    slots = [(slot, stack) for stack in stacks_of(model).values() if (slot := slot_of(stack)) is not None]
    if not slots:
        raise ValueError(f"{type(model).__name__} has no bias of mmpos to take out")
    for slot, stack in slots:
        slot.leave(stack)


def stacks_of(model: nn.Module) -> dict[str, Any]:
    """The stacks of layers with a bias, by the name that says which."""
    check_module(model)
    found: dict[str, Any] = {}
    for stack in model.modules():
        if type(stack).__name__ not in STACKS:
            continue
        name = ("decoder" if stack.is_decoder else "encoder") if type(stack).__name__.endswith("5Stack") else "model"
        if name in found:
            raise ValueError(f"{type(model).__name__} holds more than one {type(stack).__name__}: give one of these")
        found[name] = stack
    if not found:
        raise ValueError(f"{type(model).__name__} has no attention bias of a known family; known: {KNOWN}")
    return found


def slot_of(stack: Any) -> Slot | None:
    """The slot of ours in a stack."""
    slot = getattr(stack, NAME, None)
    return slot if isinstance(slot, Slot) else None


def biases_of(stack: Any) -> list[AttentionBias | None]:
    """Copies of the biases of a stack, one for all layers or one for each."""
    slot = slot_of(stack)
    if slot is None:
        return list(STACKS[type(stack).__name__].own(stack))
    return copy.deepcopy([slot.bias_of(layer) for layer in range(len(slot.numbers))])


def _for_layers(bias: Any, kind: type[Slot], stack: Any, name: str) -> list[AttentionBias | None]:
    """One bias for all layers or one for each, after all checks."""
    attentions = kind.attentions(stack)
    count = len(kind.own(stack))
    several = isinstance(bias, Sequence | nn.ModuleList) and not isinstance(bias, str)
    layers: list[Any] = list(bias) if several else [bias] * count
    if len(layers) != count:
        raise ValueError(f"bias has {len(layers)} entries, but the {name} has {count} biases of its own")
    for layer, each in enumerate(layers):
        if each is not None:
            _check(each, kind, attentions[layer], f"layer {layer} of the {name}")
            check_there(each, stack, "bias")
    return layers


def _check(bias: Any, kind: type[Slot], attention: Any, name: str) -> None:
    if not isinstance(bias, AttentionBias):
        raise TypeError(f"bias must be an AttentionBias, None, or a list or mapping of these, got {bias!r}")
    check_plain(bias, name)
    owner = type(bias).__name__
    if bias.axes != kind.axes:
        raise ValueError(f"axes ({bias.axes}) of {owner} must be those of the model's coordinates ({kind.axes})")
    ends = kind.corners(attention).to(next((each.device for each in bias.parameters()), None))
    heads, own = bias(ends, ends).shape[-3], kind.heads_of(attention)
    if heads not in (1, own):
        raise ValueError(f"num_heads ({heads}) of {owner} must be that of {name} ({own})")
