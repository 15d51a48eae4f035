"""How positions of a sequence vary in training."""

from dataclasses import dataclass

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from ..transforms import jitter, shift, skip, subsample


@dataclass(frozen=True)
class SequencePositions:
    """Positions made to differ in training from what they are in evaluation, each row by its own draw.

    What is asked for comes in this order.

    Args:
        subsample: Positions become a random subset, in order, of as many as this.
        skip: Positions are cut in chunks with random gaps, up to as many as this.
        chunks: Number of chunks.
        offset: Largest random whole offset of a row.
        shift: Largest random shift of a row, either way.
        jitter: Largest random factor of a row; its reciprocal is the least.

    Raises:
        ValueError: If a number is out of range.

    Reference:
        Ruoss et al., Randomized positional encodings, 2023, for ``subsample``. https://arxiv.org/abs/2305.16843
        Zhu et al., PoSE, 2023, for ``skip``. https://arxiv.org/abs/2309.10400
        Kiyono et al., SHAPE, 2021, for ``offset``. https://arxiv.org/abs/2109.05644
        Likhomanenko et al., CAPE, 2021, for ``shift`` and ``jitter``. https://arxiv.org/abs/2106.03143
    """

    subsample: int | None = None
    skip: int | None = None
    chunks: int = 2
    offset: int = 0
    shift: float = 0.0
    jitter: float = 1.0

    def __post_init__(self):
        for name, least in (("subsample", 1), ("skip", 1), ("chunks", 1), ("offset", 0), ("shift", 0), ("jitter", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name} ({value}) must be at least {least}")

    @property
    def varies(self) -> bool:
        """Whether anything is random."""
        return self != SequencePositions(chunks=self.chunks)

    def vary(self, coords: Int[Tensor, "b n 1"], generator: torch.Generator | None = None) -> Shaped[Tensor, "b n 1"]:
        """Positions for training."""
        if self.subsample is not None:
            coords = subsample(coords, self.subsample, generator=generator)
        if self.skip is not None:
            coords = skip(coords, self.skip, chunks=self.chunks, generator=generator)
        if self.offset:
            coords = shift(coords, self.offset, whole=True, generator=generator)
        if self.shift:
            coords = shift(coords, self.shift, generator=generator)
        if self.jitter != 1:
            coords = jitter(coords, self.jitter, generator=generator)
        return coords
