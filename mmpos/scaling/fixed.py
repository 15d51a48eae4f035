"""Scalings that change frequencies once and for all."""

import math
from dataclasses import dataclass
from decimal import Decimal

from ..arguments import check_count, check_flag, check_number, check_real
from ..frequencies import Place
from ..phases import TURN
from .base import Scaling, ntk_power, series_place


@dataclass(frozen=True)
class PositionInterpolation(Scaling):
    """Divides every frequency by ``factor``: position ``n`` turns as ``n / factor`` did.

    Reference:
        Chen et al., Extending context window of large language models via positional interpolation, 2023.
        https://arxiv.org/abs/2306.15595
    """

    factor: float

    def __post_init__(self):
        check_number("factor", self.factor)

    def frequency(self, freq: Decimal, place: Place | None) -> Decimal:
        return freq / Decimal(self.factor)


@dataclass(frozen=True)
class NTK(Scaling):
    """Enlarges the base by ``factor ** (width / (width - 2))``: the slowest pair is interpolated, the fastest kept.

    Reference:
        bloc97, NTK-aware scaled RoPE, 2023; Peng et al., YaRN, 2023, sec. 3.1. https://arxiv.org/abs/2309.00071
    """

    factor: float

    def __post_init__(self):
        check_number("factor", self.factor)

    def frequency(self, freq: Decimal, place: Place | None) -> Decimal:
        return freq * Decimal(self.factor) ** ntk_power(series_place(self, place))


@dataclass(frozen=True)
class YaRN(Scaling):
    """Interpolates slow pairs by ``factor``, keeps fast ones, and blends the frequencies of those between.

    Pair ``i`` is blended by ``ramp = (i - low) / (high - low)``, cut to 0 and 1, where ``low`` and ``high`` are the
    pairs that turn ``beta_fast`` and ``beta_slow`` times over ``train_length``.

    Args:
        factor: Ratio of extension.
        train_length: Length before it, in coordinate units.
        beta_fast: Pairs with more turns are kept.
        beta_slow: Pairs with fewer turns are interpolated.
        truncate: Whether ``low`` and ``high`` are rounded outwards to whole pairs.
        attention_factor: Multiplies cosine and sine; ``0.1 ln(factor) + 1`` unless given.
        mscale: With ``mscale_all_dim``, the attention factor is the ratio
            ``(0.1 mscale ln(factor) + 1) / (0.1 mscale_all_dim ln(factor) + 1)``.
        mscale_all_dim: See ``mscale``.

    Reference:
        Peng et al., YaRN, 2023, sec. 3.2 and 3.4. https://arxiv.org/abs/2309.00071
        truncate and the two mscale are those of transformers' configs.
    """

    factor: float
    train_length: float
    beta_fast: float = 32
    beta_slow: float = 1
    truncate: bool = True
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None

    def __post_init__(self):
        check_number("factor", self.factor)
        check_number("train_length", self.train_length)
        for name in ("beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name))
        check_flag("truncate", self.truncate)
        if not 0 < self.beta_slow < self.beta_fast:
            raise ValueError(f"need 0 < beta_slow < beta_fast, got {self.beta_slow} and {self.beta_fast}")

    def frequency(self, freq: Decimal, place: Place | None) -> Decimal:
        index, base, width = series_place(self, place)
        if base == 1:
            raise ValueError("YaRN needs a base other than 1, with which all pairs turn alike")

        def pair_with(turns: float) -> float:
            return width * math.log(self.train_length / (turns * 2 * math.pi)) / (2 * math.log(base))

        low, high = pair_with(self.beta_fast), pair_with(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, width - 1)
        if low == high:
            high += 0.001
        ramp = Decimal(min(max((index - low) / (high - low), 0), 1))
        return freq * (1 - ramp * (1 - 1 / Decimal(self.factor)))

    def attention(self) -> float:
        def growth(weight: float) -> float:
            return 1.0 if self.factor <= 1 else 0.1 * weight * math.log(self.factor) + 1.0

        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return growth(self.mscale) / growth(self.mscale_all_dim)
        return growth(1.0)


@dataclass(frozen=True)
class Llama3(Scaling):
    """Interpolates pairs with long periods by ``factor``, keeps those with short ones, and blends between.

    With ``turns = train_length / period``: below ``low_freq_factor`` turns a pair is interpolated, above
    ``high_freq_factor`` it is kept, and between them its frequency is blended linearly in the turns.

    Reference:
        Dubey et al., The Llama 3 herd of models, 2024, and its released code. https://arxiv.org/abs/2407.21783
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    train_length: int

    def __post_init__(self):
        for name in ("factor", "low_freq_factor", "high_freq_factor", "train_length"):
            check_number(name, getattr(self, name))
        if self.low_freq_factor >= self.high_freq_factor:
            raise ValueError(
                f"low_freq_factor ({self.low_freq_factor}) must be less than high_freq_factor ({self.high_freq_factor})"
            )

    def frequency(self, freq: Decimal, place: Place | None) -> Decimal:
        series_place(self, place)
        low, high = Decimal(self.low_freq_factor), Decimal(self.high_freq_factor)
        kept = min(max((Decimal(self.train_length) * freq / TURN - low) / (high - low), Decimal(0)), Decimal(1))
        return freq * (1 - (1 - kept) * (1 - 1 / Decimal(self.factor)))


@dataclass(frozen=True)
class Proportional(Scaling):
    """Stops all pairs of a series but the first ``int(share * width / 2)``; the others keep their frequency.

    Unlike a smaller ``rotary_dim``, the pairs that turn keep the frequencies of the whole width.

    Reference:
        The "proportional" rope type of transformers, which Gemma 4 uses.
    """

    share: float

    def __post_init__(self):
        check_real("share", self.share)
        if not 0 <= self.share <= 1:
            raise ValueError(f"share must be from 0 to 1, got {self.share}")

    def frequency(self, freq: Decimal, place: Place | None) -> Decimal:
        index, _, width = series_place(self, place)
        return freq if index < int(self.share * width / 2) else Decimal(0)


@dataclass(frozen=True)
class RIFLEx(Scaling):
    """Slows the pair whose period a longer video would repeat to less than one turn over ``length``.

    Args:
        index: The pair, from 0, that governs repetition; the one whose period is nearest the trained length.
        length: The new length, over which that pair turns 0.9 times.

    Reference:
        Zhao et al., RIFLEx, 2025, sec. 4. https://arxiv.org/abs/2502.15894
    """

    index: int
    length: float

    def __post_init__(self):
        check_number("length", self.length)
        check_count("index", self.index)

    def frequency(self, freq: Decimal, place: Place | None) -> Decimal:
        index, _, width = series_place(self, place)
        if self.index >= width // 2:
            raise ValueError(f"index ({self.index}) must be less than the pairs of the axis ({width // 2})")
        return Decimal("0.9") * TURN / Decimal(self.length) if index == self.index else freq


@dataclass(frozen=True)
class ClipLow(Scaling):
    """Stops pairs that did not finish a turn over ``train_length``: angles that training never saw do not arise.

    Reference:
        Barbero et al., Round and round we go, 2024, sec. 6 (p-RoPE). https://arxiv.org/abs/2410.06205
    """

    train_length: float

    def __post_init__(self):
        check_number("train_length", self.train_length)

    def frequency(self, freq: Decimal, place: Place | None) -> Decimal:
        return freq if abs(freq) * Decimal(self.train_length) >= TURN else Decimal(0)
