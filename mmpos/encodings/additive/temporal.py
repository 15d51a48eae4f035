"""Encodings of time and of places in a series: one axis."""

import math
from typing import Literal

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from ...arguments import check_choice
from ...frequencies import Geometric, Series, check_base
from ...spectra import Axial
from ..base import AdditiveEncoding
from ..checks import check_coords, check_length, check_positive, keep_float32
from .finite import finite_or_nan


class Time2Vec(AdditiveEncoding):
    """Channel 0 is ``freqs[0] * t + phases[0]``, channel ``i`` the sine of ``freqs[i] * t + phases[i]``, all learned.

    Channel 0 has no bound: it is the trend. Frequencies start as a series, log-spaced by default, and that of channel
    0 as the slowest of them; phases start uniform from -pi to pi, that of channel 0 as 0. All stay in float32 when
    the module is cast. With timestamps give a series in their unit, such as ``Periods(60, 366 * 86400)`` for seconds.

    Args:
        dim: Channels of a token, at least 2.
        start: Where the ``dim - 1`` frequencies of the waves start; geometric by base 10000 if None.
        wave: Whether they are a "sine" or a "cosine".

    Raises:
        ValueError: If ``dim`` is less than 2 or the wave is unknown.

    Example:
        >>> Time2Vec(dim=64, start=Periods(60, 7 * 86400))(torch.tensor([[0.0], [12.5], [3600.0]])).shape
        torch.Size([3, 64])

    Reference:
        Kazemi et al., Time2Vec, 2019, sec. 4. https://arxiv.org/abs/1907.05321
    """

    axes = 1

    def __init__(self, dim: int, *, start: Series | None = None, wave: Literal["sine", "cosine"] = "sine"):
        super().__init__()
        check_positive("dim", dim)
        if dim < 2:
            raise ValueError(f"dim must be at least 2, one channel for the trend and one for a wave, got {dim}")
        if not isinstance(start, Series | None):
            raise TypeError(f"start must be a series such as Periods or Geometric, got {start!r}")
        check_choice("wave", wave, ("sine", "cosine"))
        self.dim, self.start, self.wave = dim, start, wave
        self.freqs = nn.Parameter(torch.empty(dim))
        self.phases = nn.Parameter(torch.empty(dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Sets frequencies to where they start and draws phases anew."""
        series = [float(freq) for freq, _ in (self.start or Geometric()).pairs(self.dim - 1)]
        with torch.no_grad():
            self.freqs.copy_(torch.tensor([min(series, key=abs), *series], dtype=torch.float64))
            nn.init.uniform_(self.phases, -math.pi, math.pi)
            self.phases[0] = 0

    def forward(
        self, coords: Shaped[Tensor, "*batch n 1"], *, length: int | Int[Tensor, "*rows"] | None = None
    ) -> Float[Tensor, "*batch n dim"]:
        check_coords(coords, self.axes)
        check_length(length)
        angle = finite_or_nan(coords).double() * self.freqs.double() + self.phases.double()
        waves = angle[..., 1:].sin() if self.wave == "sine" else angle[..., 1:].cos()
        return torch.cat([angle[..., :1], waves], dim=-1).to(self.freqs.dtype)

    def _apply(self, fn, recurse=True):
        """Moves what is learned with the module but keeps it in float32 when that is cast to half precision."""
        return super()._apply(keep_float32(fn), recurse)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, start={self.start!r}, wave={self.wave!r}"


class TAPE(AdditiveEncoding):
    """Sines and cosines stretched over the length: pair ``k`` turns by ``base ** (-2k / dim) * dim / length`` a step.

    Channels ``2k`` and ``2k + 1`` hold the sine and cosine of pair ``k``, as those of `Sinusoidal` do, whose ``dim``
    steps a whole series takes: short series use the room of long ones, so neighbours are told apart at any width.
    Cosines and sines are within 1e-7 + 2^-52 times the angle.

    Args:
        dim: Channels of a token, an even number.
        base: Pair ``k`` turns by ``base ** (-2k / dim) * dim / length`` radians per coordinate unit.

    Raises:
        ValueError: If ``dim`` is not a positive even number, ``base`` is not positive, or in a call ``length`` is not
            positive or not one for each row; the length is the number of tokens unless given.

    Example:
        >>> TAPE(dim=64)(sequence_coords(96)).shape
        torch.Size([96, 64])

    Reference:
        Foumani et al., Improving position encoding of transformers for multivariate time series classification
        (ConvTran), 2023, sec. 4.1. https://arxiv.org/abs/2305.16642
    """

    axes = 1

    def __init__(self, dim: int, base: float = 10000.0):
        super().__init__()
        check_positive("dim", dim)
        check_base(base)
        if dim % 2:
            raise ValueError(f"dim ({dim}) must be even")
        self.dim, self.base = dim, base
        self.spectrum = Axial().spectrum(dim, 1, base, name="dim")

    def forward(
        self, coords: Shaped[Tensor, "*batch n 1"], *, length: int | Int[Tensor, "*rows"] | None = None
    ) -> Float[Tensor, "*batch n dim"]:
        check_coords(coords, self.axes)
        check_length(length)
        # Two factors that are exact, then one division: the coordinate is rounded once, and its phase not at all.
        cos, sin = self.spectrum.cos_sin(coords.double() * self.dim / self._divisor(coords, length))
        return torch.stack([sin, cos], dim=-1).flatten(-2).squeeze(-3)

    def _divisor(self, coords: Tensor, length: int | Tensor | None) -> float | Tensor:
        if length is None:
            return coords.shape[-2]
        rows = coords.shape[:-2]
        if isinstance(length, Tensor) and length.shape != rows:
            raise ValueError(f"length must have shape {tuple(rows)}, one for each row, got {tuple(length.shape)}")
        if not torch.compiler.is_compiling() and not (isinstance(length, Tensor) and length.is_meta):
            least = length.min().item() if isinstance(length, Tensor) and length.numel() else length
            if not isinstance(least, Tensor) and least < 1:
                raise ValueError(f"length must be positive, got {least}")
        return length.to(coords.device)[..., None, None] if isinstance(length, Tensor) else length

    def extra_repr(self) -> str:
        return f"dim={self.dim}, base={self.base}"
