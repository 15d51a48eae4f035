"""Encodings of ours in the models of timm: added, exchanged, taken out, brought to another image size."""

from .additive import remove_pos_embed, replace_pos_embed
from .bias import add_bias
from .rotary import add_rotary
from .sizes import set_input_size
from .slot import Slot

__all__ = ["Slot", "add_bias", "add_rotary", "remove_pos_embed", "replace_pos_embed", "set_input_size"]
