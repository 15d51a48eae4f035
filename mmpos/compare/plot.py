"""Results as a picture."""

from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..diagnostics.plots import save
from .results import Row
from .study import Metric, Study
from .table import Line, Summary, axis, summarise

MARKERS = "osD^vPX*<>"
NAMED = 20
"""Colours that can be told apart."""


def plot(study: Study, rows: Sequence[Row], path: Path) -> None:
    """Draws the table to a file: dots by encoding, or lines over the columns; spread is a standard deviation."""
    summary = summarise(study, rows)
    save(draw_lines(study, summary) if study.plot == "lines" else draw_dots(study, summary), path)


def draw_dots(study: Study, summary: Summary) -> Figure:
    """A row for each row of the table, a panel for each metric, a colour for each column."""
    lines = summary.lines
    figure = Figure(figsize=(4 + 4.5 * len(study.metrics), 1.8 + 0.32 * len(lines)), dpi=100, layout="constrained")
    panels = figure.subplots(1, len(study.metrics), sharey=True, squeeze=False)[0]
    colours = _colours(len(summary.columns))
    for panel, metric in zip(panels, study.metrics, strict=True):
        for number, column in enumerate(summary.columns):
            shift = 0.5 * ((number + 0.5) / len(summary.columns) - 0.5)
            there = [
                (place + shift, values) for place, line in enumerate(lines) if (values := _scaled(line, column, metric))
            ]
            panel.errorbar(
                [mean(values) for _, values in there],
                [place for place, _ in there],
                xerr=[_spread(values) for _, values in there],
                fmt=MARKERS[number % len(MARKERS)],
                color=colours[number],
                markersize=4,
                elinewidth=1,
                label=column,
            )
        panel.set_xlabel(axis(study, metric))
        panel.grid(axis="x", alpha=0.3)
        for place in range(1, len(lines)):
            if study.rows and lines[place].encoding != lines[place - 1].encoding:
                panel.axhline(place - 0.5, color="black", linewidth=0.3)
    panels[0].set_yticks(range(len(lines)), [_name(line) for line in lines])
    panels[0].set_ylim(len(lines) - 0.5, -0.5)
    panels[0].set_ylabel(study.label("encoding"))
    if len(summary.columns) > 1:
        handles, names = panels[0].get_legend_handles_labels()
        title = study.label(study.columns)
        figure.legend(handles, names, title=title, loc="outside right upper")
    figure.suptitle(study.title)
    return figure


def draw_lines(study: Study, summary: Summary) -> Figure:
    """Lines over the columns: encodings as they are and, in a second panel, in the way that is best at the last."""
    metrics = study.metrics
    ways = 2 if study.rows else 1
    size = (6 * ways, 4.8 * len(metrics))
    figure = Figure(figsize=size, dpi=100, layout="constrained")
    panels = figure.subplots(len(metrics), ways, sharey="row", squeeze=False)
    encodings = list(dict.fromkeys(line.encoding for line in summary.lines))
    colours = dict(zip(encodings, _colours(len(encodings)), strict=True))
    for row, metric in zip(panels, metrics, strict=True):
        for encoding in encodings:
            own = [line for line in summary.lines if line.encoding == encoding]
            for panel, line in zip(row, (own[0], _best(own, summary.columns[-1], metric)), strict=False):
                _curve(panel, line, summary.columns, metric, colours[encoding], own[0])
        for panel, title in zip(row, ("as trained", "each in the way that is best at the last"), strict=False):
            panel.set_xticks(range(len(summary.columns)), summary.columns)
            panel.set_xlabel(study.label(study.columns))
            panel.grid(alpha=0.3)
            panel.legend(fontsize="x-small", ncols=2, loc="upper left")
            if ways > 1:
                panel.set_title(title)
        row[0].set_ylabel(axis(study, metric))
    figure.suptitle(study.title)
    return figure


def _curve(panel: Axes, line: Line, columns: Sequence[str], metric: Metric, colour: object, plain: Line) -> None:
    values = [(place, found) for place, column in enumerate(columns) if (found := _scaled(line, column, metric))]
    places = [place for place, _ in values]
    label = plain.encoding if line is plain else f"{line.encoding}, {line.way}"
    style = "--" if line.reference else "-"
    panel.plot(places, [mean(found) for _, found in values], marker=".", color=colour, label=label, linestyle=style)
    low, high = ([mean(found) + sign * _spread(found) for _, found in values] for sign in (-1, 1))
    panel.fill_between(places, low, high, color=colour, alpha=0.15, linewidth=0)


def _best(lines: Sequence[Line], column: str, metric: Metric) -> Line:
    """The line that is best in a column, by the metric's own measure."""
    sign = -1 if metric.better == "higher" else 1
    there = [line for line in lines if line.of(column, metric)]
    return min(there or lines, key=lambda line: sign * mean(line.of(column, metric) or [0.0]))


def _scaled(line: Line, column: str, metric: Metric) -> list[float]:
    """The values of all seeds in the metric's unit."""
    return [metric.scale * value for value in line.of(column, metric)]


def _name(line: Line) -> str:
    return f"{line.encoding}, {line.way}" if line.way else line.encoding


def _spread(values: Sequence[float]) -> float:
    return stdev(values) if len(values) > 1 else 0.0


def _colours(count: int) -> list[object]:
    """As many colours as can be told apart."""
    import matplotlib as mpl

    names = "tab10" if count <= NAMED // 2 else "tab20"
    return [mpl.colormaps[names](number % NAMED) for number in range(count)]
