"""Positional encodings for every modality: coordinates, four mechanisms and one factory.

The names below are in reading order: where tokens are, what encodes it, how it is made by name, where it is used.
`mmpos.models`, `mmpos.data`, `mmpos.training` and `mmpos.testing` load when they are first used.
"""

import importlib

from .attend import Attention, attention
from .coords import grid_coords, packed_coords, padded_coords, sequence_coords, video_coords, volume_coords
from .encodings import (
    AdditiveEncoding,
    ALiBi,
    AttentionBias,
    LearnedTable,
    LogitScale,
    RoPE,
    RotaryEncoding,
    Rotation,
    Sinusoidal,
)
from .factory import Encodings, create_encoding, list_encodings, load_encodings, register_encoding

__version__ = "0.1.0"

__all__ = [
    "ALiBi",
    "AdditiveEncoding",
    "Attention",
    "AttentionBias",
    "Encodings",
    "LearnedTable",
    "LogitScale",
    "RoPE",
    "RotaryEncoding",
    "Rotation",
    "Sinusoidal",
    "attention",
    "create_encoding",
    "grid_coords",
    "list_encodings",
    "load_encodings",
    "packed_coords",
    "padded_coords",
    "register_encoding",
    "sequence_coords",
    "video_coords",
    "volume_coords",
]

LAZY = ("data", "models", "testing", "training")


def __getattr__(name: str):
    if name in LAZY:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
