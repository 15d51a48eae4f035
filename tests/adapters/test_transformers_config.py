"""Configs of transformers, read and written, and the table of a model's layers."""

import copy
import json
import re

import pytest
import torch

pytest.importorskip("transformers", reason="needs transformers")

import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from mmpos import Mixed, RoPE, Sections, XPos, sequence_coords
from mmpos.adapters.transformers import describe, replace_rope, rope_from_config, rope_to_config
from mmpos.scaling import NTK, DynamicNTK, Llama3, LongRoPE, PositionInterpolation, Proportional, RIFLEx, YaRN
from mmpos.spectra import Axial

ORIGINAL = "original_max_position_embeddings"
SHORT, LONG = [1 + 0.1 * i for i in range(6)], [2 + 1.5 * i for i in range(6)]
SIZES = {"hidden_size": 48, "num_attention_heads": 4, "num_hidden_layers": 4, "max_position_embeddings": 128}
YARN = {"rope_type": "yarn", "factor": 4.0, ORIGINAL: 32}
TYPES = {
    "default": ({"rope_type": "default"}, None),
    "linear": ({"rope_type": "linear", "factor": 2.5}, PositionInterpolation(2.5)),
    "dynamic": ({"rope_type": "dynamic", "factor": 2.0}, DynamicNTK(2.0, 128)),
    "yarn": (YARN, YaRN(4.0, 32)),
    "yarn of settings": (
        {**YARN, "beta_fast": 16.0, "beta_slow": 2.0, "truncate": False, "attention_factor": 1.25},
        YaRN(4.0, 32, 16.0, 2.0, truncate=False, attention_factor=1.25),
    ),
    "yarn of mscale": ({**YARN, "mscale": 0.7, "mscale_all_dim": 1.5}, YaRN(4.0, 32, mscale=0.7, mscale_all_dim=1.5)),
    "longrope": (
        {"rope_type": "longrope", "short_factor": SHORT, "long_factor": LONG, "factor": 4.0, ORIGINAL: 32},
        LongRoPE(SHORT, LONG, 32, factor=4.0),
    ),
    "llama3": (
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, ORIGINAL: 32},
        Llama3(8.0, 1.0, 4.0, 32),
    ),
    "proportional": ({"rope_type": "proportional", "partial_rotary_factor": 0.5}, Proportional(0.5)),
}


def llama(**settings):
    return transformers.LlamaConfig(**copy.deepcopy({**SIZES, **settings}))


def test_every_type_of_transformers_is_known():
    assert set(ROPE_INIT_FUNCTIONS) | {"default"} == {kind.split()[0] for kind in TYPES}


@pytest.mark.parametrize("length", [20, 128, 300])
@pytest.mark.parametrize("name", TYPES)
def test_types(name, length):
    parameters, scaling = TYPES[name]
    config = llama(rope_parameters={**parameters, "rope_theta": 5e4})
    rope = rope_from_config(config)
    assert (rope.head_dim, rope.base, rope.layout, rope.scaling) == (12, 5e4, "half", scaling)
    own = LlamaRotaryEmbedding(config)(torch.zeros(1), torch.arange(length)[None])
    for ours, theirs in zip(rope(sequence_coords(length))[:2], own, strict=True):
        torch.testing.assert_close(torch.cat([ours[0], ours[0]], -1), theirs[0], atol=1e-6 * length, rtol=0)


@pytest.mark.parametrize("name", TYPES)
def test_both_spellings_and_plain_mappings_say_the_same(name):
    parameters, _ = TYPES[name]
    rope_type = parameters["rope_type"]
    rest = {key: value for key, value in parameters.items() if key != "rope_type"}
    want = repr(rope_from_config(llama(rope_parameters={**parameters, "rope_theta": 5e4})))
    for settings in (
        {"rope_parameters": {**parameters, "rope_theta": 5e4}},
        {"rope_parameters": parameters, "rope_theta": 5e4},
        {"rope_scaling": parameters, "rope_theta": 5e4},
        {"rope_scaling": {"type": rope_type, **rest}, "rope_theta": 5e4},
    ):
        assert repr(rope_from_config(llama(**settings))) == want
        for fields in ({**SIZES, **settings}, {**SIZES, **settings, "model_type": "llama"}):
            before = copy.deepcopy(fields)
            assert repr(rope_from_config(fields)) == want
            assert fields == before
    saved = json.loads(llama(rope_parameters={**parameters, "rope_theta": 5e4}).to_json_string())
    assert repr(rope_from_config(saved)) == want


@pytest.mark.parametrize("name", TYPES)
def test_there_and_back(name):
    parameters, _ = TYPES[name]
    rope = rope_from_config(llama(rope_parameters={**parameters, "rope_theta": 5e4}))
    written = rope_to_config(rope)
    assert written.items() >= {**parameters, "rope_theta": 5e4}.items()
    assert repr(rope_from_config(llama(rope_parameters=written))) == repr(rope)
    assert rope_to_config(rope_from_config({**SIZES, "rope_parameters": written})) == written
    json.dumps(written)


@pytest.mark.parametrize("head_dim, rotary_dim", [(12, 6), (96, 24), (80, 32), (100, 58), (52, 28), (44, 36)])
def test_a_part_of_the_head(head_dim, rotary_dim):
    written = rope_to_config(RoPE(head_dim, rotary_dim=rotary_dim, base=100.0))
    rope = rope_from_config({"head_dim": head_dim, "rope_parameters": written})
    assert (rope.rotary_dim, rope.base) == (rotary_dim, 100.0)
    old = {"head_dim": head_dim, "rope_theta": 100.0, "partial_rotary_factor": written["partial_rotary_factor"]}
    assert repr(rope_from_config(old)) == repr(rope)


def test_ntk_is_a_base():
    rope, coords = RoPE(12, base=5e4, scaling=NTK(3.0)), sequence_coords(40)
    written = rope_to_config(rope)
    assert written == {"rope_type": "default", "rope_theta": pytest.approx(5e4 * 3 ** (12 / 10))}
    again = rope_from_config({"head_dim": 12, "rope_parameters": written})
    torch.testing.assert_close(again(coords).cos, rope(coords).cos, atol=1e-6, rtol=0)


def test_longrope_takes_its_factor_from_the_lengths():
    parameters = {"type": "su", "short_factor": SHORT, "long_factor": LONG}
    fields = {**SIZES, ORIGINAL: 16, "rope_scaling": parameters, "rope_theta": 1e4}
    assert rope_from_config(fields).scaling == LongRoPE(SHORT, LONG, 16, factor=8.0)
    without = rope_to_config(RoPE(12, scaling=LongRoPE(SHORT, LONG, 16)))
    assert without["attention_factor"] == 1.0


def test_sections():
    rope = RoPE(16, axes=3, spectrum=Sections((4, 2, 2)), scaling=YaRN(4.0, 32))
    written = rope_to_config(rope)
    assert written["mrope_section"] == [4, 2, 2]
    assert repr(rope_from_config({"head_dim": 16, "rope_parameters": written})) == repr(rope)
    turns = RoPE(16, axes=3, spectrum=Sections((4, 2, 2), interleaved=True))
    assert repr(rope_from_config({"head_dim": 16, "rope_parameters": rope_to_config(turns)})) == repr(turns)
    text = {"hidden_size": 64, "num_attention_heads": 4, "rope_scaling": {"type": "mrope", "mrope_section": [4, 2, 2]}}
    config = transformers.Qwen2VLTextConfig(**text)
    assert rope_from_config(config).spectrum == Sections((4, 2, 2))
    with pytest.raises(ValueError, match="cannot be interleaved"):
        rope_from_config({"head_dim": 16, "rope_parameters": {"mrope_section": [2, 3, 3], "mrope_interleaved": True}})


# Models whose layers differ


def test_kinds_of_layers_with_encodings_of_their_own():
    old = {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    config = transformers.Gemma3TextConfig(**SIZES, head_dim=16, sliding_window_pattern=2, **old)
    layers = rope_from_config(config)
    assert [rope.base for rope in layers] == [1e4, 1e6] * 2
    assert [rope.scaling for rope in layers] == [None, PositionInterpolation(8.0)] * 2
    assert layers[0] is layers[2]
    assert layers[1] is layers[3]
    written = rope_to_config(layers, config.layer_types)
    assert written == config.rope_parameters
    again = transformers.Gemma3TextConfig(**SIZES, head_dim=16, sliding_window_pattern=2, rope_parameters=written)
    assert repr(rope_from_config(again)) == repr(layers)
    fields = {**SIZES, "head_dim": 16, "sliding_window_pattern": 2, "model_type": "gemma3_text", **old}
    assert repr(rope_from_config(fields)) == repr(layers)
    composite = transformers.Gemma3Config(text_config=config)
    assert repr(rope_from_config(composite)) == repr(layers)

    yarn = {"rope_type": "yarn", "factor": 4.0, ORIGINAL: 32, "rope_theta": 5e5}
    nested = {"sliding_attention": {"rope_type": "default", "rope_theta": 5e5}, "full_attention": yarn}
    olmo = rope_from_config(transformers.Olmo3Config(**SIZES, rope_parameters=nested))
    assert [rope.scaling for rope in olmo] == [None, None, None, YaRN(4.0, 32)]
    assert isinstance(rope_from_config(transformers.Olmo3Config(**SIZES, rope_theta=5e5)), RoPE | list)


def test_layers_that_do_not_rotate():
    smollm = rope_from_config(transformers.SmolLM3Config(**SIZES, no_rope_layers=[1, 0, 1, 1]))
    assert [rope is None for rope in smollm] == [False, True, False, False]
    assert smollm[0] is smollm[2]
    llama4 = rope_from_config(transformers.Llama4TextConfig(**SIZES, head_dim=16))
    assert [rope is None for rope in llama4] == [False, False, False, True]
    assert llama4[0].layout == "interleaved"
    command = rope_from_config(transformers.Cohere2Config(**SIZES))
    assert [rope is None for rope in command] == [False, False, False, True]
    assert command[0].layout == "interleaved"
    assert rope_to_config(smollm)["rope_type"] == "default"
    assert rope_from_config({"head_dim": 12, "rope_parameters": rope_to_config(None)}) is None
    assert rope_from_config({"head_dim": 12, "rope_theta": 1e4, "partial_rotary_factor": 0.0}) is None


def test_layers_that_cannot_be_written():
    one, other = RoPE(12), RoPE(12, base=5.0)
    with pytest.raises(ValueError, match="2 encodings differ between layers: layer_types"):
        rope_to_config([one, other])
    with pytest.raises(ValueError, match="kind 'full' turn alike, but layer 2"):
        rope_to_config([one, other, other], ["full", "other", "full"])
    with pytest.raises(ValueError, match="2 entries, but there are 3 layers"):
        rope_to_config([one, other], ["full", "other", "full"])
    assert rope_to_config([one, RoPE(12)], ["full", "full"]) == {"full": rope_to_config(one)}


# What is wrong


@pytest.mark.parametrize(
    "settings, match",
    [
        ({"rope_scaling": {"type": "linear", "rope_type": "yarn", "factor": 2.0}}, "type and rope_type"),
        (
            {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {"rope_theta": 1e4}},
            "rope_type of rope_scaling and rope_parameters is 'linear' and 'default'",
        ),
        (
            {
                "rope_scaling": {"type": "linear", "factor": 2.0},
                "rope_parameters": {"rope_type": "linear", "factor": 3.0},
            },
            "factor of rope_scaling and rope_parameters is 2.0 and 3.0",
        ),
        ({"rope_theta": 1e4, "rope_parameters": {"rope_theta": 5e5}}, "rope_theta is 10000.0 and 500000.0"),
        ({"partial_rotary_factor": 0.5, "rope_parameters": {"partial_rotary_factor": 0.25}}, "partial_rotary_factor"),
        ({ORIGINAL: 16, "rope_parameters": YARN}, "original_max_position_embeddings is 16 and 32"),
    ],
)
@pytest.mark.parametrize("model_type", [None, "llama"])
def test_contradictions(settings, match, model_type):
    named = {} if model_type is None else {"model_type": model_type}
    with pytest.raises(ValueError, match=match):
        rope_from_config({**SIZES, **settings, **named})


def test_contradictions_of_an_object():
    config = llama(rope_theta=1e4)
    config.rope_theta = 5e5
    with pytest.raises(ValueError, match=r"rope_theta is 500000\.0 and 10000\.0"):
        rope_from_config(config)


@pytest.mark.parametrize(
    "fields, match",
    [
        ({"head_dim": 12}, "no rotary settings"),
        ({"rope_theta": 1e4}, "needs head_dim, or hidden_size"),
        ({"head_dim": 12, "rope_parameters": {"rope_type": "yarm", "factor": 2.0}}, "unknown rope_type 'yarm'; known"),
        ({"head_dim": 12, "rope_parameters": {"rope_type": "linear"}}, "'linear' needs factor"),
        ({"head_dim": 12, "rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, f"'yarn' needs {ORIGINAL}"),
        ({"head_dim": 12, "rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "max_position_embeddings"),
        (
            {"head_dim": 12, "rope_parameters": {"rope_type": "llama3", "factor": 2.0, ORIGINAL: 8}},
            "low_freq_factor and",
        ),
        ({"head_dim": 12, "rope_parameters": {"rope_type": "proportional", "factor": 2.0}}, "not offered"),
        ({"head_dim": 12, "rope_parameters": {"full": {}, "other": {}}}, "need layer_types"),
        (
            {"head_dim": 12, "rope_parameters": {"full": {}}, "layer_types": ["full", "other"], "num_hidden_layers": 2},
            r"\['other'\] but settings for \['full'\]",
        ),
    ],
)
def test_settings_that_are_missing_or_unknown(fields, match):
    with pytest.raises(ValueError, match=match):
        rope_from_config(fields)


@pytest.mark.parametrize(
    "rope, match",
    [
        (RoPE(12, xpos=XPos()), "xpos"),
        (RoPE(12, num_heads=4, rotary_heads=2), "rotary_heads=2"),
        (RoPE(12, axes=2), "on 2 axes"),
        (RoPE(12, spectrum=Axial(channels=(8,))), "spectrum="),
        (RoPE(12, spectrum=Mixed(), num_heads=2), "spectrum=Mixed"),
        (RoPE(12, scaling=RIFLEx(1, 8)), "scaling=RIFLEx"),
        (RoPE(12, rotary_dim=6, scaling=Proportional(0.5)), "of 6 channels"),
        (RoPE(12, axes=3, spectrum=Sections((2, 2, 2)), scaling=[NTK(2), None, None]), "of each axis"),
    ],
)
def test_what_transformers_cannot_say(rope, match):
    with pytest.raises(ValueError, match=match):
        rope_to_config(rope)


@pytest.mark.parametrize(
    "fields, match",
    [
        ({"head_dim": 12, "rope_theta": "abc"}, "rope_theta must be a number, got 'abc'"),
        ({"head_dim": 12, "rope_theta": True}, "rope_theta must be a number, got True"),
        ({"head_dim": 12, "rope_theta": 1e4, "partial_rotary_factor": "1"}, "partial_rotary_factor must be a number"),
        ({"head_dim": 12, "rope_scaling": "linear"}, "rope_scaling must be a mapping, got 'linear'"),
        ({"head_dim": 12, "rope_parameters": ["yarn"]}, r"rope_parameters must be a mapping, got \['yarn'\]"),
        ({"head_dim": 12, "rope_parameters": {"rope_type": ["yarn"]}}, r"rope_type must be a name, got \['yarn'\]"),
        (None, "config must be a config of transformers or a mapping, got NoneType"),
        ("llama", "config must be a config of transformers or a mapping, got str"),
    ],
)
def test_settings_of_a_wrong_type(fields, match):
    with pytest.raises(TypeError, match=match):
        rope_from_config(fields)


def test_other_settings_that_cannot_be():
    for share in (1.5, -0.5):
        with pytest.raises(ValueError, match=f"partial_rotary_factor must be from 0 to 1, got {share}"):
            rope_from_config({"head_dim": 12, "rope_theta": 1e4, "partial_rotary_factor": share})
    for rope in ("RoPE", [RoPE(12), "RoPE"], (RoPE(12), RoPE)):
        with pytest.raises(TypeError, match="rope must be a RoPE, None, or a list of these"):
            rope_to_config(rope)
    model = tiny("Llama", num_hidden_layers=0)
    with pytest.raises(ValueError, match="LlamaConfig has no layers: num_hidden_layers is 0"):
        rope_from_config(model.config)
    assert describe(model).layers == ()
    assert describe(model).problems == ("the model has no layers",)


# Tables


def tiny(name, **settings):
    config = getattr(transformers, f"{name}Config")(**{**SIZES, "intermediate_size": 20, "vocab_size": 30, **settings})
    return transformers.AutoModelForCausalLM.from_config(config)


def test_a_table_of_layers():
    table = describe(tiny("SmolLM3", no_rope_layers=[1, 0, 1, 1], num_key_value_heads=2, pad_token_id=0))
    assert [row.rotates for row in table.layers] == [True, False, True, True]
    assert [row.width for row in table.layers] == [12, None, 12, 12]
    assert not table.problems
    lines = str(table).splitlines()
    assert " ".join(lines[0].split()) == "layer kind rotates base scaling width head_dim layout window bias"
    assert lines[2].split()[:4] == ["1", "full_attention", "no", "-"]

    command = describe(tiny("Cohere2", sliding_window=6, pad_token_id=0, num_key_value_heads=2))
    assert [(row.rotates, row.window) for row in command.layers] == [(True, 6)] * 3 + [(False, None)]
    assert {row.layout for row in command.layers if row.rotates} == {"interleaved"}
    neox = describe(tiny("GPTNeoX", rotary_pct=0.5))
    assert {(row.width, row.head_dim) for row in neox.layers} == {(6, 12)}


def test_tables_of_models_without_rotation():
    bloom = transformers.BloomForCausalLM(transformers.BloomConfig(hidden_size=8, n_head=2, n_layer=2, vocab_size=30))
    assert [(row.rotates, row.bias) for row in describe(bloom).layers] == [(False, "ALiBi")] * 2
    gpt2 = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_embd=8, n_head=2, n_layer=3, vocab_size=30))
    assert [(row.rotates, row.bias) for row in describe(gpt2).layers] == [(False, None)] * 3
    with pytest.raises(TypeError, match="must be a model of transformers, got Linear"):
        describe(torch.nn.Linear(2, 2))


@pytest.mark.parametrize(
    "settings, match",
    [
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "128.*smaller than factor.*512"),
        ({"rope_parameters": YARN, "max_position_embeddings": 100}, "100.*smaller than factor.*128"),
        ({"rope_parameters": {**YARN, "factor": 2.0}}, "128.*larger than factor.*64"),
        ({"rope_parameters": {**YARN, "betafast": 8}}, "does not read: betafast"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "does not do what its config"),
    ],
)
def test_what_looks_wrong(settings, match):
    problems = describe(tiny("Llama", **copy.deepcopy(settings))).problems
    assert len(problems) == 1
    assert re.search(match, problems[0]), problems


def test_what_looks_wrong_in_a_model():
    model = tiny("Llama")
    assert not describe(model).problems
    model.model.rotary_emb.inv_freq.mul_(1.1)
    assert describe(model).problems == ("the model does not turn as its config says",)
    assert describe(tiny("Llama").bfloat16()).problems == (
        "frequencies were rounded to torch.bfloat16 when the model was cast",
    )
    nested = {
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        "full_attention": {**YARN, "truncate": False, "rope_theta": 5e5},
    }
    problems = describe(tiny("Gemma3Text", head_dim=16, num_key_value_heads=2, rope_parameters=nested)).problems
    assert any("ignores truncate=False of full_attention" in problem for problem in problems)


def test_the_table_of_an_exchanged_encoding():
    model = tiny("Llama")
    replace_rope(model, RoPE(12, base=77.0, scaling=YaRN(4.0, 32)))
    table = describe(model)
    assert {(row.base, row.scaling) for row in table.layers} == {(77.0, YaRN(4.0, 32))}
    assert "YaRN(factor=4.0, train_length=32)" in str(table)
    assert not table.problems
