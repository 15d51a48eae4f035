"""The spectrum: radians per coordinate unit of every channel pair on every axis, and its exact evaluation."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, localcontext
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from ..phases import DIGITS, TURN, Steps, exact_cos_sin, phase_steps

ROUNDING = Decimal("1e-40")  # of a turn, far above that of 60 digits and far below what int64 can tell


class Place(NamedTuple):
    """The place of a pair in a geometric series, ``base ** (-2 number / width)``: what NTK and YaRN go by."""

    number: int
    base: float
    width: int


class Pair(NamedTuple):
    """A channel pair: radians per coordinate unit on each axis, its place in a series, its attention factor."""

    freqs: tuple[Decimal, ...]
    place: Place | None = None
    factor: float = 1.0


@dataclass(frozen=True)
class Spectrum:
    """The pairs of each head; one head stands for all.

    An axis on which every pair repeats after a whole number of units has that as its period, others have 0.
    Attention factors are ``(h, p)``, None where all are 1. Compiled for any size, tuples of numbers are constants; each
    number of a list, or of a pair, would be an input of its own.
    """

    heads: tuple[tuple[Pair, ...], ...]
    steps: Steps = field(init=False, repr=False, compare=False)
    floats: tuple[tuple[tuple[float, ...], ...], ...] = field(init=False, repr=False, compare=False)
    periods: tuple[int, ...] = field(init=False, repr=False, compare=False)
    factors: tuple[tuple[float, ...], ...] | None = field(init=False, repr=False, compare=False)

    def __post_init__(self):
        if not self.heads or not self.heads[0]:
            raise ValueError("the spectrum has no pair that turns")
        object.__setattr__(self, "steps", phase_steps(self.rows()))
        floats = tuple(tuple(tuple(map(float, row)) for row in head) for head in self.rows())
        object.__setattr__(self, "floats", floats)
        axes = zip(*(pair.freqs for head in self.heads for pair in head), strict=True)
        object.__setattr__(self, "periods", tuple(map(_whole_period, axes)))
        factors = tuple(tuple(pair.factor for pair in head) for head in self.heads)
        object.__setattr__(self, "factors", None if set().union(*factors) == {1} else factors)

    def rows(self) -> list[list[tuple[Decimal, ...]]]:
        """The frequencies ``(h, a, p)`` in radians per coordinate unit."""
        return [list(zip(*(pair.freqs for pair in head), strict=True)) for head in self.heads]

    def tensor(self, dtype: torch.dtype, device: torch.device) -> Float[Tensor, "h a p"]:
        """The frequencies as floats."""
        return torch.tensor(self.floats, dtype=dtype, device=device)

    def map(self, change: Callable[[Pair], Pair]) -> "Spectrum":
        """The spectrum with every pair changed."""
        return Spectrum(tuple(tuple(map(change, head)) for head in self.heads))

    def cos_sin(
        self, coords: Shaped[Tensor, "*batch n a"], length: int | Int[Tensor, "*rows"] | None = None
    ) -> tuple[Float[Tensor, "*batch h n p"], Float[Tensor, "*batch h n p"]]:
        """Cosine and sine of every angle in float32, exact at any coordinate, with gradients to float ones."""
        cos, sin = exact_cos_sin(self._wrap(coords.detach()), self.steps)
        if not coords.requires_grad:
            return cos, sin
        # Turn by an angle that is 0 and has the derivatives of the true one, of every order.
        coords = coords.where(coords.isfinite(), 0)
        zero = angles(coords - coords.detach(), self.tensor(coords.dtype, coords.device))
        zero_cos, zero_sin = zero.cos(), zero.sin()
        return (cos * zero_cos - sin * zero_sin).float(), (sin * zero_cos + cos * zero_sin).float()

    def _wrap(self, coords: Shaped[Tensor, "*batch n a"]) -> Shaped[Tensor, "*batch n a"]:
        """Integer coordinates modulo the periods, without which a seam of 2^-33 turns would show in the last bits."""
        if coords.is_floating_point() or not any(self.periods):
            return coords
        columns = zip(coords.to(torch.int64).unbind(-1), self.periods, strict=True)
        return torch.stack([column % period if period else column for column, period in columns], dim=-1)


def angles(coords: Float[Tensor, "*batch n a"], freqs: Float[Tensor, "*#batch h a p"]) -> Float[Tensor, "*batch h n p"]:
    """``sum_a coords[a] * freqs[a, p]`` by elementwise products, which autocast leaves alone."""
    coords = coords[..., None, :, :]
    total = coords[..., 0, None] * freqs[..., None, 0, :]
    for axis in range(1, coords.shape[-1]):
        total = total + coords[..., axis, None] * freqs[..., None, axis, :]
    return total


def block_spectrum(blocks: Sequence[Sequence[Decimal]]) -> Spectrum:
    """A block of pairs for each axis, in axis order, from their frequencies."""
    axes = range(len(blocks))
    pairs = [Pair(tuple(freq if own == axis else Decimal(0) for own in axes)) for axis in axes for freq in blocks[axis]]
    return Spectrum((tuple(pairs),))


def _whole_period(freqs: Iterable[Decimal]) -> int:
    """The whole number of units after which all frequencies, in radians per unit, repeat; 0 if there is none."""
    with localcontext(prec=DIGITS):
        turns = [abs(freq) / TURN for freq in freqs if freq]
        period = int((1 / min(turns)).to_integral_value()) if turns else 0
        counts = [share * period for share in turns]
        whole = all(abs(count - count.to_integral_value()) < ROUNDING for count in counts)
        return period if whole and period < 2**63 else 0
