"""What the adapters of all libraries do for the layers of a model."""

from collections.abc import Sequence

from torch import nn

from ..encodings import AttentionBias
from ..encodings.base import Encoding


def number_distinct(layers: Sequence[Encoding | None]) -> tuple[nn.ModuleList, list[int | None]]:
    """The encodings of layers as modules, each once, and the number of that of each layer, None where it has none."""
    distinct = list({id(each): each for each in layers if each is not None}.values())
    place = {id(each): number for number, each in enumerate(distinct)}
    return nn.ModuleList(distinct), [None if each is None else place[id(each)] for each in layers]


def check_plain(bias: AttentionBias, name: str) -> None:
    """Refuses a bias that ``name``, which adds one of coordinates to its logits, cannot take."""
    if bias.needs or bias.after_softmax:
        what = f"reads {', '.join(sorted(bias.needs))}" if bias.needs else "is added behind the softmax"
        raise ValueError(f"{type(bias).__name__} {what}, but {name} takes a bias of coordinates only")
