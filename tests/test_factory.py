from functools import partial

import pytest
import torch
from torch import nn

import mmpos
from mmpos import (
    AdditiveEncoding,
    ALiBi,
    Encodings,
    LearnedTable,
    LogitScale,
    RoPE,
    RotaryEncoding,
    Sinusoidal,
    create_encoding,
    factory,
    list_encodings,
    load_encodings,
    register_encoding,
)
from mmpos.factory import build
from mmpos.values import to_value


@pytest.fixture
def own_names(monkeypatch):
    """Names registered in a test are forgotten after it."""
    monkeypatch.setattr(factory, "ENCODINGS", dict(factory.ENCODINGS))


class Turn(RotaryEncoding):
    axes = 1

    def __init__(self, head_dim, speed=1.0):
        super().__init__()
        self.head_dim, self.speed = head_dim, speed

    def forward(self, coords, *, length=None):
        return RoPE(self.head_dim)(coords * self.speed)


class Steady(LogitScale):
    axes = 1

    def forward(self, q_coords, *, visible=None):
        return torch.ones(1, q_coords.shape[-2])


@pytest.mark.parametrize(
    "name, arguments, kind",
    [
        ("RoPE", {"head_dim": 8, "axes": 2}, RoPE),
        ("Sinusoidal", {"dim": 8}, Sinusoidal),
        ("LearnedTable", {"dim": 8, "size": [3, 4]}, LearnedTable),
        ("ALiBi", {"num_heads": 4}, ALiBi),
    ],
)
def test_names_are_class_names(name, arguments, kind):
    encoding = create_encoding(name, **arguments)
    assert type(encoding) is kind
    assert repr(encoding) == repr(kind(**arguments))


def test_the_list_names_every_encoding_once_and_by_kind():
    names = list_encodings()
    assert names == sorted(set(names))
    assert {"RoPE"} <= set(list_encodings(kind="rotary"))
    assert {"Sinusoidal", "LearnedTable"} <= set(list_encodings("additive"))
    assert {"ALiBi"} <= set(list_encodings("bias"))
    by_kind = [list_encodings(kind) for kind in ("additive", "rotary", "bias", "scale")]
    assert sorted(name for some in by_kind for name in some) == names


def test_routes_to_an_encoding_agree():
    coords = mmpos.grid_coords(3, 300)
    direct = RoPE(head_dim=64, axes=2, base=100.0)(coords)
    for encoding in (
        create_encoding("RoPE", head_dim=64, axes=2, base="1e2"),
        build({"name": "RoPE", "axes": 2, "base": 100}, kind="rotary", dim=384, num_heads=6),
        build(partial(RoPE, axes=2, base=100.0), kind="rotary", head_dim=64),
    ):
        assert all(map(torch.equal, encoding(coords)[:2], direct[:2]))


@pytest.mark.parametrize("text, number", [("1e-4", 1e-4), ("1E4", 1e4), ("-2e3", -2e3), (".5e1", 5.0), ("2.e+1", 20.0)])
def test_numbers_that_yaml_reads_as_text_are_numbers(text, number):
    assert to_value(text) == number
    assert to_value({"a": [text, {"b": (text,)}]}) == {"a": [number, {"b": (number,)}]}


def test_text_that_is_no_number_stays_text():
    for text in ("half", "1e", "e4", "1e4x", "interleaved", "", "1.0"):
        assert to_value(text) == text


@pytest.mark.parametrize(
    "call, error, message",
    [
        (
            lambda: create_encoding("ropee"),
            ValueError,
            r"^unknown encoding 'ropee'; did you mean 'RoPE'\? Known: ALiBi, .*Sinusoidal",
        ),
        (lambda: create_encoding("ALIBI"), ValueError, r"did you mean 'ALiBi'\?"),
        (lambda: create_encoding("zzz"), ValueError, "^unknown encoding 'zzz'; known: ALiBi, "),
        (
            lambda: create_encoding("RoPE", head_dim=8, bse=10),
            TypeError,
            r"^RoPE has no argument 'bse'; did you mean 'base'\? Known: axes, base",
        ),
        (lambda: create_encoding("RoPE"), TypeError, "^RoPE needs head_dim$"),
        (lambda: create_encoding("LearnedTable"), TypeError, "^LearnedTable needs dim, size$"),
        (
            lambda: create_encoding("RoPE", head_dim=50, axes=2),
            ValueError,
            r"head_dim \(50\) must be a multiple of 2 \* axes \(4\)",
        ),
        (
            lambda: create_encoding("RoPE", head_dim=8, spectrum={"name": "Mixd"}),
            ValueError,
            r"unknown value 'Mixd'; did you mean 'Mixed'\?",
        ),
        (lambda: create_encoding(5), TypeError, "name"),
        (
            lambda: list_encodings("rotery"),
            ValueError,
            r"^unknown kind 'rotery'; did you mean 'rotary'\? Known: additive, bias, rotary, scale",
        ),
    ],
)
def test_wrong_names_and_arguments_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_values_inside_a_spec_are_built_by_name():
    rope = create_encoding("RoPE", head_dim=8, spectrum={"name": "Given", "freqs": [["1e-4", 2]]})
    assert rope.spectrum == mmpos.Given([[1e-4, 2]])


# Slots


@pytest.mark.parametrize("kind", ["additive", "rotary", "bias", "scale"])
def test_an_empty_slot_stays_empty(kind):
    assert build(None, kind=kind, dim=8, num_heads=2) is None


@pytest.mark.parametrize(
    "spec, kind, want",
    [
        ({"name": "RoPE"}, "rotary", RoPE(24)),
        ({"name": "RoPE", "head_dim": 8}, "rotary", RoPE(8)),
        ({"name": "Sinusoidal", "axes": 2}, "additive", Sinusoidal(96, axes=2)),
        ({"name": "LearnedTable"}, "additive", LearnedTable(96, size=(5, 7))),
        ({"name": "LearnedTable", "size": 9}, "additive", LearnedTable(96, size=9)),
        ({"name": "ALiBi", "axes": 2}, "bias", ALiBi(4, axes=2)),
        (RoPE, "rotary", RoPE(24)),
        (partial(RoPE, axes=2), "rotary", RoPE(24, axes=2)),
        (partial(RoPE, 8), "rotary", RoPE(8)),
        (partial(RoPE, head_dim=8), "rotary", RoPE(8)),
        (lambda: RoPE(8), "rotary", RoPE(8)),
        (lambda head_dim, num_heads: RoPE(head_dim * num_heads), "rotary", RoPE(96)),
        (lambda dim, **options: Sinusoidal(dim, base=7.0, **options), "additive", Sinusoidal(96, base=7.0)),
        (ALiBi(3), "bias", ALiBi(3)),
        (Turn, "rotary", Turn(24)),
    ],
)
def test_a_slot_takes_a_spec_a_callable_or_a_module(spec, kind, want):
    got = build(spec, kind=kind, dim=96, num_heads=4, size=(5, 7))
    assert type(got) is type(want)
    assert repr(got) == repr(want)
    if isinstance(spec, nn.Module):
        assert got is spec


def test_sizes_of_a_model_reach_constructors_that_name_them():
    sizes = {}

    def record(dim, num_heads, num_kv_heads, head_dim, size):
        sizes.update(dim=dim, num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, size=size)
        return Turn(head_dim)

    build(record, kind="rotary", dim=96, num_heads=6, num_kv_heads=2, head_dim=20, size=(5, 7))
    assert sizes == {"dim": 96, "num_heads": 6, "num_kv_heads": 2, "head_dim": 20, "size": (5, 7)}
    build(record, kind="rotary", dim=96, num_heads=6, size=(3,))
    assert sizes == {"dim": 96, "num_heads": 6, "num_kv_heads": 6, "head_dim": 16, "size": (3,)}


def test_a_spec_is_not_modified():
    spec = {"name": "RoPE", "base": "1e2", "axes": 2}
    build(spec, kind="rotary", head_dim=8)
    assert spec == {"name": "RoPE", "base": "1e2", "axes": 2}


@pytest.mark.parametrize(
    "spec, error, message",
    [
        ({"name": "ALiBi"}, ValueError, "^ALiBi is for the bias slot, not for rotary; known there: .*RoPE"),
        ({"axes": 2}, ValueError, r"^the rotary slot must have a name, got \{'axes': 2\}; known: .*RoPE"),
        ({"name": 5}, ValueError, "the rotary slot must have a name"),
        ({"name": "RoPE", "bases": 5}, TypeError, r"RoPE has no argument 'bases'; did you mean 'base'\?"),
        ({"name": "Ropes"}, ValueError, "unknown encoding 'Ropes'; did you mean 'RoPE'"),
        ("RoPE", TypeError, r"^the rotary slot must be \{name: ...\}, a callable or null, got 'RoPE'"),
        (ALiBi(4), ValueError, "^ALiBi is no RotaryEncoding and cannot stand in the rotary slot"),
        (ALiBi, ValueError, "ALiBi is no RotaryEncoding"),
        (lambda: 5, ValueError, "is no RotaryEncoding"),
        (lambda speed: Turn(8, speed), TypeError, "needs speed"),
    ],
)
def test_a_wrong_slot_is_named(spec, error, message):
    with pytest.raises(error, match=message):
        build(spec, kind="rotary", dim=96, num_heads=4)


def test_a_wrong_kind_is_named():
    with pytest.raises(ValueError, match=r"unknown kind 'rotray'; did you mean 'rotary'\?"):
        build(None, kind="rotray")


# Users' own


@pytest.mark.usefixtures("own_names")
def test_an_encoding_of_the_users_own_joins_by_its_interface():
    register_encoding("Turn", Turn)
    assert "Turn" in list_encodings("rotary")
    assert build({"name": "Turn", "speed": "1e-2"}, kind="rotary", dim=32, num_heads=2).speed == 0.01
    register_encoding("Steady", Steady)
    assert "Steady" in list_encodings("scale")


@pytest.mark.usefixtures("own_names")
def test_a_function_joins_with_its_kind():
    register_encoding("Slow", partial(Turn, speed=0.1), kind="rotary")
    assert create_encoding("Slow", head_dim=8).speed == 0.1
    assert build({"name": "Slow", "speed": 0.2}, kind="rotary", head_dim=8).speed == 0.2


@pytest.mark.usefixtures("own_names")
@pytest.mark.parametrize(
    "arguments, error, message",
    [
        (("RoPE", Turn), ValueError, "the encoding name 'RoPE' is taken"),
        (
            ("Mine", nn.Linear),
            TypeError,
            "Linear implements none of AdditiveEncoding, RotaryEncoding, AttentionBias, LogitScale",
        ),
        (("Mine", 5), TypeError, "factory must be a class or a function, got 5"),
        (("Mine", lambda: Turn(8)), ValueError, "kind must be one of additive, rotary, bias, scale"),
        (("Mine", lambda: Turn(8), "rotray"), ValueError, "unknown kind 'rotray'"),
        (("Mine", Turn, "bias"), ValueError, "Turn .*bias"),
    ],
)
def test_a_wrong_registration_is_named(arguments, error, message):
    name, made, *kind = arguments
    with pytest.raises(error, match=message):
        register_encoding(name, made, kind=kind[0] if kind else None)
    assert name == "RoPE" or name not in list_encodings()


def test_names_registered_in_tests_are_forgotten():
    assert "Turn" not in list_encodings()


# Files


POSITIONS = """
text:
  rotary: {name: RoPE, base: 5e5}
image:
  additive: null
  rotary: {name: RoPE, axes: 2, base: 1e2}
  bias: {name: ALiBi, axes: 2}
video:
  additive: {name: LearnedTable, size: [2, 3, 4]}
"""


@pytest.fixture
def positions(tmp_path):
    def write(text):
        path = tmp_path / "positions.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_a_file_gives_the_slots_of_every_modality(positions):
    slots = load_encodings(positions(POSITIONS), dim=96, num_heads=4)
    assert list(slots) == ["text", "image", "video"]
    assert all(isinstance(block, Encodings) for block in slots.values())
    assert repr(slots["text"].rotary) == repr(RoPE(24, base=500000.0))
    assert repr(slots["image"]) == repr(Encodings(None, RoPE(24, axes=2, base=100.0), ALiBi(4, axes=2), None))
    assert isinstance(slots["video"].additive, AdditiveEncoding)
    assert slots["video"].additive.weight.shape == (2, 3, 4, 96)
    assert slots["video"][1:] == (None, None, None)
    assert load_encodings(str(positions(POSITIONS)), head_dim=8, num_heads=2, dim=16)["text"].rotary.head_dim == 8


@pytest.mark.parametrize(
    "text, error, message",
    [
        (
            "image: {rotary: {name: RoPe}}",
            ValueError,
            r"positions.yaml: image.rotary: unknown encoding 'RoPe'; did you mean 'RoPE'\?",
        ),
        ("image: {rotary: {name: ALiBi}}", ValueError, "image.rotary: ALiBi is for the bias slot"),
        (
            "image: {rotery: null}",
            ValueError,
            r"positions.yaml: image has an unknown slot 'rotery'; did you mean 'rotary'\?",
        ),
        (
            "image: {rotary: {name: RoPE, bse: 1}}",
            TypeError,
            r"image.rotary: RoPE has no argument 'bse'; did you mean 'base'\?",
        ),
        (
            "image: {rotary: {name: RoPE, axes: 5}}",
            ValueError,
            r"image.rotary: head_dim \(24\) must be a multiple of 2 \* axes \(10\)",
        ),
        ("image: {additive: {name: LearnedTable}}", TypeError, "image.additive: LearnedTable needs size"),
        (
            "image: {rotary: RoPE}",
            TypeError,
            r"image.rotary: the rotary slot must be \{name: ...\}, a callable or null, got 'RoPE'",
        ),
        ("- image", ValueError, "must have a block of slots for each modality"),
        ("", ValueError, "must have a block of slots for each modality, got None"),
        ("image: RoPE", ValueError, "must have a block of slots for each modality"),
        ("image: {rotary: [", ValueError, "positions.yaml is not YAML"),
    ],
)
def test_a_wrong_file_names_the_slot(positions, text, error, message):
    with pytest.raises(error, match=message):
        load_encodings(positions(text), dim=96, num_heads=4)


def test_a_missing_file_is_named():
    with pytest.raises(FileNotFoundError, match=r"nowhere\.yaml"):
        load_encodings("nowhere.yaml")


def test_heads_that_do_not_divide_the_width_matter_only_where_a_head_dim_is_needed():
    assert build({"name": "Sinusoidal"}, kind="additive", dim=50, num_heads=4).dim == 50
    assert build({"name": "RoPE", "head_dim": 8}, kind="rotary", dim=50, num_heads=4).head_dim == 8
    assert build(partial(RoPE, head_dim=8), kind="rotary", dim=50, num_heads=4).head_dim == 8
    with pytest.raises(ValueError, match=r"dim \(50\) must be a multiple of num_heads \(4\)"):
        build({"name": "RoPE"}, kind="rotary", dim=50, num_heads=4)


COMBINED = {"name": "Sum", "on": [[0], [1, 2]], "parts": [{"name": "Sinusoidal"}, {"name": "LearnedTable"}]}


def test_the_word_on_is_a_name_in_yaml_too(tmp_path):
    path = tmp_path / "positions.yaml"
    path.write_text(
        "video: {additive: {name: Sum, on: [[0], [1, 2]], parts: [{name: Sinusoidal}, {name: LearnedTable}]}}"
    )
    encoding = load_encodings(path, dim=24, size=(4, 3, 5))["video"].additive
    assert encoding.on == ((0,), (1, 2))
    assert encoding.parts[1].weight.shape == (3, 5, 24)


def test_parts_of_a_sum_get_the_width_and_the_sizes_of_their_axes():
    both = build(COMBINED, kind="additive", dim=12, size=(4, 7, 5))
    assert both.axes == 3
    assert both.parts[0].dim == both.parts[1].dim == both.dim == 12
    assert both.parts[1].size == (7, 5)
    resized = both.resize(8, 9, 6)
    assert resized.parts[1].size == (9, 6)


def test_parts_side_by_side_have_widths_of_their_own():
    parts = [{"name": "Sinusoidal", "dim": 4}, {"name": "LearnedTable", "dim": 8, "size": [7, 5]}]
    spec = {"name": "Concat", "on": [[0], [1, 2]], "parts": parts}
    assert build(spec, kind="additive", dim=12).dim == 12
    assert create_encoding(**spec).dim == 12
    with pytest.raises(ValueError, match="Concat gives 12 channels, but a token has 16"):
        build(spec, kind="additive", dim=16)
    with pytest.raises(TypeError, match="Sinusoidal needs dim"):
        build({**spec, "parts": [{"name": "Sinusoidal"}, parts[1]]}, kind="additive", dim=12)


def test_parts_that_are_no_encodings_are_refused():
    with pytest.raises(TypeError, match="parts must be a list of encodings, got 'Sinusoidal'"):
        create_encoding("Sum", parts="Sinusoidal")
    with pytest.raises(ValueError, match="ALiBi is for the bias slot"):
        create_encoding("Sum", parts=[{"name": "ALiBi"}])
    with pytest.raises(TypeError, match="parts of Sum must be built additive encodings, got None"):
        create_encoding("Sum", parts=[None])


def test_a_window_is_the_size_of_the_grid_unless_it_is_given():
    assert build({"name": "SwinBias"}, kind="bias", num_heads=3, size=(7, 5)).window == (7, 5)
    assert build({"name": "SwinBias", "window": [3, 4]}, kind="bias", num_heads=3, size=(7, 5)).window == (3, 4)
