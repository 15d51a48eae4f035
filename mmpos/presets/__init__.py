"""What papers and released models chose: a few numbers each, for an encoding of the factory.

Sizes are those of the model named beside them, and any argument can be overridden. Coordinates are integers from 0,
``(t)``, ``(y, x)`` or ``(t, y, x)``, unless the comment says otherwise.
"""

from .additive import ADDITIVE
from .base import Preset
from .logits import LOGITS
from .rotary import ROTARY

PRESETS: dict[str, Preset] = ADDITIVE | ROTARY | LOGITS

__all__ = ["PRESETS", "Preset"]
