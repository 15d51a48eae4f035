"""Positional encodings, one file for each way a transformer takes position in."""

from .additive import LearnedTable, Sinusoidal
from .base import AdditiveEncoding, AttentionBias, Encoding, LogitScale, RotaryEncoding, Rotation
from .bias import ALiBi
from .checks import check_coords
from .rotary import RoPE

__all__ = [
    "ALiBi",
    "AdditiveEncoding",
    "AttentionBias",
    "Encoding",
    "LearnedTable",
    "LogitScale",
    "RoPE",
    "RotaryEncoding",
    "Rotation",
    "Sinusoidal",
    "check_coords",
]
