"""Rotary encodings and attention biases of transformers' models: read, exchanged, extended, described."""

from .biases import bias_from_model, replace_bias, restore_bias
from .config import rope_from_config, rope_to_config
from .describe import Description, Layer, describe
from .module import TransformersRotary
from .replace import extend_context, remove_rope, replace_rope, restore_rope

__all__ = [
    "Description",
    "Layer",
    "TransformersRotary",
    "bias_from_model",
    "describe",
    "extend_context",
    "remove_rope",
    "replace_bias",
    "replace_rope",
    "restore_bias",
    "restore_rope",
    "rope_from_config",
    "rope_to_config",
]
