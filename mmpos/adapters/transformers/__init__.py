"""Rotary encodings of transformers' models: read from configs, exchanged, extended, described."""

from .config import rope_from_config, rope_to_config
from .describe import Description, Layer, describe
from .module import TransformersRotary
from .replace import extend_context, remove_rope, replace_rope, restore_rope

__all__ = [
    "Description",
    "Layer",
    "TransformersRotary",
    "describe",
    "extend_context",
    "remove_rope",
    "replace_rope",
    "restore_rope",
    "rope_from_config",
    "rope_to_config",
]
