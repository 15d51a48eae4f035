"""Encodings that are added to tokens."""

from .combine import Concat, Sum
from .fourier import Fourier, GaussianFourier, LearnableFourier, Octaves
from .mlp import CoordinateMLP
from .radial import RadialBasis
from .seasonal import Seasonal
from .sinusoidal import Sinusoidal
from .tables import FactorizedTable, LearnedTable
from .temporal import TAPE, Time2Vec

__all__ = [
    "TAPE",
    "Concat",
    "CoordinateMLP",
    "FactorizedTable",
    "Fourier",
    "GaussianFourier",
    "LearnableFourier",
    "LearnedTable",
    "Octaves",
    "RadialBasis",
    "Seasonal",
    "Sinusoidal",
    "Sum",
    "Time2Vec",
]
