"""Learned tables on a new grid."""

from .bias import resample_bias_table
from .grid import resample_table
from .prefix import resample_pos_embed, split_pos_embed

__all__ = ["resample_bias_table", "resample_pos_embed", "resample_table", "split_pos_embed"]
