"""Encodings that are added to tokens."""

from .sinusoidal import Sinusoidal
from .tables import LearnedTable

__all__ = ["LearnedTable", "Sinusoidal"]
