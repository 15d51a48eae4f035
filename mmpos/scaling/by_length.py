"""Scalings that depend on the length of a row, and the spectra that they lead to."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from ..arguments import check_number, check_sequence, move
from ..frequencies import Pair, Place, Spectrum, angles
from .base import Scaling, ntk_power, series_place


@dataclass(frozen=True)
class DynamicNTK(Scaling):
    """`NTK` by the factor ``factor * length / train_length - (factor - 1)`` of each row past ``train_length``.

    Args:
        factor: How fast the base grows with the length.
        train_length: Length up to which nothing changes.

    Reference:
        emozilla, Dynamically scaled RoPE, 2023; Peng et al., YaRN, 2023, sec. 3.3. https://arxiv.org/abs/2309.00071
    """

    factor: float
    train_length: int

    def __post_init__(self):
        check_number("factor", self.factor)
        check_number("train_length", self.train_length)

    def frequency(self, freq: Decimal, place: Place | None) -> Decimal:
        series_place(self, place)
        return freq


@dataclass(frozen=True)
class LongRoPE(Scaling):
    """Divides the frequency of pair ``i`` by a given number, another one past ``train_length``.

    A row takes the long factors when its length is more than ``train_length``, all of its tokens alike.

    Args:
        short_factors: A divisor for each pair, up to ``train_length``.
        long_factors: A divisor for each pair, past it.
        train_length: Length before the extension.
        factor: Ratio of extension, for the attention factor.
        attention_factor: Multiplies cosine and sine for both lists; ``sqrt(1 + ln(factor) / ln(train_length))``
            unless given, and 1 without a factor.

    Reference:
        Ding et al., LongRoPE, 2024. https://arxiv.org/abs/2402.13753
        The attention factor is that of Phi-3's released code.
    """

    short_factors: Sequence[float]
    long_factors: Sequence[float]
    train_length: int
    factor: float | None = None
    attention_factor: float | None = None

    def __post_init__(self):
        for name in ("short_factors", "long_factors"):
            check_sequence(name, getattr(self, name))
            object.__setattr__(self, name, tuple(getattr(self, name)))
            for value in getattr(self, name):
                check_number(name, value)
        if len(self.short_factors) != len(self.long_factors):
            raise ValueError(
                "short_factors and long_factors must be of equal length, "
                f"got {len(self.short_factors)} and {len(self.long_factors)}"
            )
        check_number("train_length", self.train_length)
        for name in ("factor", "attention_factor"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name))

    def frequency(self, freq: Decimal, place: Place | None) -> Decimal:
        index, _, width = series_place(self, place)
        if len(self.short_factors) != width // 2:
            raise ValueError(
                f"LongRoPE has {len(self.short_factors)} factors for the {width // 2} pairs of the spectrum"
            )
        return freq / Decimal(self.short_factors[index])

    def attention(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        if self.factor is None or self.factor <= 1:
            return 1.0
        if self.train_length == 1:
            raise ValueError("train_length must be more than 1 for an attention factor by its logarithm, got 1")
        return math.sqrt(1 + math.log(self.factor) / math.log(self.train_length))

    def long(self) -> "LongRoPE":
        """The scaling of rows past ``train_length``, as a short one."""
        return replace(self, short_factors=self.long_factors)


@dataclass(frozen=True)
class Switched:
    """A spectrum for rows up to ``train_length`` and another one for longer rows."""

    short: Spectrum
    long: Spectrum
    train_length: int

    @property
    def factors(self) -> tuple[tuple[float, ...], ...] | None:
        return self.short.factors

    def cos_sin(
        self, coords: Shaped[Tensor, "*batch n a"], length: int | Int[Tensor, "*rows"] | None = None
    ) -> tuple[Float[Tensor, "*batch h n p"], Float[Tensor, "*batch h n p"]]:
        if length is None:
            length = own_length(coords, "LongRoPE")
            self._refuse_crossing(coords, length)
        if isinstance(length, int):
            return (self.long if length > self.train_length else self.short).cos_sin(coords)
        past = (move("length", length, coords.device) > self.train_length)[..., None, None, None]
        short, long = self.short.cos_sin(coords), self.long.cos_sin(coords)
        return long[0].where(past, short[0]), long[1].where(past, short[1])

    def _refuse_crossing(self, coords: Tensor, length: Tensor) -> None:
        if coords.is_meta or not coords.numel():
            return
        first = (coords.nan_to_num(0, 0, 0) if coords.is_floating_point() else coords).flatten(-2).amin(-1)
        crossing = (first > 0) & (length > self.train_length)
        if crossing.any():
            raise ValueError(
                f"this call starts past 0 and passes train_length ({self.train_length}), where LongRoPE changes "
                "frequencies, so that keys cached before would not fit: give length, the same in all calls of a row"
            )


@dataclass(frozen=True)
class Growing:
    """A spectrum whose bases grow with the length of each row, on some of its axes."""

    start: Spectrum
    scaling: DynamicNTK
    grows: tuple[bool, ...]
    powers: tuple[tuple[tuple[float, ...], ...], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self):
        def power(pair: Pair, axis: int) -> float:
            return float(ntk_power(pair.place)) if self.grows[axis] and pair.freqs[axis] and pair.place else 0.0

        axes = range(len(self.grows))
        powers = tuple(tuple(tuple(power(p, axis) for p in head) for axis in axes) for head in self.start.heads)
        object.__setattr__(self, "powers", powers)

    @property
    def factors(self) -> tuple[tuple[float, ...], ...] | None:
        return self.start.factors

    def cos_sin(
        self, coords: Shaped[Tensor, "*batch n a"], length: int | Int[Tensor, "*rows"] | None = None
    ) -> tuple[Float[Tensor, "*batch h n p"], Float[Tensor, "*batch h n p"]]:
        length = own_length(coords, "DynamicNTK") if length is None else length
        length = move("length", torch.as_tensor(length), coords.device)
        ratio = length.double() / self.scaling.train_length
        growth = self.scaling.factor * ratio.clamp(min=1) - (self.scaling.factor - 1)
        freqs = self.start.tensor(torch.float64, coords.device)
        powers = torch.tensor(self.powers, dtype=torch.float64, device=coords.device)
        turned = angles(coords.double(), freqs * growth[..., None, None, None] ** powers)
        return turned.cos().float(), turned.sin().float()


def own_length(coords: Shaped[Tensor, "*batch n a"], name: str) -> Shaped[Tensor, "*batch"]:
    """Each row's largest coordinate + 1, where no length is given."""
    if torch.compiler.is_compiling():
        raise ValueError(f"{name} depends on the length, which must be given under compile and export")
    coords = coords.nan_to_num(0, 0, 0).double() if coords.is_floating_point() else coords.long()
    return torch.nn.functional.pad(coords.flatten(-2), (1, 0)).amax(-1) + 1
