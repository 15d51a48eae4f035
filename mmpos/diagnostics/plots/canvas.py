"""What all pictures share: a figure without a window, colours, a colour bar."""

from pathlib import Path
from typing import Any

import matplotlib as mpl
from jaxtyping import Shaped
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

SIGNED, PLAIN = "RdBu_r", "viridis"
SIZE = (8, 5)
DPI = 90
LEGEND = 8
"""Lines that a legend still names one by one."""


def new_axes(ax: Axes | None) -> Axes:
    """The axes given, or those of a new figure of 8 x 5 inches."""
    return Figure(figsize=SIZE, dpi=DPI, layout="constrained").subplots() if ax is None else ax


def label(ax: Axes, title: str, x: str, y: str) -> Axes:
    """Gives axes their title and what they measure."""
    ax.set_title(title)
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    return ax


def draw_image(ax: Axes, values: Shaped[Tensor, "rows columns"], what: str, *, signed: bool | None = None) -> None:
    """Draws a matrix with a colour bar: diverging about 0 if its values have both signs, else from low to high."""
    numbers = values.detach().double().cpu()
    if signed is None:
        signed = bool((numbers > 0).any()) and bool((numbers < 0).any())
    limit = float(numbers.abs().nan_to_num(0, 0, 0).max()) or 1.0
    bounds: dict[str, Any] = {"vmin": -limit, "vmax": limit} if signed else {}
    image = ax.imshow(
        numbers.numpy(),
        cmap=SIGNED if signed else PLAIN,
        aspect="auto",
        interpolation="nearest",
        **bounds,
    )
    assert ax.figure is not None
    ax.figure.colorbar(image, ax=ax, label=what)


def colours(count: int) -> list[Any]:
    """As many colours from dark to light, in perceptually even steps, without the palest."""
    return [mpl.colormaps[PLAIN](0.9 * i / max(count - 1, 1)) for i in range(count)]


def draw_lines(
    ax: Axes, x: Shaped[Tensor, " m"], lines: Shaped[Tensor, "lines m"], name: str, first: int = 0, **style: Any
) -> None:
    """Draws a line for each row. A legend names them, or the first, the middle and the last of many."""
    count = len(lines)
    named = set(range(count)) if count <= LEGEND else {0, count // 2, count - 1}
    for i, (line, colour) in enumerate(zip(lines.detach().cpu().tolist(), colours(count), strict=True)):
        text = f"{name} {i + first}" if i in named and count > 1 else None
        ax.plot(x.detach().cpu().tolist(), line, color=colour, label=text, **style)
    if count > 1:
        ax.legend(fontsize="small")


def whole_ticks(ax: Axes) -> None:
    """Ticks of the x axis at whole numbers only."""
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))


def save(axes: Axes | Figure, path: str | Path) -> None:
    """Writes the figure to a file, whose ending says what kind: PNG, SVG or PDF.

    Raises:
        ValueError: If matplotlib does not know the ending.
    """
    figure = axes.figure if isinstance(axes, Axes) else axes
    assert isinstance(figure, Figure)
    with mpl.rc_context({"svg.hashsalt": "mmpos"}):  # the same picture is the same file
        figure.savefig(path, metadata={"Date": None} if Path(path).suffix == ".svg" else None)
