"""What the adapters of all libraries do for the layers of a model."""

from collections.abc import Sequence
from typing import Any

from torch import nn

from ..encodings import AttentionBias
from ..encodings.base import Encoding


def number_distinct(layers: Sequence[Encoding | None]) -> tuple[nn.ModuleList, list[int | None]]:
    """The encodings of layers as modules, each once, and the number of that of each layer, None where it has none."""
    distinct = list({id(each): each for each in layers if each is not None}.values())
    place = {id(each): number for number, each in enumerate(distinct)}
    return nn.ModuleList(distinct), [None if each is None else place[id(each)] for each in layers]


def check_there(encoding: nn.Module, model: nn.Module, name: str) -> None:
    """Refuses an encoding without data for a model that has some."""
    if any(each.is_meta for each in encoding.parameters()) and not all(each.is_meta for each in model.parameters()):
        raise ValueError(
            f"{name} is on the meta device, but the model is not; call to_empty and reset_parameters first"
        )


def check_no_replica(module: Any, slot: nn.Module) -> None:
    """Refuses a copy of a model made by DataParallel, whose hooks would read what the first one learns."""
    if getattr(module, "_is_replica", False) and next(slot.parameters(), None) is not None:
        raise RuntimeError(
            f"{type(slot).__name__} holds parameters, which DataParallel does not copy for it: use "
            "DistributedDataParallel"
        )


def check_plain(bias: AttentionBias, name: str) -> None:
    """Refuses a bias that ``name``, which adds one of coordinates to its logits, cannot take."""
    if bias.needs or bias.after_softmax:
        what = f"reads {', '.join(sorted(bias.needs))}" if bias.needs else "is added behind the softmax"
        raise ValueError(f"{type(bias).__name__} {what}, but {name} takes a bias of coordinates only")
