"""Configs and checkpoints of strangers: nothing in them runs, and nothing in them is followed in silence."""

import os
from pathlib import Path

import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st

import mmpos
from mmpos.cli import main
from mmpos.factory import ENCODINGS, build
from mmpos.presets import PRESETS
from mmpos.values import VALUES

from .outcomes import check_refusal, examples

ROOT = Path(__file__).parents[2]
MARK = "ran.txt"
SMALL = ["--model.dim", "16", "--model.depth", "1", "--model.num_heads", "2", "--data.batch_size", "640"]
QUICK = ["--trainer.max_epochs", "1", "--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false"]


class Program:
    """Leaves a mark where it is unpickled."""

    def __reduce__(self):
        return os.system, (f"touch {MARK}",)


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MMPOS_DEBUG", raising=False)
    yield
    assert not Path(MARK).exists()


def fail(*args):
    with pytest.raises(SystemExit) as exit:
        main([*args, *SMALL, *QUICK], base_config=ROOT / "configs" / "base.yaml")
    assert isinstance(exit.value.code, str), exit.value.code
    return exit.value.code.splitlines()[0]


@pytest.mark.parametrize("command, flag", [("fit", "--weights"), ("fit", "--ckpt_path"), ("test", "--ckpt_path")])
def test_a_checkpoint_that_is_a_program_is_not_run(command, flag):
    torch.save({"state_dict": {}, "hyper_parameters": Program(), "epoch": 0, "global_step": 0}, "crafted.ckpt")
    message = fail(command, "--config", str(ROOT / "configs" / "image" / "none.yaml"), flag, "crafted.ckpt")
    assert "holds more than tensors and plain values (posix.system)" in message


def test_the_mark_would_be_left():
    torch.save(Program(), "crafted.ckpt")
    torch.load("crafted.ckpt", weights_only=False)
    assert Path(MARK).exists()
    Path(MARK).unlink()


def test_no_config_can_have_a_checkpoint_trusted():
    Path("trust.yaml").write_text("weights_only: false\n")
    torch.save({"state_dict": {}, "hyper_parameters": Program()}, "crafted.ckpt")
    none = str(ROOT / "configs" / "image" / "none.yaml")
    assert "weights_only is always true" in fail(
        "fit", "--config", none, "--config", "trust.yaml", "--ckpt_path", "crafted.ckpt"
    )


TAGS = [
    f"!!python/object/apply:os.system ['touch {MARK}']",
    f"!!python/object/apply:subprocess.check_output [[touch, {MARK}]]",
    f"!!python/object/new:os.system ['touch {MARK}']",
    "!!python/name:os.system",
    "!!python/module:antigravity",
    "!!python/object:mmpos.RoPE {head_dim: 8}",
]


@pytest.mark.parametrize("tag", TAGS)
def test_a_tag_of_yaml_makes_no_object(tag):
    Path("positions.yaml").write_text(f"image:\n  rotary: {tag}\n")
    with pytest.raises(ValueError, match=r"positions.yaml is not YAML: could not determine a constructor for the tag"):
        mmpos.load_encodings("positions.yaml", dim=16, num_heads=2)
    Path("crafted.yaml").write_text(f"model:\n  rotary: {tag}\n")
    message = fail("fit", "--config", str(ROOT / "configs" / "image" / "none.yaml"), "--config", "crafted.yaml")
    assert message.startswith("error: ")


PATHS = ["os.system", "mmpos.RoPE", "mmpos.encodings.rotary.RoPE", "RoPE.__init__", "torch.nn.Linear", "builtins.eval",
         "__import__", "ENCODINGS", "../RoPE", "torch:nn", ""]  # fmt: skip


@pytest.mark.parametrize("name", PATHS)
def test_a_slot_names_what_the_factory_has_and_nothing_else(name):
    for text in (
        f"image: {{rotary: {{name: '{name}'}}}}",
        f"image: {{rotary: {{name: RoPE, head_dim: 16, spectrum: {{name: '{name}'}}}}}}",
        f"image: {{additive: {{name: Sum, parts: [{{name: '{name}'}}]}}}}",
    ):
        Path("positions.yaml").write_text(text)
        with pytest.raises(ValueError, match=r"unknown (encoding|value)"):
            mmpos.load_encodings("positions.yaml", dim=16, num_heads=2)
    Path("crafted.yaml").write_text(f"model: {{rotary: {{name: '{name}', class_path: os.system}}}}\n")
    if name in ("", "os.system"):
        message = fail("fit", "--config", str(ROOT / "configs" / "image" / "none.yaml"), "--config", "crafted.yaml")
        assert "unknown encoding" in message


@pytest.mark.parametrize("text", ["image: {rotary: os.system}", "image: {rotary: [RoPE]}", "image: {rotary: 3}"])
def test_a_slot_of_yaml_is_a_mapping(text):
    Path("positions.yaml").write_text(text)
    with pytest.raises((TypeError, ValueError), match=r"the rotary slot must be"):
        mmpos.load_encodings("positions.yaml", dim=16, num_heads=2)


@pytest.mark.parametrize(
    "text, key",
    [
        ("image: {rotary: null}\nimage: {bias: null}", "'image' stands twice .line 2."),
        ("image:\n  rotary: {name: RoPE, axes: 2, axes: 3}", "'axes' stands twice .line 2."),
        ("image:\n  additive: {name: Sum, parts: [{name: Fourier, dim: 8, name: Sinusoidal}]}", "'name' stands twice"),
        ("image:\n  bias: null\n  bias: {name: ALiBi}", "'bias' stands twice .line 3."),
        ("image: {rotary: {name: RoPE, true: 1, on: 2}}", "True stands twice"),
    ],
)
def test_a_key_that_stands_twice_is_refused(text, key):
    Path("positions.yaml").write_text(text)
    with pytest.raises(ValueError, match=key):
        mmpos.load_encodings("positions.yaml", dim=16, num_heads=2)


def test_an_anchor_and_a_merge_are_no_second_key():
    Path("positions.yaml").write_text(
        "image: &own {rotary: &rope {name: RoPE, axes: 2}}\n"
        "video: {<<: *own, rotary: {<<: *rope, axes: 3, head_dim: 12}}"
    )
    slots = mmpos.load_encodings("positions.yaml", dim=16, num_heads=2)
    assert (slots["image"].rotary.axes, slots["video"].rotary.axes) == (2, 3)


LEVELS = "\n".join(f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 9) if i else 'x'}]" for i in range(9))


@pytest.mark.parametrize(
    "text",
    [LEVELS, "image: &a {rotary: *a}", "image: &a [*a]", "[" * 3000, "image: {rotary: " + "{a: " * 60 + "1" + "}" * 61],
    ids=["aliases of aliases", "itself", "list of itself", "brackets", "mappings"],
)
def test_what_unfolds_without_end_is_refused(text):
    Path("positions.yaml").write_text(text)
    with pytest.raises(ValueError, match=r"unfolds to more|nested too deep|is not YAML"):
        mmpos.load_encodings("positions.yaml", dim=16, num_heads=2)


WORDS = st.sampled_from([
    *sorted(ENCODINGS), *sorted(PRESETS)[:40], *sorted(VALUES), "image", "text", "additive", "rotary", "bias", "scale",
    "name", "axes", "dim", "head_dim", "num_heads", "size", "parts", "on", "series", "spectrum", "scaling", "factor",
    "train_length", "base", "os.system", "__class__", "window", "period", "1e-4", "yes", "~", "per_layer", "learned",
])  # fmt: skip
LEAVES = st.one_of(st.none(), st.booleans(), st.integers(-3, 70), st.floats(), WORDS, st.text(max_size=4))
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(WORDS, inner, max_size=4)),
    max_leaves=9,
)
SPECS = st.fixed_dictionaries(
    {"name": st.one_of(st.sampled_from([*sorted(ENCODINGS), *sorted(PRESETS)]), WORDS)},
    optional=dict.fromkeys(("axes", "spectrum", "scaling", "size", "parts", "on", "window", "base", "periods"), TREES),
)
KINDS = st.sampled_from(["additive", "rotary", "bias", "scale"])
FILES = st.one_of(
    st.dictionaries(
        WORDS, st.one_of(st.dictionaries(KINDS, st.one_of(SPECS, TREES), max_size=2), TREES), max_size=2
    ).map(lambda tree: yaml.safe_dump(tree)),
    TREES.map(yaml.safe_dump),
    st.text(max_size=40),
    st.text(alphabet="{}[]:,&*!?|>-'\"#%@`<= \n~0x1:_e.+ab", max_size=40),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzzed")


@examples(60)
@given(text=FILES)
def test_files_are_read_or_refused(folder, text):
    check_file((folder, text))


def check_file(made):
    folder, text = made
    path = folder / "positions.yaml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        slots = mmpos.load_encodings(path, dim=24, num_heads=2, size=(3, 4))
    except Exception as error:
        if type(error) not in (ValueError, TypeError) or not str(error).startswith(str(path)):
            raise AssertionError(f"not refused but failed: {error!r}") from error
        return
    for encodings in slots.values():
        for kind, encoding in zip(encodings._fields, encodings, strict=True):
            assert encoding is None or isinstance(encoding, mmpos.factory.INTERFACES[kind])


@examples(40)
@given(kind=KINDS, spec=st.one_of(SPECS, TREES))
def test_specs_are_built_or_refused(kind, spec):
    check_spec((kind, spec))


def check_spec(made):
    kind, spec = made
    try:
        built = build(spec, kind=kind, dim=24, num_heads=2, size=(3, 4))
    except Exception as error:
        check_refusal(error, set(str(error).replace("'", " ").split()))  # the message names something: see the type
        return
    assert built is None or isinstance(built, mmpos.factory.INTERFACES[kind])
