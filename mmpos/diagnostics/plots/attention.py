"""The attention of a trained model."""

from collections.abc import Mapping, Sequence

from jaxtyping import Float
from matplotlib.axes import Axes
from torch import Tensor

from .canvas import colours, draw_lines, label, new_axes


def plot_by_layer(
    values: Sequence[Float[Tensor, " h"]], what: str, *, title: str = "Heads by layer", ax: Axes | None = None
) -> Axes:
    """A dot for each head above its layer: `attention_distance` or `attention_entropy`, say.

    Args:
        values: Of the heads of each layer.
        what: What they are, with the unit.
        title: What stands above.
        ax: Where to draw.
    """
    ax = new_axes(ax)
    most = max(len(heads) for heads in values)
    for head, colour in zip(range(most), colours(most), strict=True):
        layers = [layer for layer, heads in enumerate(values) if head < len(heads)]
        height = [float(values[layer][head]) for layer in layers]
        beside = [layer + 0.5 * (head - (most - 1) / 2) / most for layer in layers]  # so that none hides another
        name = f"head {head}" if most <= 8 else None
        ax.plot(beside, height, "o", color=colour, markersize=7, alpha=0.8, label=name)
    if most <= 8:
        ax.legend(fontsize="small", loc="center left", bbox_to_anchor=(1.01, 0.5))
    ax.set_xticks(range(len(values)))
    ax.set_ylim(0, 1.1 * max(float(heads.max()) for heads in values) or 1)
    return label(ax, title, "layer", what)


def plot_logits(
    distances: Float[Tensor, " m"],
    logits: Float[Tensor, "h m"],
    *,
    title: str = "Logits by distance",
    ax: Axes | None = None,
) -> Axes:
    """Mean logit by distance, a line for each head.

    Args:
        distances: Coordinate units.
        logits: Means, as `by_distance` gives them.
        title: What stands above.
        ax: Where to draw.
    """
    ax = new_axes(ax)
    draw_lines(ax, distances, logits, "head")
    return label(ax, title, "distance from query to key (coordinate units)", "mean logit")


def plot_contributions(
    scores: Mapping[str, float],
    what: str = "loss",
    *,
    title: str = "Each slot switched off in turn",
    ax: Axes | None = None,
) -> Axes:
    """A bar for the model as it is and one for each slot that is switched off.

    Args:
        scores: From `slot_contributions`.
        what: What they are, with the unit.
        title: What stands above.
        ax: Where to draw.
    """
    ax = new_axes(ax)
    names = ["as it is" if name == "all" else f"without {name}" for name in scores]
    bars = ax.bar(names, list(scores.values()), color=["0.6", *colours(max(len(scores) - 1, 1))][: len(scores)])
    ax.bar_label(bars, fmt="{:.3g}")
    ax.margins(y=0.12)
    return label(ax, title, "slot", what)
