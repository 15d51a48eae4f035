"""Where tokens of several modalities are that stand in one sequence: segments, rules that place them, and rows."""

from .placement import Placement
from .rows import MultimodalCoords, multimodal_coords
from .rules import register_rule
from .segments import Audio, Bare, Image, Segment, Series, Text, Together, Video

__all__ = [
    "Audio",
    "Bare",
    "Image",
    "MultimodalCoords",
    "Placement",
    "Segment",
    "Series",
    "Text",
    "Together",
    "Video",
    "multimodal_coords",
    "register_rule",
]
