"""Positions by channels, and how alike positions are."""

import torch
from jaxtyping import Float, Shaped
from matplotlib.axes import Axes
from torch import Tensor

from ...encodings import AdditiveEncoding, RotaryEncoding
from .canvas import draw_image, draw_lines, label, new_axes, whole_ticks


def plot_heatmap(
    encoding: AdditiveEncoding | RotaryEncoding,
    coords: Shaped[Tensor, "n a"],
    *,
    length: int | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Positions by channels: what is added, or the cosines and then the sines of the first head's pairs.

    Args:
        encoding: The encoding.
        coords: Positions, top to bottom; textbooks draw 50.
        length: For encodings that depend on it.
        ax: Where to draw.
    """
    ax = new_axes(ax)
    if isinstance(encoding, RotaryEncoding):
        rotation = encoding(coords, length=length)
        values, what = torch.cat([rotation.cos[0], rotation.sin[0]], dim=-1), "cosine | sine"
        channels = f"channel pair: cosines of {rotation.cos.shape[-1]}, then their sines"
    else:
        values, what, channels = encoding(coords, length=length), "value", "channel"
    draw_image(ax, values, what, signed=True)
    return label(
        ax,
        f"{type(encoding).__name__}: {len(coords)} positions",
        channels,
        "position" if coords.shape[-1] == 1 else "token, row by row",
    )


def plot_similarity(
    distances: Float[Tensor, " m"], curve: Float[Tensor, "h m"], *, title: str = "Similarity", ax: Axes | None = None
) -> Axes:
    """Similarity of positions by their distance, a line for each head.

    Args:
        distances: Distances in coordinate units.
        curve: Mean `similarity` at each, as `by_distance` gives it.
        title: What stands above.
        ax: Where to draw.
    """
    ax = new_axes(ax)
    ax.axhline(0, color="0.8", linewidth=1)
    draw_lines(ax, distances, curve, "head")
    return label(ax, title, "distance (coordinate units)", "similarity (1 = the same position)")


def plot_map(
    values: Float[Tensor, "height width"],
    at: tuple[int, int],
    *,
    title: str = "Similarity to the marked cell",
    what: str = "similarity",
    ax: Axes | None = None,
) -> Axes:
    """A number for each cell of a grid, seen from the marked one.

    Args:
        values: Of the cells, such as `similarity` to one of them.
        at: Row and column of the mark.
        title: What stands above.
        what: What the colours mean.
        ax: Where to draw.
    """
    ax = new_axes(ax)
    draw_image(ax, values, what)
    ax.plot(at[1], at[0], marker="x", color="black", markersize=10, markeredgewidth=2)
    ax.set_aspect("equal")
    whole_ticks(ax)
    return label(ax, title, "column (tokens)", "row (tokens)")
