"""Biases and scales of logits."""

import math

from jaxtyping import Float
from matplotlib.axes import Axes
from torch import Tensor

from .canvas import draw_image, draw_lines, label, new_axes


def plot_bias(
    matrix: Float[Tensor, "q k"], *, title: str = "Bias of logits, first head", ax: Axes | None = None
) -> Axes:
    """The bias of one head: queries down, keys across.

    Args:
        matrix: One head of `bias_matrix`.
        title: What stands above.
        ax: Where to draw.
    """
    ax = new_axes(ax)
    draw_image(ax, matrix, "bias (added to the logit)")
    ax.set_aspect("equal")
    return label(ax, title, "key (token)", "query (token)")


def plot_bias_curves(
    behind: Float[Tensor, " m"],
    curve: Float[Tensor, "h m"],
    *,
    factor: float = 100.0,
    title: str = "Bias by distance",
    ax: Axes | None = None,
) -> Axes:
    """The bias of each head by how far the key lies behind the query, and the fall that makes ``factor``.

    Args:
        behind: Coordinate units, negative ahead of the query.
        curve: The bias at each, as `by_distance` gives it.
        factor: A key weighs so many times less where the bias has fallen by its logarithm.
        title: What stands above.
        ax: Where to draw.
    """
    ax = new_axes(ax)
    fall = -math.log(factor)
    if float(curve.min()) < fall:
        ax.axhline(fall, color="0.5", linestyle="--", label=f"{factor:g} times less weight")
    draw_lines(ax, behind, curve, "head")
    return label(ax, title, "distance of the key behind the query (coordinate units)", "bias (added to the logit)")


def plot_scale(
    keys: Float[Tensor, " m"],
    factors: Float[Tensor, "h m"],
    *,
    title: str = "Scale of logits",
    ax: Axes | None = None,
) -> Axes:
    """The factor of a query's logits by how many keys it may attend to.

    Args:
        keys: Numbers of keys.
        factors: The factor at each.
        title: What stands above.
        ax: Where to draw.
    """
    ax = new_axes(ax)
    draw_lines(ax, keys, factors, "head")
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    low, high = ax.get_ylim()
    ax.set_ylim(min(low, 0.9), max(high, 1.1))
    return label(ax, title, "keys that the query may attend to", "factor of the logits")
