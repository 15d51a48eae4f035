"""Positional encodings, one file for each way a transformer takes position in."""

from .additive import (
    TAPE,
    Concat,
    CoordinateMLP,
    FactorizedTable,
    Fourier,
    GaussianFourier,
    LearnableFourier,
    LearnedTable,
    Octaves,
    Sinusoidal,
    Sum,
    Time2Vec,
)
from .base import AdditiveEncoding, AttentionBias, Encoding, LogitScale, RotaryEncoding, Rotation
from .bias import ALiBi
from .checks import check_coords
from .rotary import RoPE

__all__ = [
    "TAPE",
    "ALiBi",
    "AdditiveEncoding",
    "AttentionBias",
    "Concat",
    "CoordinateMLP",
    "Encoding",
    "FactorizedTable",
    "Fourier",
    "GaussianFourier",
    "LearnableFourier",
    "LearnedTable",
    "LogitScale",
    "Octaves",
    "RoPE",
    "RotaryEncoding",
    "Rotation",
    "Sinusoidal",
    "Sum",
    "Time2Vec",
    "check_coords",
]
