"""Spectra: how fast each channel pair turns on each axis, and the exact cosines and sines that follow.

A phase matters only up to whole turns. So a frequency is kept as its share of a turn in units of 2^-64, an integer,
and multiplied with the coordinate in int64, whose overflow drops whole turns and nothing else. The cosine of the
remaining phase is an integer polynomial. There is no rounding before the last step, so the result is right at any
coordinate, and has the same bits in eager and compiled code and on every device.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal, localcontext

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

Frequencies = tuple[tuple[Decimal, ...], ...]  # (a, p), radians per coordinate unit

DIGITS = 60
TURN = Decimal("6.28318530717958647692528676655900576839433879875021164194988918")

# A coordinate is a sum of 32-bit limbs, limb k in units of 2^(32 k): integers have the first two, floats all four.
LIMBS = (0, 1, -1, -2)

# sin(pi / 2 x) / x as a polynomial of x^2 on [-1, 1] in units of 2^-31; minimax, off by 1.4e-11 at most.
QUARTER_SINE = (3373259426, -1387197326, 171138528, -10053703, 344064, -7341)


def geometric(base: float, width: int) -> tuple[Decimal, ...]:
    """Frequencies ``base ** (-2i / width)`` of the pairs ``i`` of ``width`` channels, to 60 digits.

    Reference:
        Vaswani et al., Attention is all you need, 2017, sec. 3.5. https://arxiv.org/abs/1706.03762
    """
    with localcontext(prec=DIGITS):
        return tuple(Decimal(base) ** (Decimal(-2 * i) / width) for i in range(width // 2))


def axial(width: int, axes: int, base: float) -> "Spectrum":
    """A block of ``width // axes`` channels for each axis, in axis order, each with the same geometric series."""
    block = geometric(base, width // axes)
    still = (Decimal(0),) * len(block)
    return Spectrum(tuple(still * axis + block + still * (axes - 1 - axis) for axis in range(axes)))


@dataclass(frozen=True)
class Given:
    """Frequencies as numbers: a row per axis, in radians per coordinate unit; 0 where an axis does not turn a pair.

    Example:
        >>> Given(((1.0, 0.5, 0.0, 0.0), (0.0, 0.0, 1.0, 0.5)))  # two pairs turn with y, two with x
        Given(freqs=((1.0, 0.5, 0.0, 0.0), (0.0, 0.0, 1.0, 0.5)))
    """

    freqs: Sequence[Sequence[float]]

    def __post_init__(self):
        rows = tuple(tuple(row) for row in self.freqs)
        if len({len(row) for row in rows}) != 1 or not rows[0]:
            raise ValueError(f"freqs must have a row of equal length for each axis, got lengths {[*map(len, rows)]}")
        if not all(math.isfinite(freq) for row in rows for freq in row):
            raise ValueError(f"freqs must be finite, got {rows}")
        object.__setattr__(self, "freqs", rows)

    def spectrum(self) -> "Spectrum":
        """The frequencies to the last digit."""
        return Spectrum(tuple(tuple(Decimal(freq) for freq in row) for row in self.freqs))


@dataclass(frozen=True)
class Mixed:
    """Learned frequencies of each head, with which a pair turns along all axes at once.

    A head starts with a random orthonormal frame of directions; the pairs of block ``j`` turn along its direction
    ``j`` with the geometric series of an axial encoding.

    Reference:
        Heo et al., Rotary position embedding for vision transformer, 2024, sec. 3.2. https://arxiv.org/abs/2403.13298
    """

    def draw(self, num_heads: int, axes: int, width: int, base: float) -> Float[Tensor, "h a p"]:
        """Initial frequencies of ``width // 2`` pairs in radians per coordinate unit."""
        frame, upper = torch.linalg.qr(torch.randn(num_heads, axes, axes))
        frame = frame * upper.diagonal(dim1=-2, dim2=-1).sign()[:, None]
        series = torch.tensor([float(freq) for freq in geometric(base, width // axes)])
        return (frame[..., None] * series).flatten(-2)


@dataclass(frozen=True)
class Spectrum:
    """Pair ``p`` turns by ``sum_a coords[a] * freqs[a][p]`` radians."""

    freqs: Frequencies
    steps: tuple[tuple[tuple[int, ...], ...], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self):
        steps = tuple(tuple(tuple(_turn_share(f, limb) for f in row) for row in self.freqs) for limb in LIMBS)
        object.__setattr__(self, "steps", steps)

    def cos_sin(self, coords: Shaped[Tensor, "*batch n a"]) -> tuple[Float[Tensor, "*batch n p"], ...]:
        """Cosine and sine of every pair's angle in float32, within 1e-7 of the true value at any coordinate.

        A coordinate that is NaN, infinite or beyond int64 gives NaN for its token.
        """
        if not coords.is_floating_point():
            return _cos_sin(self._phase(_integer_limbs(coords.to(torch.int64))))
        valid = (coords.abs() < 2**63).all(-1, keepdim=True)
        coords = coords.where(valid, 0)
        exact = _cos_sin(self._phase(_float_limbs(coords.detach())))
        cos, sin = (value.where(valid, torch.nan) for value in exact)
        return self._attach_gradient(coords, cos, sin) if coords.requires_grad else (cos, sin)

    def _phase(self, limbs: Sequence[Int[Tensor, "*batch n a"]]) -> Int[Tensor, "*batch n p"]:
        """The angle in units of 2^-64 turns, modulo whole turns."""
        steps = torch.tensor(self.steps[: len(limbs)], dtype=torch.int64, device=limbs[0].device)
        terms = [
            limb[..., axis, None] * row[axis]
            for limb, row in zip(limbs, steps, strict=True)
            for axis in range(len(self.freqs))
        ]
        return sum(terms[1:], terms[0])

    def _attach_gradient(self, coords, cos, sin):
        """Turns the exact values by an angle that is 0 and has the derivatives of the true one, of every order."""
        freqs = torch.tensor([[float(f) for f in row] for row in self.freqs], dtype=coords.dtype, device=coords.device)
        zero = ((coords - coords.detach())[..., None] * freqs).sum(-2)
        zero_cos, zero_sin = zero.cos(), zero.sin()
        return (cos * zero_cos - sin * zero_sin).float(), (sin * zero_cos + cos * zero_sin).float()


def learned_cos_sin(
    coords: Shaped[Tensor, "*batch n a"], freqs: Float[Tensor, "h a p"]
) -> tuple[Float[Tensor, "*batch h n p"], Float[Tensor, "*batch h n p"]]:
    """Cosine and sine in float32 of ``sum_a coords[a] * freqs[a, p]``, which is computed in float64."""
    coords, freqs = coords.double()[..., None, :, :], freqs.double()
    angles = coords[..., 0, None] * freqs[:, None, 0]
    for axis in range(1, coords.shape[-1]):
        angles = angles + coords[..., axis, None] * freqs[:, None, axis]
    return angles.cos().float(), angles.sin().float()


def _turn_share(freq: Decimal, limb: int) -> int:
    """The share of a turn that a coordinate step of ``2 ** (32 limb)`` makes, in units of 2^-64, as a signed int64."""
    with localcontext(prec=DIGITS):
        share = int((freq / TURN * Decimal(2) ** (64 + 32 * limb)).to_integral_value()) % 2**64
    return share - 2**64 if share >= 2**63 else share


def _integer_limbs(coords: Int[Tensor, "*shape"]) -> list[Int[Tensor, "*shape"]]:
    return [coords & 0xFFFFFFFF, coords >> 32]


def _float_limbs(coords: Float[Tensor, "*shape"]) -> list[Int[Tensor, "*shape"]]:
    """Exact: a float's fraction and its product with a power of two are floats again."""
    upper = coords.frac() * 2**32
    lower = upper.frac() * 2**32
    return [*_integer_limbs(coords.to(torch.int64)), upper.to(torch.int64), lower.to(torch.int64)]


def _cos_sin(phase: Int[Tensor, "*shape"]) -> tuple[Float[Tensor, "*shape"], Float[Tensor, "*shape"]]:
    # A quarter turn is 2^62. The sine of a phase is that of a triangle wave between minus and plus a quarter turn.
    quarter = 2**62
    wave = torch.stack([phase, phase - quarter]).abs_().neg_().add_(quarter)
    x = wave.bitwise_right_shift_(31)
    square = (x * x).bitwise_right_shift_(31)
    result = torch.full_like(x, QUARTER_SINE[-1])
    for coefficient in QUARTER_SINE[-2::-1]:
        result = result.mul_(square).bitwise_right_shift_(31).add_(coefficient)
    cos, sin = result.mul_(x).float().mul_(2.0**-62).unbind()
    return cos, sin
