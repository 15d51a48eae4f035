"""The parts of `benchmarks.gpu`: each gives what is to be measured one by one, so that none stops the others."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

Row = dict[str, str]
Item = tuple[Row, Callable[[], Row]]
"""What a row is about, and what measures the rest of it. A row with ``ok`` that is "no" is a failure."""


class Setup(NamedTuple):
    """Where to measure, and whether in the small form for a CPU."""

    device: torch.device
    small: bool


Part = Callable[[Setup], Iterator[Item]]
