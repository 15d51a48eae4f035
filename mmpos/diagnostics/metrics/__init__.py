"""What an encoding does, in tensors and numbers; no matplotlib."""

from .attention import attention_distance, attention_entropy, by_distance, distances, offsets
from .bias import bias_matrix, bias_reach, bias_slopes
from .extension import extended_periods, usual_scalings
from .rotation import rotation_gap, shift_gap, turned
from .similarity import similarity
from .spectrum import PeriodRow, Wave, additive_waves, period_rows, rotary_decay, rotary_freqs

__all__ = [
    "PeriodRow",
    "Wave",
    "additive_waves",
    "attention_distance",
    "attention_entropy",
    "bias_matrix",
    "bias_reach",
    "bias_slopes",
    "by_distance",
    "distances",
    "extended_periods",
    "offsets",
    "period_rows",
    "rotary_decay",
    "rotary_freqs",
    "rotation_gap",
    "shift_gap",
    "similarity",
    "turned",
    "usual_scalings",
]
