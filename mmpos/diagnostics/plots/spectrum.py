"""Periods, what scalings make of them, and what turning does."""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from torch import Tensor

from ..metrics.spectrum import PeriodRow, axis_name
from .canvas import colours, draw_lines, label, new_axes, whole_ticks

MARKERS = "os^Dvp"
SPACING = "float32 spacing at 1"


def plot_periods(
    rows: Sequence[PeriodRow],
    sizes: Sequence[int],
    spacing: float = 1.0,
    *,
    title: str = "Periods",
    ax: Axes | None = None,
) -> Axes:
    """Period of each pair, with the range in which it tells positions apart and does not alias.

    Args:
        rows: From `period_rows`.
        sizes: Tokens on each axis.
        spacing: Coordinate units between neighbours.
        title: What stands above.
        ax: Where to draw.
    """
    ax = new_axes(ax)
    for axis, colour in zip(range(len(sizes)), colours(len(sizes)), strict=True):
        own = [row for row in rows if row.axis == axis]
        name = f"on {axis_name(axis, len(sizes))}" if len(sizes) > 1 else None
        ax.plot(
            [row.pair for row in own],
            [row.period for row in own],
            MARKERS[axis % len(MARKERS)],
            color=colour,
            markersize=4,
            label=name,
        )
    ax.set_yscale("log")
    slow = 4 * (max(sizes) - 1) * spacing
    bottom, top = ax.get_ylim()
    bottom, top = min(bottom, 1.2 * spacing), max(top, 1.5 * slow)
    top *= (top / bottom) ** 0.3  # room for the legend
    if slow > 0:
        ax.axhspan(slow, top, color="C0", alpha=0.12, label=f"less than a quarter turn over {max(sizes)} tokens")
    ax.axhspan(bottom, 2 * spacing, color="C3", alpha=0.15, label="aliases: less than 2 steps a turn")
    ax.set_ylim(bottom, top)
    ax.legend(fontsize="small", loc="upper left", ncols=2)
    whole_ticks(ax)
    return label(ax, title, "channel pair", "period (coordinate units per turn)")


def plot_extension(
    periods: Mapping[str, Float[Tensor, "h a p"]],
    train_length: int,
    length: int,
    *,
    title: str = "What extension does to each period",
    ax: Axes | None = None,
) -> Axes:
    """Periods under each scaling over those of the first one, pair by pair, with the first ones' turns on top.

    Args:
        periods: From `extended_periods`, that of training first.
        train_length: Length before the extension.
        length: Length after it.
        title: What stands above.
        ax: Where to draw.
    """
    ax = new_axes(ax)
    trained, *others = periods.values()
    styles = ["-", "--", "-.", ":", (0, (5, 1)), (0, (1, 1))]
    trained = trained[0].amin(0)
    for i, (name, own) in enumerate(zip(list(periods)[1:], others, strict=True)):
        ratio = own[0].amin(0) / trained
        ax.plot(
            range(len(ratio)), ratio.tolist(), linestyle=styles[i % len(styles)], linewidth=2, color=f"C{i}", label=name
        )
    ax.set_yscale("log", base=2)
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    for turns, text in ((1, f"one turn in {train_length:,}"), (1 / 4, "a quarter turn")):
        slower = (trained > train_length / turns).nonzero()
        if len(slower):
            ax.axvline(slower[0].item() - 0.5, color="0.6", linewidth=1)
            ax.text(slower[0].item() - 0.3, 1, text, rotation=90, va="bottom", fontsize="small", color="0.3")
    low, high = ax.get_ylim()
    ax.set_ylim(low, high * (high / low) ** 0.15)  # room for the legend
    ax.legend(fontsize="small", loc="upper center", ncols=len(others))
    whole_ticks(ax)
    heading = f"{title}: {train_length:,} to {length:,} positions"
    return label(ax, heading, "channel pair, fast to slow", "period / period as trained")


def plot_decay(
    distances: Float[Tensor, " n"],
    similarity: Float[Tensor, "h n"],
    bound: Float[Tensor, "h n"],
    *,
    title: str = "Decay of rotary logits",
    ax: Axes | None = None,
) -> Axes:
    """Rotary logits by distance: of equal vectors, and RoFormer's bound, both over their value at distance 0.

    Args:
        distances: Coordinate units.
        similarity: From `similarity`; the first head is drawn.
        bound: From `rotary_decay`.
        title: What stands above.
        ax: Where to draw.
    """
    ax = new_axes(ax)
    ax.axhline(0, color="0.8", linewidth=1)
    first, last = colours(2)
    ax.plot(distances.tolist(), similarity[0].tolist(), color=first, label="query = key = 1 in all channels")
    ax.plot(
        distances.tolist(),
        (bound[0] / bound[0, 0]).tolist(),
        "--",
        color=last,
        label="RoFormer's bound (3.4.3), over its value at 0",
    )
    ax.legend(fontsize="small")
    return label(ax, title, "distance (coordinate units)", "logit / logit at distance 0")


def plot_gaps(
    gaps: Mapping[float, Float[Tensor, " p"]], *, title: str = "The rotation property", ax: Axes | None = None
) -> Axes:
    """How far PE(n + k) is from the rotation of PE(n), pair by pair, for each shift k.

    Args:
        gaps: From `rotation_gap`, by shift.
        title: What stands above.
        ax: Where to draw.
    """
    ax = new_axes(ax)
    for (shift, gap), colour, marker in zip(gaps.items(), colours(len(gaps)), MARKERS * len(gaps), strict=False):
        ax.plot(gap.clamp(min=1e-9).tolist(), marker, color=colour, markersize=5, label=f"k = {shift:g}")
    ax.axhline(2**-23, color="0.5", linestyle="--", label=SPACING)
    ax.set_yscale("log")
    ax.set_ylim(5e-10, _top(gaps))
    ax.legend(fontsize="small")
    whole_ticks(ax)
    return label(ax, title, "channel pair", "largest |PE(n + k) - rotation of PE(n)|")


def plot_turned(
    distances: Float[Tensor, " n"],
    moved: Mapping[str, tuple[Float[Tensor, " n"], Float[Tensor, " n"]]],
    *,
    title: str = "What position does to one vector",
    ax: Axes | None = None,
) -> Axes:
    """Change of direction (solid, left) and of length (dashed, right) of one vector by position.

    Args:
        distances: Positions in coordinate units.
        moved: From `turned`, by the name of the encoding.
        title: What stands above.
        ax: Where to draw.
    """
    ax = new_axes(ax)
    right = ax.twinx()
    shown = []
    for (name, (share, degrees)), colour in zip(moved.items(), colours(max(len(moved), 2)), strict=False):
        shown += ax.plot(distances.tolist(), degrees.tolist(), color=colour, label=f"{name}: angle")
        shown += right.plot(distances.tolist(), share.tolist(), "--", color=colour, label=f"{name}: length")
    highest = max(float(share.max()) for share, _ in moved.values())
    right.set_ylim(0, 1.15 * max(highest, 1.0))
    ax.set_ylim(0, max(1.25 * max(float(degrees.max()) for _, degrees in moved.values()), 10))
    right.set_ylabel("length / length without position")
    ax.legend(handles=shown, fontsize="small", ncols=len(moved), loc="upper center")
    return label(ax, title, "position (coordinate units)", "angle to the vector without position (degrees)")


def plot_shifts(
    gaps: Mapping[float, Float[Tensor, " h"]], *, title: str = "Logits at shifted positions", ax: Axes | None = None
) -> Axes:
    """The largest change of a logit when all tokens move, by how far.

    Args:
        gaps: From `shift_gap`, by shift.
        title: What stands above.
        ax: Where to draw.
    """
    ax = new_axes(ax)
    ax.axhline(2**-23, color="0.5", linestyle="--", label=SPACING)
    draw_lines(
        ax,
        torch.tensor(list(gaps), dtype=torch.float64),
        torch.stack(list(gaps.values()), dim=-1).clamp(min=1e-9),
        "head",
        marker="o",
    )
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_ylim(5e-10, _top(gaps))
    ax.legend(fontsize="small")
    return label(ax, title, "shift of all tokens (coordinate units)", "largest change of a logit")


def _top(gaps: Mapping[float, Float[Tensor, " n"]]) -> float:
    """The end of the scale: what rounding makes is small on it, and a property that does not hold is large."""
    return max(1e-4, 10 * max(float(gap.max()) for gap in gaps.values()))
