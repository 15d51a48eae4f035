"""Pictures of the metrics. Each function draws on ``ax``, or on a figure of its own, and returns the axes.

Nothing here has a window or a state: ``save(axes, "figure.png")`` writes a PNG, an SVG or a PDF.
"""

from .attention import plot_by_layer, plot_contributions, plot_logits
from .bias import plot_bias, plot_bias_curves, plot_scale
from .canvas import save
from .positions import plot_heatmap, plot_map, plot_similarity
from .spectrum import plot_decay, plot_extension, plot_gaps, plot_periods, plot_shifts, plot_turned

__all__ = [
    "plot_bias",
    "plot_bias_curves",
    "plot_by_layer",
    "plot_contributions",
    "plot_decay",
    "plot_extension",
    "plot_gaps",
    "plot_heatmap",
    "plot_logits",
    "plot_map",
    "plot_periods",
    "plot_scale",
    "plot_shifts",
    "plot_similarity",
    "plot_turned",
    "save",
]
