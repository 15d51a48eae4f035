"""What a config must say so that plain transformers turns as an encoding of ours does, tried out before it is said."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from ...scaling import NTK, DynamicNTK, Llama3, LongRoPE, PositionInterpolation, Scaling, YaRN
from .config import rope_to_config
from .module import ALL, FAMILIES, TransformersRotary
from .settings import ORIGINAL


def reach_of(scaling: Scaling, current: int) -> int:
    """The length that a model has after a scaling."""
    match scaling:
        case DynamicNTK():
            return int(scaling.train_length)  # from which transformers lets it grow
        case PositionInterpolation() | NTK():
            return round(scaling.factor * current)
        case YaRN() | Llama3() | LongRoPE():
            return max(round((scaling.factor or 1) * scaling.train_length), current)
    return current


def settings_for(module: TransformersRotary, config: Any, reach: int) -> dict[str, Any]:
    """What the config must say, tried out: a rotary module that transformers makes of it must turn alike."""
    errors = []
    for parameters in _candidates(module):
        settings: dict[str, Any] = {"rope_parameters": parameters, "max_position_embeddings": reach}
        if ORIGINAL in vars(config) and ORIGINAL in parameters:  # Phi-3 has it outside too, and prefers that
            settings[ORIGINAL] = parameters[ORIGINAL]
        changed = copy.deepcopy(config)
        write(changed, copy.deepcopy(settings))
        try:
            with torch.device("cpu"):
                loaded = type(config).from_dict(changed.to_dict())
                own = type(module.original)(loaded)
        except Exception as error:  # whatever it is, transformers cannot read them
            errors.append(f"{type(error).__name__}: {error}")
            continue
        if turn_alike(module, own, reach):
            return settings
        errors.append(f"it turns otherwise by {parameters}")
    raise ValueError(
        f"{type(module.original).__name__} of transformers cannot express this encoding ({'; '.join(errors)}); "
        "replace_rope(..., write_config=False) leaves the config alone"
    )


def _candidates(module: TransformersRotary) -> list[dict[str, Any]]:
    ropes = {kind: module.rope_of(kind) for kind in module.kinds}
    if module.family.by_kind:
        return [{kind: rope_to_config(rope) for kind, rope in ropes.items()}]
    found = rope_to_config(ropes[ALL])
    return [found] if ropes[ALL] is not None else [found, {**found, "rope_type": "default"}]


def turn_alike(one: nn.Module, other: nn.Module, reach: int) -> bool:
    """Whether two rotary modules give the same cosines and sines, as far as float32 products of one can tell."""
    family = one.family if isinstance(one, TransformersRotary) else FAMILIES[type(one).__name__]
    kinds = one.kinds if isinstance(one, TransformersRotary) and family.by_kind else (None,)
    powers = [2**power for power in range(max(reach, 1).bit_length() + 1)]
    for last in range(1, len(powers) + 1):  # lengths on both sides of any at which frequencies change
        positions = torch.tensor([[0, *powers[:last]]], device="cpu")
        x, allowed = torch.zeros(1, last + 1, 1, device="cpu"), 1e-5 + 1e-6 * positions[0, :, None]
        for kind in kinds:
            asked = () if kind is None else (kind,)
            for ours, theirs in zip(*(_parts(each(x, positions, *asked)) for each in (one, other)), strict=True):
                if not _close(ours, theirs, allowed):
                    return False
    return True


def _parts(found: tuple[Tensor, Tensor] | Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine, which some models have as one complex number."""
    return (found.real, found.imag) if isinstance(found, Tensor) else found


def _close(ours: Tensor, theirs: Tensor, allowed: Tensor) -> bool:
    if ours.shape != theirs.shape:  # no rotation may be said by cosines of 1 or by none
        still = [part for part in (ours, theirs) if part.numel()]
        return len(still) < 2 and all(bool((part == part[:, :1]).all()) for part in still)
    return bool(((ours - theirs).abs() <= allowed).all())


def write(config: Any, settings: dict[str, Any]) -> None:
    """Puts settings into a config."""
    for name, value in settings.items():
        setattr(config, name, value)
