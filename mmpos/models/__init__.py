"""Small models that take an encoding in each of four slots, and the blocks to build more of them."""

from .blocks import Block
from .cache import Cache
from .generate import generate
from .grid import GridPositions
from .image import VisionTransformer
from .mixed import MixedRows
from .multimodal import MultimodalTransformer
from .series import SeriesClassifier, SeriesForecaster
from .stack import LayerEncodings, StackEncodings
from .text import TextTransformer
from .times import TokenTimes
from .video import VideoTransformer

__all__ = [
    "Block",
    "Cache",
    "GridPositions",
    "LayerEncodings",
    "MixedRows",
    "MultimodalTransformer",
    "SeriesClassifier",
    "SeriesForecaster",
    "StackEncodings",
    "TextTransformer",
    "TokenTimes",
    "VideoTransformer",
    "VisionTransformer",
    "generate",
]
