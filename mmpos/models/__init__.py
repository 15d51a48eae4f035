"""Small models that take an encoding in each of four slots, and the blocks to build more of them."""

from .blocks import Block
from .cache import Cache
from .generate import generate
from .grid import GridPositions
from .image import VisionTransformer
from .series import SeriesClassifier, SeriesForecaster
from .stack import LayerEncodings, StackEncodings
from .text import TextTransformer
from .times import TokenTimes

__all__ = [
    "Block",
    "Cache",
    "GridPositions",
    "LayerEncodings",
    "SeriesClassifier",
    "SeriesForecaster",
    "StackEncodings",
    "TextTransformer",
    "TokenTimes",
    "VisionTransformer",
    "generate",
]
