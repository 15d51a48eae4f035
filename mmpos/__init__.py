"""Positional encodings for every modality: coordinates, four mechanisms and one factory.

The names below are in reading order: where tokens are, what encodes it, how it is made by name, where it is used.
`mmpos.models`, `mmpos.data`, `mmpos.training`, `mmpos.diagnostics` and `mmpos.testing` load when they are first used.
"""

import importlib

from . import masks, scaling
from .attend import Attention, attention
from .calendar import (
    Frequency,
    calendar_coords,
    calendar_fields,
    calendar_ramps,
    event_coords,
    parse_frequency,
    time_coords,
)
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
    FactorizedTable,
    Fourier,
    GaussianFourier,
    GroupBias,
    HeadScale,
    LearnableFourier,
    LearnedTable,
    LogitScale,
    LogScale,
    Octaves,
    PeriodicBias,
    RadialBasis,
    RelativeLogits,
    RelativeSinusoids,
    RoPE,
    RotaryEncoding,
    Rotation,
    Seasonal,
    Sinusoidal,
    SSMax,
    Sum,
    SwinBias,
    T5Bias,
    Time2Vec,
    fuse_rotations,
    sandwich_bias,
)
from .encodings.rotary import XPos
from .factory import Encodings, create_encoding, list_encodings, load_encodings, register_encoding
from .frequencies import Bands, Geometric, Harmonics, Periods, Seasons
from .layout import convert_layout
from .multimodal import (
    Audio,
    Bare,
    Image,
    MultimodalCoords,
    Series,
    Text,
    Together,
    Video,
    multimodal_coords,
    register_rule,
)
from .resample import resample_bias_table, resample_pos_embed, resample_table, split_pos_embed
from .spectra import Axial, Given, Learned, Mixed, Sections, Shared
from .transforms import jitter, normalise, normalise_padded, rescale, shift, skip, subsample

__version__ = "0.1.0"

__all__ = [
    "ERPE",
    "FIRE",
    "KERPLE",
    "TAPE",
    "ALiBi",
    "AdditiveEncoding",
    "Attention",
    "AttentionBias",
    "Audio",
    "Axial",
    "Bands",
    "Bare",
    "Concat",
    "ContinuousBias",
    "CoordinateMLP",
    "Encodings",
    "FactorizedTable",
    "Fourier",
    "Frequency",
    "GaussianFourier",
    "Geometric",
    "Given",
    "GroupBias",
    "Harmonics",
    "HeadScale",
    "Image",
    "LearnableFourier",
    "Learned",
    "LearnedTable",
    "LogScale",
    "LogitScale",
    "Mixed",
    "MultimodalCoords",
    "Octaves",
    "PeriodicBias",
    "Periods",
    "RadialBasis",
    "RelativeLogits",
    "RelativeSinusoids",
    "RoPE",
    "RotaryEncoding",
    "Rotation",
    "SSMax",
    "Seasonal",
    "Seasons",
    "Sections",
    "Series",
    "Shared",
    "Sinusoidal",
    "Sum",
    "SwinBias",
    "T5Bias",
    "Text",
    "Time2Vec",
    "Together",
    "Video",
    "XPos",
    "attention",
    "calendar_coords",
    "calendar_fields",
    "calendar_ramps",
    "convert_layout",
    "create_encoding",
    "event_coords",
    "fuse_rotations",
    "grid_coords",
    "jitter",
    "list_encodings",
    "load_encodings",
    "masks",
    "multimodal_coords",
    "normalise",
    "normalise_padded",
    "packed_coords",
    "padded_coords",
    "parse_frequency",
    "register_encoding",
    "register_rule",
    "resample_bias_table",
    "resample_pos_embed",
    "resample_table",
    "rescale",
    "sandwich_bias",
    "scaling",
    "sequence_coords",
    "shift",
    "skip",
    "sphere_coords",
    "split_pos_embed",
    "subsample",
    "time_coords",
    "video_coords",
    "volume_coords",
]

LAZY = ("data", "diagnostics", "models", "testing", "training")


def __getattr__(name: str):
    if name in LAZY:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
