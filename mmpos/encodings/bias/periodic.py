"""Biases that repeat: sums of cosines of the difference between query and key."""

from collections.abc import Sequence
from decimal import Decimal, localcontext

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from ...arguments import read_numbers
from ...frequencies import Geometric, block_spectrum, periods_of_axes, season_waves
from ...phases import DIGITS, TURN
from ..base import AttentionBias
from ..checks import check_pair, check_positive, keep_float32

Period = float | Decimal


class PeriodicBias(AttentionBias):
    """Seasons: the sum over waves ``w`` of ``amplitudes[h, w] * cos(2 pi (q_coord - k_coord) / period_w)``.

    With coordinates in seconds, periods of a day and a week let a query find keys of its own hour or weekday however
    long ago they were. Phases are exact: whole seconds at a Unix time of 1.7e9 lose nothing.

    Args:
        num_heads: Heads of queries.
        periods: Periods in coordinate units; with several axes, a sequence of them for each, empty if it has none, or
            one number for all.
        axes: Axes of the coordinates.
        harmonics: Waves of each period ``p``: ``p``, ``p / 2``, ..., ``p / harmonics``; the sharper the season, the
            more. One number, or one for each period. Waves are in the order of axes, periods and harmonics.
        amplitudes: Fixed amplitudes of the waves, for all heads or for each; learned unless given.

    Raises:
        ValueError: If a size or a period is not positive, or periods or amplitudes do not fit.

    Example:
        >>> seconds = sequence_coords(30) * 3600 + 1_700_000_000
        >>> PeriodicBias(num_heads=6, periods=(86400, 604800), harmonics=2)(seconds[24:], seconds).shape
        torch.Size([6, 6, 30])
    """

    def __init__(
        self,
        num_heads: int,
        periods: Period | Sequence[Period] | Sequence[Sequence[Period]],
        axes: int = 1,
        *,
        harmonics: int | Sequence[int] = 1,
        amplitudes: Sequence[float] | Sequence[Sequence[float]] | None = None,
    ):
        super().__init__()
        check_positive("num_heads", num_heads)
        check_positive("axes", axes)
        self.num_heads, self.axes, self.harmonics = num_heads, axes, harmonics
        self.periods = periods_of_axes(periods, axes)
        waves = season_waves(self.periods, harmonics)
        self._waves, self.num_waves = block_spectrum(waves), sum(map(len, waves))
        self.rank = 2 * self.num_waves
        self._fixed = None if amplitudes is None else _rows(amplitudes, num_heads, self.num_waves)
        if self._fixed is None:
            self.amplitudes = nn.Parameter(torch.empty(num_heads, self.num_waves, dtype=torch.float32))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws learned amplitudes anew from a normal distribution of standard deviation 0.02."""
        if self._fixed is None:
            nn.init.normal_(self.amplitudes, std=0.02)

    def forward(
        self,
        q_coords: Shaped[Tensor, "*batch q a"],
        k_coords: Shaped[Tensor, "*batch k a"],
        *,
        query: Float[Tensor, "*rows h q d"] | None = None,
        key: Float[Tensor, "*rows g k d"] | None = None,
        tokens: Float[Tensor, "*rows k c"] | None = None,
    ) -> Float[Tensor, "*batch h q k"]:
        left, right = self.factors(q_coords, k_coords)
        return (left.double() @ right.double().mT).float()  # neither autocast nor TF32 touches float64

    def factors(
        self,
        q_coords: Shaped[Tensor, "*batch q a"],
        k_coords: Shaped[Tensor, "*batch k a"],
        *,
        ordered: bool = False,
        query: Float[Tensor, "*rows h q d"] | None = None,
        key: Float[Tensor, "*rows g k d"] | None = None,
        tokens: Float[Tensor, "*rows k c"] | None = None,
    ) -> tuple[Float[Tensor, "*batch h q r"], Float[Tensor, "*batch 1 k r"]]:
        """``cos(q - k) = cos q cos k + sin q sin k``: ``2 num_waves`` channels, each off by at most 1e-7."""
        check_pair(q_coords, k_coords, self.axes, owner="PeriodicBias(axes={axes})")
        left, right = (torch.cat(self._waves.cos_sin(coords), dim=-1) for coords in (q_coords, k_coords))
        amplitudes = self._amplitudes(q_coords.device)
        return torch.cat([amplitudes, amplitudes], dim=-1)[:, None] * left, right

    def _amplitudes(self, device: torch.device) -> Float[Tensor, "h w"]:
        if self._fixed is None:
            return self.amplitudes.float()
        return torch.tensor(self._fixed, dtype=torch.float32, device=device)

    def _apply(self, fn, recurse=True):
        """Moves learned amplitudes with the module but keeps them in float32 when it is cast to half precision."""
        return super()._apply(keep_float32(fn), recurse)

    def extra_repr(self) -> str:
        return f"num_heads={self.num_heads}, axes={self.axes}, num_waves={self.num_waves}"


def sandwich_bias(num_heads: int, dim: int = 128, base: float = 10000.0) -> PeriodicBias:
    """Sandwich, the inner product of two sinusoidal encodings over the head's ``8 h / H``, ``h`` from 1 to ``H``.

    A `PeriodicBias` of fixed amplitudes with the ``dim / 2`` periods ``2 pi base ** (2i / dim)``, ``i`` from 1: it
    decays with about the logarithm of the distance. The constant that the paper subtracts does not change a softmax
    and is left out.

    Args:
        num_heads: Heads of queries ``H``.
        dim: Channels of the sinusoidal encoding, an even number.
        base: The base of its periods.

    Raises:
        ValueError: If a size is not positive or ``dim`` is odd.

    Example:
        >>> coords = sequence_coords(20)
        >>> sandwich_bias(num_heads=6)(coords, coords).shape
        torch.Size([6, 20, 20])

    Reference:
        Chi et al., Dissecting transformer length extrapolation via the lens of receptive field analysis, 2022.
        https://arxiv.org/abs/2212.10356
    """
    check_positive("num_heads", num_heads)
    check_positive("dim", dim)
    if dim % 2:
        raise ValueError(f"dim ({dim}) must be a multiple of 2")
    with localcontext(prec=DIGITS):
        freqs = [freq for freq, _ in Geometric(base).pairs(dim // 2)]
        periods = [TURN / freq for freq in (*freqs[1:], 1 / Decimal(base))]
    shares = [num_heads / (8 * head) for head in range(1, num_heads + 1)]
    return PeriodicBias(num_heads, periods, amplitudes=[[share] * len(periods) for share in shares])


def _rows(
    amplitudes: Sequence[float] | Sequence[Sequence[float]], num_heads: int, num_waves: int
) -> tuple[tuple[float, ...], ...]:
    """Fixed amplitudes ``(h, w)``, from one row for all heads or one for each."""
    if not isinstance(amplitudes, Sequence):
        raise TypeError(f"amplitudes must be a sequence of numbers, for all heads or for each, got {amplitudes!r}")
    nested = any(isinstance(row, Sequence) for row in amplitudes)
    rows = list(amplitudes) if nested else [amplitudes] * num_heads
    found = tuple(tuple(read_numbers("amplitudes", row)) for row in rows)
    if len(found) != num_heads or any(len(row) != num_waves for row in found):
        shape = (len(found), len(found[0]) if found else 0)
        raise ValueError(f"amplitudes must be ({num_heads}, {num_waves}), one for each head and wave, got {shape}")
    if not all(abs(value) < float("inf") for row in found for value in row):
        raise ValueError(f"amplitudes must be finite, got {amplitudes}")
    return found
