"""The rotary module of a transformers model exchanged for one that asks an encoding of ours.

The models compute cosines and sines once a forward, in one module, and hand them to all layers; only that module is
exchanged, so attention, caches and masks stay the model's own.
"""

import re
from typing import Any

import torch
from torch import nn

from ...encodings import RoPE
from ...scaling import Llama3, LongRoPE, Scaling, YaRN
from ..layers import check_there
from .config import Layers, alike, group_by_kind, rope_from_config
from .module import ALL, FAMILIES, Family, TransformersRotary
from .settings import check_module, head_width, rotating_layers
from .vision import FAMILIES as OF_PATCHES
from .vision import PatchRotary, patch_settings
from .write import reach_of, settings_for, write

ALL_FAMILIES = {**FAMILIES, **OF_PATCHES}


def replace_rope(model: nn.Module, rope: Layers, *, write_config: bool = True) -> None:
    """Makes the model turn queries and keys by ``rope``.

    With ``rope_from_config(model.config)`` it computes what it did, exactly at any position and in any dtype.
    `restore_rope` undoes it. Weights keep their names, whatever was learned; a learned encoding adds its own.

    Args:
        model: A model of transformers, changed in place, as is its config, from which no other should be made.
        rope: The encoding of all layers that rotate, None for no rotation, or a list with one or None for each.
        write_config: Whether the config says the same afterwards, so that plain transformers loads what is saved with
            the same settings; ``max_position_embeddings`` grows to what a scaling reaches. False leaves the config
            alone, for encodings that transformers cannot express.

    Raises:
        ValueError: If the family is unknown or its rotary module exchanged already, the encoding does not fit its
            heads, or transformers cannot express it. The model is then as it was.
    """
    parent, name, family = _find(model)
    original = getattr(parent, name)
    config = original.config
    ropes = by_kind(rope, config, family)
    for each in ropes.values():
        if each is not None:
            check_there(each, model, "rope")
    if of_patches(original):
        settings = patch_settings(ropes[ALL], config) if write_config else {}
        module = PatchRotary(original, config, family, ropes)
        write(config, settings)
        _enter(parent, name, module)
        return
    module = TransformersRotary(original, config, family, ropes)
    if write_config:
        reach = config.max_position_embeddings
        for each in ropes.values():
            if each is not None and isinstance(each.scaling, YaRN | Llama3 | LongRoPE):  # these name the length before
                reach = reach_of(each.scaling, reach)
        write(config, settings_for(module, config, reach))
    _enter(parent, name, module)


def extend_context(model: nn.Module, scaling: Scaling) -> None:
    """Gives the model's rotary encoding a scaling for a longer context, and its config the same settings.

    Where layers of a model have encodings of their own, those without a window are extended. The config's
    ``max_position_embeddings`` grows with the factor.

    Args:
        model: A model of transformers, changed in place.
        scaling: A scaling of `mmpos.scaling`, such as ``YaRN(factor=4, train_length=4096)``.

    Raises:
        ValueError: As `replace_rope`; also if the model has a scaling already.
    """
    if not isinstance(scaling, Scaling):
        raise TypeError(f"scaling must be a scaling of mmpos.scaling, got {scaling!r}")
    parent, name, family = _find(model)
    original = getattr(parent, name)
    config = original.config
    if of_patches(original):
        raise ValueError(f"{type(model).__name__} turns patches by their share of the image, which has no length")
    ropes = by_kind(rope_from_config(config), config, family)
    chosen = [kind for kind, rope in ropes.items() if rope is not None and kind in (ALL, "full_attention")]
    if not chosen:
        raise ValueError(f"no layer of the model rotates without a window; its kinds are {sorted(ropes)}")
    extended = dict(ropes)
    for kind in chosen:
        rope = ropes[kind]
        assert rope is not None
        if rope.scaling is not None:
            raise ValueError(
                f"the model has a scaling already, {rope.scaling}; to put another in its place use "
                "replace_rope(model, rope.with_scaling(...))"
            )
        extended[kind] = rope.with_scaling(scaling)
    module = TransformersRotary(original, config, family, extended)
    write(config, settings_for(module, config, reach_of(scaling, config.max_position_embeddings)))
    _enter(parent, name, module)


def remove_rope(model: nn.Module) -> None:
    """Makes the model rotate nothing (NoPE), and its config say so; `restore_rope` undoes it.

    The config of a DINOv3 ViT cannot say so and stays as it is.
    """
    parent, name, _ = _find(model)
    replace_rope(model, None, write_config=not of_patches(getattr(parent, name)))


def restore_rope(model: nn.Module) -> None:
    """Puts the model's own rotary module and the settings of its config back."""
    check_module(model)
    for parent in model.modules():
        for name, module in parent.named_children():
            if isinstance(module, TransformersRotary | PatchRotary):
                write(module.config, module.before)
                setattr(parent, name, module.original)
                return
    raise ValueError(f"{type(model).__name__} has no rotary module of mmpos to put back")


def _enter(parent: nn.Module, name: str, module: TransformersRotary | PatchRotary) -> None:
    """Puts a rotary module of ours where the model has its own, with what it learns on the same device."""
    like = next(parent.parameters(), None)
    module.ropes.to(None if like is None else like.device)
    setattr(parent, name, module.train(module.original.training))


def of_patches(module: nn.Module) -> bool:
    """Whether a rotary module is one of a vision model, which is given an image."""
    return type(module).__name__ in OF_PATCHES


def _find(model: nn.Module) -> tuple[nn.Module, str, Family]:
    """Where the rotary module is."""
    check_module(model)
    found = []
    for parent in model.modules():
        for name, module in parent.named_children():
            if isinstance(module, TransformersRotary | PatchRotary):
                raise ValueError("the model's rotary module is one of mmpos already; call restore_rope(model) first")
            if type(module).__name__ in ALL_FAMILIES:
                found.append((parent, name, ALL_FAMILIES[type(module).__name__]))
    if len(found) > 1:
        owners = ", ".join(type(parent).__name__ for parent, _, _ in found)
        raise ValueError(f"{type(model).__name__} has {len(found)} rotary modules, in {owners}: give one of these")
    if not found:
        known = ", ".join(re.sub("Ro(tary|pePosition)Embedding$", "", name) for name in ALL_FAMILIES)
        raise ValueError(f"{type(model).__name__} has no rotary module of a known family; known: {known}")
    return found[0]


def by_kind(rope: Layers, config: Any, family: Family) -> dict[str, RoPE | None]:
    """The encoding for each question that the model asks, after all checks."""
    turning = rotating_layers(config)
    layers = list(rope) if isinstance(rope, list | tuple) else [rope if turns else None for turns in turning]
    if len(layers) != len(turning):
        raise ValueError(f"rope has {len(layers)} entries, but the model has {len(turning)} layers")
    for each in layers:
        _check(each, config, family)
    if family.by_kind:
        return group_by_kind(layers, config.layer_types)
    for index, (each, turns) in enumerate(zip(layers, turning, strict=True)):
        if each is not None and not turns:
            raise ValueError(f"layer {index} of the model does not rotate, but rope has {each} for it")
    own = [(index, each) for index, (each, turns) in enumerate(zip(layers, turning, strict=True)) if turns]
    for index, each in own:
        if not alike(each, own[0][1]):
            raise ValueError(f"the model turns its layers by one encoding, but layer {index} differs from {own[0][0]}")
    return {ALL: own[0][1] if own else None}


def _check(rope: RoPE | None, config: Any, family: Family) -> None:
    if rope is None:
        return
    if not isinstance(rope, RoPE):
        raise TypeError(f"rope must be a RoPE, None, or a list of these, got {rope!r}")
    width = head_width(config)
    if rope.head_dim != width:
        raise ValueError(f"head_dim ({rope.head_dim}) must be that of the model's heads ({width})")
    if rope.layout != family.layout:
        raise ValueError(
            f"layout is {rope.layout!r}, but the model pairs channels as {family.layout!r}; weights change between "
            "them by convert_layout"
        )
    if rope.rotary_dim != width and not family.partial:
        raise ValueError(
            f"rotary_dim ({rope.rotary_dim}) must be head_dim ({width}): the model pairs channels of the whole head; "
            "Proportional(share) stops some of its pairs"
        )
    if rope.axes != family.axes:
        raise ValueError(f"axes ({rope.axes}) must be that of the model's positions ({family.axes})")
    if rope.xpos is not None or rope.rotary_heads is not None or _heads(rope) != 1:
        raise ValueError(f"the model turns all heads, queries and keys alike, which {rope} does not")


def _heads(rope: RoPE) -> int:
    """How many heads it tells apart."""
    where = next(rope.parameters(), torch.zeros(1)).device
    return rope(torch.zeros(1, rope.axes, device=where)).cos.shape[-3]
