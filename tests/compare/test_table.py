"""Tables and plots of results that are written here."""

import math

import pytest

from mmpos.compare.results import check_columns
from mmpos.compare.table import caption, table


def results(study, **scores):
    """Rows of every cell: a score for each size and way, times the seed plus one."""
    return [
        {**cell.key, "fingerprint": cell.fingerprint, "size": size, "how": how, "score": str(value * (cell.seed + 1))}
        for cell in study.cells
        for (size, how), value in scores[cell.encoding].items()
    ]


SCORES = {
    "low": {("8", "plain"): 0.1, ("16", "plain"): 0.05, ("8", "other"): 0.1, ("16", "other"): 0.05},
    "high": {("8", "plain"): 0.2, ("16", "plain"): 0.15, ("16", "other"): 0.19},
}


def test_mean_and_deviation_over_seeds(write_study):
    study = write_study(labels={"how": "way", "8": "as learned", "plain": ""})
    # Values of seeds 0 and 4 are v and 5 v: their mean is 3 v and their deviation sqrt(8) v.
    cell = {v: f"{3 * v:.2f} ± {math.sqrt(8) * v:.2f}" for v in (0.1, 0.05, 0.2, 0.15, 0.19)}
    assert table(study, results(study, **SCORES)).splitlines() == [
        "| encoding | way | as learned | 16 |",
        "|---|---|---|---|",
        f"| low |  | {cell[0.1]} | {cell[0.05]} |",
        f"| high |  | {cell[0.2]} | {cell[0.15]} |",
        f"| high | other |  | {cell[0.19]} |",  # a way that changes nothing has no row, as that of "low"
    ]


def test_shares_in_percent_and_one_seed_alone(write_study):
    study = write_study(metrics={"score": {"unit": "%", "better": "lower"}}, seeds=[0])
    rows = results(study, **SCORES)
    assert table(study, rows).splitlines()[2] == "| low | plain | 10.0 | 5.0 |"
    assert caption(study, rows).startswith("Score in %, lower is better; seed 0. torch ")


def test_results_of_other_settings_are_missing(write_study):
    study = write_study()
    rows = [row | {"fingerprint": "0" * 12} if row["encoding"] == "low" else row for row in results(study, **SCORES)]
    assert "low" not in table(study, rows)
    assert caption(study, rows).startswith("2 of 4 cells are missing. ")


def test_references_stand_once_below(write_study):
    study = write_study(references={"how": "plain"}, rows=None)
    rows = results(study, low={("8", "plain"): 1.0, ("8", "naive"): 7.0}, high={("8", "plain"): 2.0, ("8", "naive"): 7})
    assert table(study, rows).splitlines()[2:] == [
        "| low | 3.00 ± 2.83 |",
        "| high | 6.00 ± 5.66 |",
        "| *naive* | 7.00 |",
    ]


def test_columns_of_several_metrics(write_study):
    study = write_study(metrics={"score": {"digits": 0}, "size": {"digits": 0}}, columns="how", rows=None, seeds=[0])
    rows = results(study, low={("8", "plain"): 3}, high={("8", "plain"): 4})
    assert table(study, rows).splitlines()[::2] == ["| encoding | plain, score | plain, size |", "| low | 3 | 8 |"]


def test_what_cannot_be_told_apart_is_an_error(write_study):
    study = write_study(rows=None)
    with pytest.raises(ValueError, match="low, seed 0 has several results for 8: columns and rows must tell"):
        table(study, results(study, **SCORES))


def test_columns_that_are_not_there_are_named(write_study):
    study = write_study(metrics={"scores": None})
    with pytest.raises(ValueError, match=r"metrics\[scores\]: .* no column 'scores'; they have size, how, score"):
        check_columns(study, results(study, **SCORES))
    study = write_study(rows="way")
    with pytest.raises(ValueError, match="rows: the results have no column 'way'"):
        check_columns(study, results(study, **SCORES))
    study = write_study(metrics={"how": None}, rows=None)
    with pytest.raises(ValueError, match="how is no number: 'plain'"):
        check_columns(study, results(study, **SCORES))


@pytest.mark.parametrize("kind", ["dots", "lines"])
def test_plots_have_units_and_show_what_the_table_shows(write_study, kind, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    from mmpos.compare.plot import draw_dots, draw_lines, plot
    from mmpos.compare.table import summarise

    metrics = {"score": {"unit": "%", "better": "higher"}}
    study = write_study(plot=kind, title="A title", metrics=metrics, labels={"size": "pixels", "plain": ""})
    rows = results(study, **SCORES)
    figure = {"dots": draw_dots, "lines": draw_lines}[kind](study, summarise(study, rows))
    assert figure.get_suptitle() == "A title"
    first = figure.axes[0]
    measured = first.get_xlabel() if kind == "dots" else first.get_ylabel()
    assert measured == "score in %, higher is better"
    if kind == "dots":
        assert [label.get_text() for label in first.get_yticklabels()] == ["low", "high", "high, other"]
        dots = {box.get_label(): list(box.lines[0].get_xdata()) for box in first.containers}
        assert dots == {"8": pytest.approx([30, 60]), "16": pytest.approx([15, 45, 57])}
        assert figure.legends[0].get_title().get_text() == "pixels"
    else:
        assert first.get_xlabel() == "pixels"
        curves = [{line.get_label(): list(line.get_ydata()) for line in ax.lines} for ax in figure.axes]
        assert curves[0] == {"low": pytest.approx([30, 15]), "high": pytest.approx([60, 45])}
        assert curves[1] == {"low": pytest.approx([30, 15]), "high, other": pytest.approx([57])}
    plot(study, rows, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 5000
