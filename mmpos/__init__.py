"""Positional encodings for every modality: coordinates, four mechanisms and one factory.

The names below are in reading order: where tokens are, what encodes it, how it is made by name, where it is used.
`mmpos.models`, `mmpos.data`, `mmpos.training` and `mmpos.testing` load when they are first used.
"""

import importlib

from . import scaling
from .attend import Attention, attention
from .coords import (
    grid_coords,
    packed_coords,
    padded_coords,
    sequence_coords,
    sphere_coords,
    video_coords,
    volume_coords,
)
from .encodings import (
    TAPE,
    AdditiveEncoding,
    ALiBi,
    AttentionBias,
    Concat,
    CoordinateMLP,
    FactorizedTable,
    Fourier,
    GaussianFourier,
    LearnableFourier,
    LearnedTable,
    LogitScale,
    Octaves,
    RoPE,
    RotaryEncoding,
    Rotation,
    Sinusoidal,
    Sum,
    Time2Vec,
)
from .encodings.rotary import XPos
from .factory import Encodings, create_encoding, list_encodings, load_encodings, register_encoding
from .frequencies import Bands, Geometric, Harmonics, Periods
from .layout import convert_layout
from .spectra import Axial, Given, Learned, Mixed, Sections, Shared
from .transforms import jitter, normalise, normalise_padded, rescale, shift, skip, subsample

__version__ = "0.1.0"

__all__ = [
    "TAPE",
    "ALiBi",
    "AdditiveEncoding",
    "Attention",
    "AttentionBias",
    "Axial",
    "Bands",
    "Concat",
    "CoordinateMLP",
    "Encodings",
    "FactorizedTable",
    "Fourier",
    "GaussianFourier",
    "Geometric",
    "Given",
    "Harmonics",
    "LearnableFourier",
    "Learned",
    "LearnedTable",
    "LogitScale",
    "Mixed",
    "Octaves",
    "Periods",
    "RoPE",
    "RotaryEncoding",
    "Rotation",
    "Sections",
    "Shared",
    "Sinusoidal",
    "Sum",
    "Time2Vec",
    "XPos",
    "attention",
    "convert_layout",
    "create_encoding",
    "grid_coords",
    "jitter",
    "list_encodings",
    "load_encodings",
    "normalise",
    "normalise_padded",
    "packed_coords",
    "padded_coords",
    "register_encoding",
    "rescale",
    "scaling",
    "sequence_coords",
    "shift",
    "skip",
    "sphere_coords",
    "subsample",
    "video_coords",
    "volume_coords",
]

LAZY = ("data", "models", "testing", "training")


def __getattr__(name: str):
    if name in LAZY:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
