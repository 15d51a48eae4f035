"""Pictures: labels, colours, files; no window and no state."""

import subprocess
import sys

import pytest
import torch
from matplotlib.figure import Figure

import mmpos
from mmpos.diagnostics import period_rows, plots

COORDS = mmpos.sequence_coords(50)


def image(ax):
    (drawn,) = ax.get_images()
    return drawn


def test_a_heatmap_has_a_row_for_each_position_and_colours_about_zero():
    drawn = image(plots.plot_heatmap(mmpos.Sinusoidal(8), COORDS))
    assert drawn.get_array().shape == (50, 8)
    assert drawn.get_array()[7, 2] == pytest.approx(torch.tensor(0.7).sin().item())
    assert drawn.cmap.name == "RdBu_r"
    assert drawn.get_clim() == (-1, 1)
    turned = image(plots.plot_heatmap(mmpos.RoPE(8), COORDS)).get_array()
    assert turned.shape == (50, 8)
    assert turned[3, 1] == pytest.approx(torch.tensor(0.3).cos().item())
    assert turned[3, 5] == pytest.approx(torch.tensor(0.3).sin().item())


def test_colours_diverge_only_where_there_are_both_signs():
    assert image(plots.plot_bias(-torch.rand(3, 4))).cmap.name == "viridis"
    assert image(plots.plot_bias(torch.tensor([[1.0, -2.0]]))).get_clim() == (-2, 2)
    assert image(plots.plot_map(torch.rand(3, 4), (1, 2))).cmap.name == "viridis"


def test_it_draws_where_it_is_told():
    figure = Figure()
    left, right = figure.subplots(1, 2)
    assert plots.plot_periods(period_rows(mmpos.RoPE(8), [50]), [50], ax=right) is right
    assert not left.has_data()
    assert list(right.lines[0].get_ydata()) == pytest.approx([6.283185, 62.83185, 628.3185, 6283.185], rel=1e-4)
    assert [text.get_text() for text in right.get_legend().get_texts()] == [
        "less than a quarter turn over 50 tokens", "aliases: less than 2 steps a turn",
    ]  # fmt: skip


def test_many_lines_are_named_by_three():
    x = torch.arange(5.0)
    for heads, names in ((3, ["head 0", "head 1", "head 2"]), (12, ["head 0", "head 6", "head 11"])):
        legend = plots.plot_similarity(x, torch.rand(heads, 5)).get_legend()
        assert [text.get_text() for text in legend.get_texts()] == names


def test_every_function_labels_its_axes():
    x, line = torch.arange(1.0, 6.0), torch.rand(2, 5)
    drawn = [
        plots.plot_bias_curves(x, -9 * line),
        plots.plot_by_layer([line[0], line[1]], "nats"),
        plots.plot_contributions({"all": 1.0, "rotary": 2.0}),
        plots.plot_decay(x, line, line),
        plots.plot_extension({"as trained": line[None] + 9, "PI": 2 * line[None] + 9}, 8, 16),
        plots.plot_gaps({1: line[0]}),
        plots.plot_logits(x, line),
        plots.plot_scale(x, line),
        plots.plot_shifts({1: line[0], 7: line[1]}),
        plots.plot_turned(x, {"RoPE": (line[0], line[1])}),
    ]
    for ax in drawn:
        assert ax.get_title()
        assert ax.get_xlabel()
        assert ax.get_ylabel()
        assert tuple(ax.figure.get_size_inches()) == (8, 5)


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_files_are_written_the_same_each_time(tmp_path, ending):
    for name in ("a", "b"):
        plots.save(plots.plot_scale(torch.tensor([1.0, 2.0]), torch.ones(1, 2)), tmp_path / f"{name}.{ending}")
    first, second = ((tmp_path / f"{name}.{ending}").read_bytes() for name in ("a", "b"))
    assert len(first) > 1000
    if ending != "pdf":
        assert first == second


def test_pyplot_is_not_needed(tmp_path):
    code = (
        "import sys, torch, mmpos; from mmpos.diagnostics import plot_heatmap, save\n"
        "save(plot_heatmap(mmpos.Sinusoidal(8), mmpos.sequence_coords(5)), sys.argv[1])\n"
        "sys.exit('matplotlib.pyplot' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code, str(tmp_path / "x.png")], check=False)
    assert run.returncode == 0
