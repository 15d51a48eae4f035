"""The commands ``mmpos list`` and ``mmpos show``."""

import math
import subprocess
import sys

import pytest
import torch
from PIL import Image

import mmpos
from mmpos.__main__ import COMMANDS, main
from mmpos.diagnostics import Place, views
from mmpos.diagnostics.commands.show import SIZES, create, parse_arguments
from mmpos.factory import ENCODINGS, list_encodings
from mmpos.presets import PRESETS

NAMES = list_encodings()  # before tests register encodings of their own
NEEDED = {
    "PeriodicBias": {"periods": (24, 168)},
    "RelativeLogits": {"extent": 60, "head_dim": 16},
    "Concat": {"parts": [{"name": "Sinusoidal", "dim": 12}, {"name": "LearnedTable", "dim": 4, "size": 14}],
               "on": [[1], [0]]},
    "Sum": {"parts": [{"name": "Sinusoidal", "dim": 12, "axes": 2}, {"name": "LearnedTable", "dim": 12,
            "size": (14, 10)}]},
}  # fmt: skip
BY_KIND = {"additive": "similarity", "rotary": "periods", "bias": "reach", "scale": "scale"}


@pytest.mark.parametrize("name", NAMES)
def test_every_name_can_be_shown(name):
    narrow = {"dim": 96} if PRESETS.get(name, (name, {}))[1].get("dim", 0) > 512 else {}  # as wide ones do, but sooner
    encoding = create(name, NEEDED.get(name, {}) | narrow)
    found = views(encoding, Place(SIZES.get(encoding.axes) or (3, 4, 5, 6)[: encoding.axes]))
    kind = ENCODINGS[PRESETS[name].encoding if name in PRESETS else name][0]
    assert BY_KIND[kind] in found
    assert ("map" in found) == (encoding.axes > 1 and kind != "scale")
    for view in found.values():
        assert all(len(row) == len(view.columns) for row in view.rows)
        assert bool(view.columns) == bool(view.rows)


@pytest.mark.parametrize("name", ["Sinusoidal", "RoPE", "ALiBi", "SSMax", "LearnedTable", "rope_vit_mixed", "flux2"])
def test_every_view_can_be_drawn(name):
    encoding = create(name, {})
    for view in views(encoding, Place(SIZES.get(encoding.axes) or (3, 4, 5, 6))).values():
        ax = view.draw(None)
        assert ax.get_title()
        assert ax.get_xlabel()
        assert ax.get_ylabel()


def test_long_sequences_are_seen_from_some_tokens():
    found = views(mmpos.ALiBi(8), Place((2000,)))
    reach = [row[2] for row in found["reach"].rows]
    expected = [math.ceil(math.log(100) * 2**head) for head in range(1, 9)]
    assert [float(far) for far in reach] == expected
    curve = views(mmpos.RoPE(2), Place((3000,)))["decay"].rows
    assert [float(row[1]) for row in curve] == pytest.approx([math.cos(float(row[0])) for row in curve], abs=1e-3)
    assert curve[-1][0] == "2999"


def test_the_length_is_that_of_the_place():
    """Lest frequencies that depend on it change when all tokens move."""
    rope = mmpos.RoPE(16, scaling=mmpos.scaling.DynamicNTK(2, train_length=10))
    assert all(float(row[1]) < 1e-5 for row in views(rope, Place((50,)))["shift"].rows)
    slowest = float(views(rope, Place((50,), length=10))["periods"].rows[-1][1].replace(",", ""))
    assert slowest == pytest.approx(2 * math.pi * 10000 ** (14 / 16), rel=1e-3)
    slowest = float(views(rope, Place((50,)))["periods"].rows[-1][1].replace(",", ""))
    assert slowest == pytest.approx(2 * math.pi * 10000 ** (14 / 16) * (2 * 50 / 10 - 1), rel=1e-3)


class Own(mmpos.RotaryEncoding):
    """A user's encoding, of a third of a radian per unit."""

    axes = 1

    def forward(self, coords, *, length=None):
        angle = (coords.double() / 3)[..., None, :, :]
        return mmpos.Rotation(angle.cos().float(), angle.sin().float())


def test_an_encoding_of_the_user_can_be_shown():
    found = views(Own(), Place((40,)))
    assert found["periods"].rows == [("0", "18.8", "2.07", "")]
    assert "extension" not in found


def shown(capsys, *words):
    main(["show", *words])
    return capsys.readouterr().out


@pytest.mark.parametrize("words", [["Sinusoidal", "--dim", "8"], ["Sinusoidal", "dim=8"], ["RoPE", "--head-dim=8"]])
def test_the_periods_of_eight_channels_are_told(capsys, words):
    lines = [line.split() for line in shown(capsys, *words, "--figure", "periods").splitlines()]
    told = {line[0]: line[1:] for line in lines if line and line[0].isdigit()}
    assert [told[pair][0] for pair in "0123"] == ["6.3", "62.8", "628.3", "6,283.2"]
    assert [" ".join(told[pair][2:]) for pair in "0123"] == ["", "", *["less than a quarter turn"] * 2]


def test_nested_arguments_are_yaml(capsys):
    text = shown(
        capsys, "RoPE", "--head_dim", "8", "--scaling", "{name: PositionInterpolation, factor: 2}", "base=1e2",
        "--figure", "periods",
    )  # fmt: skip
    assert "base=100.0" in text
    assert " 12.6 " in text  # twice 2 pi


def test_it_is_looked_at_on_the_grid_that_is_asked_for(capsys):
    text = shown(capsys, "LearnedTable", "dim=6", "--height", "5", "--width", "7")
    assert "LearnedTable(dim=6, size=(5, 7))" in text
    text = shown(capsys, "RoPE", "head_dim=24", "--frames=3", "--height=5", "--width=7", "--figure", "periods")
    assert "axes=3" in text
    assert "seen on 3 x 5 x 7 tokens" in text
    assert "seen on 99 tokens" in shown(capsys, "RoPE", "--length", "99", "--figure", "periods")
    assert "aliases" in shown(capsys, "RoPE", "--spacing", "4", "--figure", "periods")


def test_extensions_are_told_side_by_side(capsys):
    text = shown(capsys, "phi3_long", "--length", "64", "--extend", "8", "--figure", "extension")
    assert all(name in text for name in ("as trained", "PI", "NTK", "YaRN", "Llama 3", "LongRoPE"))
    last = next(line for line in text.splitlines() if line.strip().startswith("1 "))
    period = 2 * torch.pi * 10000 ** (2 / 96)
    assert last.split()[1:3] == [f"{period:.1f}", f"{8 * period:.1f}"]


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_pictures_are_written(capsys, tmp_path, ending):
    path = tmp_path / f"rope.{ending}"
    text = shown(capsys, "RoPE", "head_dim=8", "--length", "20", "--output", str(path))
    assert f"pictures: {path}" in text
    if ending == "svg":
        assert "<svg" in path.read_text(encoding="utf-8")
    else:
        with Image.open(path) as picture:
            assert picture.size[0] > 900
    main(["show", "RoPE", "head_dim=8", "--figure", "periods", "--output", str(path)])
    if ending == "png":
        with Image.open(path) as picture:
            assert picture.size == (720, 450)  # 8 x 5 inches


@pytest.mark.parametrize(
    "words, message",
    [
        (["ropee"], "unknown encoding 'ropee'; did you mean 'RoPE'?"),
        (["RoPE", "dimm=8"], "RoPE has no argument 'dimm'"),
        (["RoPE", "8"], "arguments of the encoding are --key value or key=value, got '8'"),
        (["RoPE", "scaling={name: YaRN"], "scaling is not YAML"),
        (["RoPE", "--height", "4"], "a grid has --height and --width"),
        (["RoPE", "--length", "1"], "length must be at least 2, got 1"),
        (["RoPE", "--spacing", "0"], "spacing must be positive, got 0.0"),
        (["RoPE", "--figure", "reach"], "RoPE has no view 'reach'; it has heatmap, periods"),
        (["RoPE", "--output", "x.jpeg"], "output must end in one of .png, .svg, .pdf, got x.jpeg"),
        (["ALiBi", "--extend", "4"], "ALiBi has no scaling that extends it"),
        (["flux", "--height", "4", "--width", "6"], "sizes must be one for each of the 3 axes, got (4, 6)"),
    ],
)
def test_errors_are_one_message(words, message):
    with pytest.raises(SystemExit) as exit:
        main(["show", *words])
    assert message in str(exit.value)


def test_without_matplotlib_there_are_tables(tmp_path):
    code = (
        "import sys; sys.modules['matplotlib'] = None; from mmpos.__main__ import main; shown = sys.argv[1:];"
        "main(shown); main([*shown, '--output', 'x.png'])"
    )
    command = [sys.executable, "-c", code, "show", "RoPE", "head_dim=8"]
    run = subprocess.run(command, capture_output=True, text=True, check=False, encoding="utf-8", cwd=tmp_path)
    assert "628.3" in run.stdout
    assert run.returncode == 1
    assert "pip install 'mmpos[viz]'" in run.stderr
    assert "Traceback" not in run.stderr


def test_names_are_listed_and_nothing_heavy_is_loaded():
    code = (
        "import sys; from mmpos.__main__ import main; main(['list', '--kind', 'additive']);"
        "heavy = {'lightning', 'timm', 'matplotlib', 'yaml', 'rich', 'sklearn'} & set(sys.modules);"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert [line.split()[0] for line in lines] == [name for name in NAMES if name in list_encodings(kind="additive")]
    assert all(line.split()[1] == "additive" and len(line) <= 120 for line in lines)


def test_a_preset_says_what_it_chooses(capsys):
    main(["list"])
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert lines["eva02"].endswith("RoPE(head_dim=64, axes=2, layout='interleaved')")
    assert set(NAMES) <= set(lines)


def test_commands_say_what_they_do(capsys):
    for words in (["--help"], ["list", "--help"], ["show", "--help"]):
        with pytest.raises(SystemExit):
            main(words)
    text = " ".join(capsys.readouterr().out.split())  # lines are as long as the window is wide
    assert all(command.help in text for command in COMMANDS.values())
    assert "--spacing" in text
    for words in ([], ["draw"], ["list", "--colour"]):
        with pytest.raises(SystemExit):
            main(words)


def test_modules_register_encodings(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    text = "import mmpos\nmmpos.register_encoding('Halved', lambda: mmpos.RoPE(4, base=2), kind='rotary')\n"
    (tmp_path / "own_of_a_user.py").write_text(text, encoding="utf-8")
    try:
        assert " 8.9 " in shown(capsys, "Halved", "--imports", "own_of_a_user")  # 2 pi sqrt(2)
    finally:
        ENCODINGS.pop("Halved", None)
    with pytest.raises(SystemExit, match="No module named 'missing_module'"):
        main(["list", "--imports", "missing_module"])


def test_values_are_those_of_yaml():
    words = ["--a", "[1, 2]", "b={name: X}", "--flag", "--c=x=y", "d=-3", "--e-f", "-1.5", "--last"]
    assert parse_arguments(words) == {
        "a": [1, 2], "b": {"name": "X"}, "flag": True, "c": "x=y", "d": -3, "e_f": -1.5, "last": True,
    }  # fmt: skip
