"""Small models that take an encoding in each of four slots, and the blocks to build more of them."""

from .blocks import Block, LayerEncodings, StackEncodings
from .grid import GridPositions
from .image import VisionTransformer

__all__ = ["Block", "GridPositions", "LayerEncodings", "StackEncodings", "VisionTransformer"]
