"""See what an encoding does: numbers, pictures, and the attention of a trained model.

Metrics are tensors and numbers alone. Pictures (``plot_...`` and ``save``) need matplotlib, the extra ``viz``, and the
callback Lightning; each loads when it is first used.
"""

import importlib

from .metrics import (
    PeriodRow,
    Wave,
    additive_waves,
    attention_distance,
    attention_entropy,
    bias_matrix,
    bias_reach,
    bias_slopes,
    by_distance,
    distances,
    extended_periods,
    offsets,
    period_rows,
    rotary_decay,
    rotary_freqs,
    rotation_gap,
    shift_gap,
    similarity,
    turned,
    usual_scalings,
)
from .place import Place
from .record import AttentionRecord, record_attention, slot_contributions, slots_of, switched_off
from .views import View, load_plots, views

__all__ = [
    "AttentionRecord",
    "PeriodRow",
    "Place",
    "View",
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
    "record_attention",
    "rotary_decay",
    "rotary_freqs",
    "rotation_gap",
    "shift_gap",
    "similarity",
    "slot_contributions",
    "slots_of",
    "switched_off",
    "turned",
    "usual_scalings",
    "views",
]

PICTURES = ("save", "plot_")


def __getattr__(name: str):
    if name == "AttentionReport":
        return importlib.import_module(f"{__name__}.callback").AttentionReport
    if name.startswith(PICTURES):
        return getattr(load_plots(), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
