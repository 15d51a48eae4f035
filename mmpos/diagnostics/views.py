"""What there is to see of an encoding: tables and pictures by name, by its interface alone."""

import importlib
import math
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ..encodings import AdditiveEncoding, AttentionBias, Encoding, LogitScale, RoPE, RotaryEncoding
from ..scaling import LongRoPE
from . import metrics
from .metrics.spectrum import axis_name
from .place import QUERIES, Place

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROWS = 50
"""Positions of a heatmap, as textbooks draw it."""
SHIFTS = (1, 7, 1000)
FACTOR = 100.0
MANY_KEYS = 17
Draw = Callable[["Axes | None"], "Axes"]


class View(NamedTuple):
    """One thing to see.

    Args:
        title: What it is.
        columns: Heads of the table; empty where a picture alone says it.
        rows: Its cells.
        draw: Draws it on axes, or on new ones.
    """

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    draw: Draw


def views(encoding: Encoding, place: Place, extend: float | None = None) -> dict[str, View]:
    """All that there is to see of an encoding.

    Args:
        encoding: The encoding.
        place: Where it is looked at.
        extend: Ratio of an extension past the length of the place, for a `RoPE`.

    Raises:
        ValueError: If the place has not the encoding's axes, or an extension is asked of what has none.
        TypeError: If the encoding implements none of the four interfaces.

    Example:
        >>> from mmpos.diagnostics import Place, views
        >>> list(views(Sinusoidal(dim=8, axes=2), Place((4, 6))))
        ['heatmap', 'periods', 'similarity', 'map', 'rotation', 'vector']
        >>> views(ALiBi(num_heads=8), Place((50,)))["reach"].rows[0]
        ('0', '0.5', '10')
    """
    if len(place.sizes) != encoding.axes:
        raise ValueError(f"sizes must be one for each of the {encoding.axes} axes, got {place.sizes}")
    if extend is not None and not isinstance(encoding, RoPE):
        raise ValueError(f"{type(encoding).__name__} has no scaling that extends it; RoPE has")
    place = place._replace(length=place.length or max(place.sizes))
    with torch.no_grad():
        if isinstance(encoding, AdditiveEncoding):
            return _of_additive(encoding, place)
        if isinstance(encoding, RotaryEncoding):
            return _of_rotary(encoding, place, extend)
        if isinstance(encoding, AttentionBias):
            return _of_bias(encoding, place)
        if isinstance(encoding, LogitScale):
            return {"scale": _scale(encoding, place)}
    raise TypeError(f"{type(encoding).__name__} implements none of the four interfaces")


def _of_additive(encoding: AdditiveEncoding, place: Place) -> dict[str, View]:
    found = {"heatmap": _heatmap(encoding, place)}
    waves = metrics.additive_waves(encoding, length=place.length)
    if waves:
        found["periods"] = _periods(encoding, place, waves)
    found["similarity"] = _similarity(encoding, place)
    if len(place.sizes) > 1:
        found["map"] = _map(encoding, place)
    if any(len(wave.channels) == 2 for wave in waves):
        found["rotation"] = _rotation(encoding, place, waves)
    return found | {"vector": _vector(encoding, place, encoding.dim)}


def _of_rotary(encoding: RotaryEncoding, place: Place, extend: float | None) -> dict[str, View]:
    found = {
        "heatmap": _heatmap(encoding, place),
        "periods": _periods(encoding, place),
        "decay": _decay(encoding, place),
    }
    if len(place.sizes) > 1:
        found["map"] = _map(encoding, place)
    pairs = encoding(place.line()[:1], length=place.length).cos.shape[-1]
    found |= {"shift": _shift(encoding, place), "vector": _vector(encoding, place, 2 * pairs)}
    if extend is not None and isinstance(encoding, RoPE):
        found["extension"] = _extension(encoding, place, extend)
    return found


def _of_bias(encoding: AttentionBias, place: Place) -> dict[str, View]:
    some, line = place.some(), place.line()
    matrix = metrics.bias_matrix(encoding, line[:QUERIES], line[:QUERIES])
    biases = metrics.bias_matrix(encoding, some, line)
    behind, curve = metrics.by_distance(biases, metrics.offsets(some, line, place.axis))
    past = behind >= 0
    slopes = metrics.bias_slopes(behind[past], curve[:, past])
    reach = metrics.bias_reach(behind[past], curve[:, past], FACTOR)
    rows = [
        (str(head), f"{slope:.4g}", f"beyond {float(behind.max()):g}" if math.isinf(far) else f"{far:g}")
        for head, (slope, far) in enumerate(zip(slopes.tolist(), reach.tolist(), strict=True))
    ]
    columns = ("head", "loss per coordinate unit", f"distance of {FACTOR:g} times less weight")
    drawn = "drawn at random where it reads content" if encoding.needs else "of the first head"
    found = {
        "matrix": View(
            f"Bias of logits, {drawn}",
            (),
            [],
            lambda ax: load_plots().plot_bias(matrix[0], title=f"Bias, {drawn}", ax=ax),
        ),
        "reach": View(
            "Slopes and reach of the heads",
            columns,
            rows,
            lambda ax: load_plots().plot_bias_curves(behind, curve, factor=FACTOR, ax=ax),
        ),
    }
    if len(place.sizes) > 1:
        plane, (height, width) = place.plane(), place.sizes[-2:]
        at = (height // 2, width // 2)
        query = plane[at[0] * width + at[1]][None]
        values = metrics.bias_matrix(encoding, query, plane)[0, 0].unflatten(0, (height, width))
        title = "Bias of keys for the marked query, head 0"
        found["map"] = View(
            title, (), [], lambda ax: load_plots().plot_map(values, at, title=title, what="bias", ax=ax)
        )
    return found


def _heatmap(encoding: AdditiveEncoding | RotaryEncoding, place: Place) -> View:
    coords = (place.line() if len(place.sizes) == 1 else place.coords())[:ROWS]
    return View(
        f"{len(coords)} positions by channels",
        (),
        [],
        lambda ax: load_plots().plot_heatmap(encoding, coords, length=place.length, ax=ax),
    )


def _periods(
    encoding: AdditiveEncoding | RotaryEncoding, place: Place, waves: Sequence[metrics.Wave] | None = None
) -> View:
    rows = metrics.period_rows(encoding, place.sizes, place.spacing, length=place.length, waves=waves)
    heads = len({row.head for row in rows}) > 1
    axes = len(place.sizes)
    cells = [
        (
            *([str(row.head)] if heads else []),
            str(row.pair),
            *([axis_name(row.axis, axes)] if axes > 1 else []),
            f"{row.period:,.1f}" if row.period >= 1 else f"{row.period:.3g}",
            f"{row.turns:.3g}",
            row.note,
        )
        for row in rows
    ]
    head, axis = ("head",) if heads else (), ("axis",) if axes > 1 else ()
    span = " x ".join(map(str, place.sizes))
    title = f"Periods, seen on {span} tokens"
    return View(
        title,
        (*head, "pair", *axis, "period", "turns", "meaning"),
        cells,
        lambda ax: load_plots().plot_periods(rows, place.sizes, place.spacing, title=title, ax=ax),
    )


def _curve(encoding: AdditiveEncoding | RotaryEncoding, place: Place) -> tuple[Tensor, Tensor]:
    some, line = place.some(), place.line()
    return metrics.by_distance(
        metrics.similarity(encoding, some, line, length=place.length), metrics.distances(some, line)
    )


def _similarity(encoding: AdditiveEncoding, place: Place) -> View:
    far, curve = _curve(encoding, place)
    title = "Similarity by distance" + (f" on {axis_name(place.axis, len(place.sizes))}" if encoding.axes > 1 else "")
    return View(
        title,
        ("distance", "similarity"),
        _sampled(far, curve[:1]),
        lambda ax: load_plots().plot_similarity(far, curve, title=title, ax=ax),
    )


def _decay(encoding: RotaryEncoding, place: Place) -> View:
    far, curve = _curve(encoding, place)
    bound = metrics.rotary_decay(encoding, place.line(), length=place.length)
    title = "Decay of logits" + (f" on {axis_name(place.axis, len(place.sizes))}" if encoding.axes > 1 else "")
    return View(
        title,
        ("distance", "equal vectors", "bound"),
        _sampled(far, torch.stack([curve[0], bound[0] / bound[0, 0]])),
        lambda ax: load_plots().plot_decay(far, curve, bound, title=title, ax=ax),
    )


def _map(encoding: AdditiveEncoding | RotaryEncoding, place: Place) -> View:
    plane, (height, width) = place.plane(), place.sizes[-2:]
    at = (height // 2, width // 2)
    query = plane[at[0] * width + at[1]][None]
    values = metrics.similarity(encoding, query, plane, length=place.length)[0, 0].unflatten(0, (height, width))
    title = "Similarity to the marked cell"
    return View(title, (), [], lambda ax: load_plots().plot_map(values, at, title=title, ax=ax))


def _rotation(encoding: AdditiveEncoding, place: Place, waves: Sequence[metrics.Wave]) -> View:
    line, shifts = place.line(), [shift * place.spacing for shift in SHIFTS]
    gaps = {shift: metrics.rotation_gap(encoding, line, shift, length=place.length, waves=waves) for shift in shifts}
    rows = [(f"{shift:g}", f"{float(gap.max()):.1e}", str(int(gap.argmax()))) for shift, gap in gaps.items()]
    title = "PE(n + k) against the rotation of PE(n)"
    return View(
        title, ("k", "largest difference", "in pair"), rows, lambda ax: load_plots().plot_gaps(gaps, title=title, ax=ax)
    )


def _shift(encoding: RotaryEncoding, place: Place) -> View:
    line, shifts = place.some(), [shift * place.spacing for shift in SHIFTS]
    gaps = {shift: metrics.shift_gap(encoding, line, shift, length=place.length) for shift in shifts}
    rows = [(f"{shift:g}", f"{float(gap.max()):.1e}") for shift, gap in gaps.items()]
    title = "Logits when all tokens move"
    return View(title, ("shift", "largest change"), rows, lambda ax: load_plots().plot_shifts(gaps, title=title, ax=ax))


def _vector(encoding: AdditiveEncoding | RotaryEncoding, place: Place, width: int) -> View:
    line = place.line()
    x = torch.randn(width, generator=torch.Generator().manual_seed(0))
    share, degrees = metrics.turned(encoding, x, line, length=place.length)
    title = "What position does to one vector"
    name = type(encoding).__name__
    return View(
        title,
        ("position", "length", "degrees"),
        _sampled(line[:, place.axis].double(), torch.stack([share, degrees])),
        lambda ax: load_plots().plot_turned(line[:, place.axis].double(), {name: (share, degrees)}, title=title, ax=ax),
    )


def _extension(rope: RoPE, place: Place, factor: float) -> View:
    train_length = max(place.sizes)
    length = round(train_length * factor)
    own = rope.scaling.long_factors if isinstance(rope.scaling, LongRoPE) else None
    periods = metrics.extended_periods(rope, metrics.usual_scalings(factor, train_length, own), length)
    names = list(periods)
    columns = torch.stack([each[0].amin(0) for each in periods.values()], dim=-1).tolist()
    rows = [(str(pair), *(f"{period:,.1f}" for period in row)) for pair, row in enumerate(columns)]
    return View(
        f"Periods at {length:,} tokens, {factor:g} times {train_length:,}",
        ("pair", *names),
        rows,
        lambda ax: load_plots().plot_extension(periods, train_length, length, ax=ax),
    )


def _scale(encoding: LogitScale, place: Place) -> View:
    keys = torch.logspace(0, MANY_KEYS - 1, MANY_KEYS, base=2).long()
    coords = (keys - 1)[:, None].expand(-1, encoding.axes)
    factors = encoding(coords, visible=keys)
    head = factors.reshape(-1, len(keys))
    rows = [(str(count), *row) for (_, *row), count in zip(_cells(keys.double(), head), keys.tolist(), strict=True)]
    names = ("factor",) if len(head) == 1 else tuple(f"head {i}" for i in range(len(head)))
    return View(
        "Factor of the logits by number of keys",
        ("keys", *names),
        rows,
        lambda ax: load_plots().plot_scale(keys.double(), head, ax=ax),
    )


def _sampled(x: Tensor, columns: Tensor) -> list[tuple[str, ...]]:
    """Rows at distances 0, 1, 2, 4, ... and the last."""
    places = sorted({0, len(x) - 1, *(2**i for i in range(64) if 2**i < len(x))})
    return _cells(x[places], columns[:, places])


def _cells(x: Tensor, columns: Tensor) -> list[tuple[str, ...]]:
    numbers: Sequence[Sequence[float]] = columns.T.tolist()
    return [(f"{at:g}", *(f"{number:.3f}" for number in row)) for at, row in zip(x.tolist(), numbers, strict=True)]


def load_plots() -> ModuleType:
    """The module of pictures.

    Raises:
        ImportError: If there is no matplotlib, with how to get it.
    """
    try:
        return importlib.import_module("mmpos.diagnostics.plots")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        raise ImportError("pictures need matplotlib: pip install 'mmpos[viz]'") from error
