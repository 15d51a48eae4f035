"""The one table of encodings by name."""

from collections.abc import Callable
from typing import Literal

from torch import nn

from .encodings import (
    ERPE,
    FIRE,
    KERPLE,
    TAPE,
    AdditiveEncoding,
    ALiBi,
    AttentionBias,
    Concat,
    ContinuousBias,
    CoordinateMLP,
    Encoding,
    FactorizedTable,
    Fourier,
    GaussianFourier,
    GroupBias,
    HeadScale,
    LearnableFourier,
    LearnedTable,
    LogitScale,
    LogScale,
    PeriodicBias,
    RadialBasis,
    RelativeLogits,
    RelativeSinusoids,
    RoPE,
    RotaryEncoding,
    Seasonal,
    Sinusoidal,
    SSMax,
    Sum,
    SwinBias,
    T5Bias,
    Time2Vec,
    sandwich_bias,
)

Kind = Literal["additive", "rotary", "bias", "scale"]

INTERFACES: dict[Kind, type[Encoding]] = {
    "additive": AdditiveEncoding,
    "rotary": RotaryEncoding,
    "bias": AttentionBias,
    "scale": LogitScale,
}

ENCODINGS: dict[str, tuple[Kind, Callable[..., nn.Module]]] = {
    "Concat": ("additive", Concat),
    "CoordinateMLP": ("additive", CoordinateMLP),
    "FactorizedTable": ("additive", FactorizedTable),
    "Fourier": ("additive", Fourier),
    "GaussianFourier": ("additive", GaussianFourier),
    "LearnableFourier": ("additive", LearnableFourier),
    "LearnedTable": ("additive", LearnedTable),
    "RadialBasis": ("additive", RadialBasis),
    "Seasonal": ("additive", Seasonal),
    "Sinusoidal": ("additive", Sinusoidal),
    "Sum": ("additive", Sum),
    "TAPE": ("additive", TAPE),
    "Time2Vec": ("additive", Time2Vec),
    "RoPE": ("rotary", RoPE),
    "ALiBi": ("bias", ALiBi),
    "ContinuousBias": ("bias", ContinuousBias),
    "ERPE": ("bias", ERPE),
    "FIRE": ("bias", FIRE),
    "GroupBias": ("bias", GroupBias),
    "KERPLE": ("bias", KERPLE),
    "PeriodicBias": ("bias", PeriodicBias),
    "RelativeLogits": ("bias", RelativeLogits),
    "RelativeSinusoids": ("bias", RelativeSinusoids),
    "Sandwich": ("bias", sandwich_bias),
    "SwinBias": ("bias", SwinBias),
    "T5Bias": ("bias", T5Bias),
    "HeadScale": ("scale", HeadScale),
    "LogScale": ("scale", LogScale),
    "SSMax": ("scale", SSMax),
}
