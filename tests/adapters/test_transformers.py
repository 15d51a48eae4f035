"""Models of transformers, tiny and random, with our rotary encoding in the place of their own."""

import copy

import pytest
import torch

pytest.importorskip("transformers", reason="needs transformers")

import transformers

from mmpos import Mixed, RoPE, Sections, XPos, sequence_coords
from mmpos.adapters.transformers import (
    describe,
    extend_context,
    remove_rope,
    replace_rope,
    restore_rope,
    rope_from_config,
)
from mmpos.scaling import NTK, DynamicNTK, Llama3, LongRoPE, PositionInterpolation, Proportional, YaRN
from mmpos.spectra import Learned

VOCABULARY, REACH = 61, 64
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "num_attention_heads": 4,
    "num_hidden_layers": 4,
    "intermediate_size": 40,
    "max_position_embeddings": REACH,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
    "attn_implementation": "eager",
}
GROUPED = {**SIZES, "num_key_value_heads": 2}
WIDE = {**GROUPED, "head_dim": 16}
LONG = {"short_factor": [1.0, 1.2, 1.5], "long_factor": [2.0, 3.0, 5.0]}
FAMILIES = {
    "Llama": {**GROUPED, "rope_theta": 5000.0},
    "Mistral": {**GROUPED, "sliding_window": 7},
    "Qwen2": GROUPED,
    "Qwen3": WIDE,
    "Gemma2": {**WIDE, "sliding_window": 5},
    "Gemma3": {
        **WIDE,
        "sliding_window": 5,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "rope_theta": 1e6,
        "rope_local_base_freq": 100.0,
    },
    "Phi3": {
        **GROUPED,
        "partial_rotary_factor": 0.5,
        "original_max_position_embeddings": 16,
        "rope_parameters": {"rope_type": "longrope", "original_max_position_embeddings": 16, **LONG},
    },
    "SmolLM3": GROUPED,
    "GPTNeoX": {**SIZES, "rotary_pct": 0.5},
    "GptOss": {**WIDE, "num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": 8},
    "Llama4": {
        **WIDE,
        "intermediate_size_mlp": 40,
        "num_local_experts": 2,
        "no_rope_layers": [1, 0, 1, 1],
        "attention_chunk_size": 8,
        "floor_scale": 4,
        "rope_theta": 5000.0,
    },
    "Olmo3": {**GROUPED, "sliding_window": 6, "rope_parameters": None},
    "Cohere": GROUPED,
    "Cohere2": {**GROUPED, "sliding_window": 6},
}
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning")


def make(family, **changes):
    name = f"{family}TextConfig" if family in ("Gemma3", "Llama4") else f"{family}Config"
    config = getattr(transformers, name)(**copy.deepcopy({**FAMILIES[family], **changes}))
    torch.manual_seed(1)
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():  # sharp enough for attention to depend on positions
        for each in model.parameters():
            each.copy_(torch.randn_like(each) * (0.15 if each.ndim > 1 else 0.1) + (each.ndim == 1))
    return model


def prompts():
    """Rows of 23, 9 and 1 tokens, padded on the left."""
    ids = torch.randint(1, VOCABULARY, (3, 23))
    mask = torch.arange(23) >= torch.tensor([[0], [14], [22]])
    return ids * mask, mask.long()


def logits(model, ids, mask):
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    with torch.no_grad():
        found = model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False).logits
    return found[mask.bool()]


def continuation(model, ids, mask, steps=12, use_cache=True):
    return model.generate(
        input_ids=ids, attention_mask=mask, max_new_tokens=steps, do_sample=False, use_cache=use_cache, pad_token_id=0
    )


def state(model):
    config = model.config.to_dict()
    return {name: type(module) for name, module in model.named_modules()}, config


def close(one, other, atol=1e-5):
    torch.testing.assert_close(one, other, atol=atol, rtol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_computes_what_it_did(family):
    model, (ids, mask) = make(family), prompts()
    keys = list(model.state_dict())
    before, told = logits(model, ids, mask), continuation(model, ids, mask)
    settings = repr(rope_from_config(model.config))
    replace_rope(model, rope_from_config(model.config))
    assert list(model.state_dict()) == keys
    assert repr(rope_from_config(model.config)) == settings
    close(logits(model, ids, mask), before)
    assert torch.equal(continuation(model, ids, mask), told)
    assert torch.equal(continuation(model, ids, mask, use_cache=False), told)
    restore_rope(model)
    assert torch.equal(logits(model, ids, mask), before)
    remove_rope(model)  # the comparison would see it if positions were wrong
    assert (logits(model, ids, mask) - before).abs().max() > 1e-2


@pytest.mark.parametrize("family", FAMILIES)
def test_the_rows_of_a_batch_are_as_they_are_alone(family):
    # The queries of Llama 4 are scaled by their place in the padded row, where nothing rotates.
    model = make(family, attn_temperature_tuning=False) if family == "Llama4" else make(family)
    ids, mask = prompts()
    if family == "Phi3":  # whose frequencies go by the longest row
        replace_rope(model, RoPE(12, rotary_dim=6))
    else:
        replace_rope(model, rope_from_config(model.config))
    together = continuation(model, ids, mask)[:, 23:]
    for row in range(3):
        real = mask[row].bool()
        alone = continuation(model, ids[row, real][None], mask[row, real][None])
        assert torch.equal(alone[0, real.sum() :], together[row]), row


def test_phi3_generates_past_the_length_at_which_its_frequencies_change():
    model, (ids, mask) = make("Phi3"), prompts()
    ids, mask = ids[:, 9:], mask[:, 9:]  # 14 tokens; the change is at 16
    told = continuation(model, ids, mask)
    replace_rope(model, rope_from_config(model.config))
    assert torch.equal(continuation(model, ids, mask), told)


EXTENSIONS = {
    "yarn": YaRN(4, REACH),
    "yarn of all settings": YaRN(4, REACH, 16, 2, truncate=False, attention_factor=1.25),
    "yarn of mscale": YaRN(4.5, REACH, mscale=0.7, mscale_all_dim=1.5),
    "linear": PositionInterpolation(2.5),
    "llama3": Llama3(4.0, 1.0, 4.0, REACH),
    "ntk": NTK(3.0),
    "dynamic": DynamicNTK(2.0, REACH),
    "longrope": LongRoPE([1.0 + 0.1 * i for i in range(6)], [2.0 + i for i in range(6)], REACH, factor=4.0),
    "longrope without a factor": LongRoPE([1.1] * 6, [2.0] * 6, REACH),
    "some pairs": Proportional(0.5),
}


@pytest.mark.parametrize("length", [20, 90])
@pytest.mark.parametrize("name", EXTENSIONS)
def test_an_extended_model_is_loaded_by_plain_transformers(name, length, tmp_path):
    model = make("Llama")
    ids = torch.randint(1, VOCABULARY, (2, length))
    mask = torch.ones_like(ids)
    before = logits(model, ids, mask)
    extend_context(model, EXTENSIONS[name])
    after = logits(model, ids, mask)
    assert ((after - before).abs().max() > 1e-3) == (name != "dynamic" or length > REACH)
    model.save_pretrained(tmp_path)
    plain = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
    assert type(plain.model.rotary_emb).__name__ == "LlamaRotaryEmbedding"
    close(logits(plain, ids, mask), after)
    coords, own = sequence_coords(length), model.model.rotary_emb.rope_of("all")
    close(rope_from_config(plain.config)(coords).cos, own(coords).cos, 1e-6)


@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in ("Phi3", "GptOss", "Gemma3")])
def test_families_extended_by_yarn(family, tmp_path):
    model, (ids, mask) = make(family), prompts()
    before = logits(model, ids, mask)
    extend_context(model, YaRN(4, 16))
    assert model.config.max_position_embeddings == REACH
    after = logits(model, ids, mask)
    assert (after - before).abs().max() > 1e-3
    model.save_pretrained(tmp_path)
    plain = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
    close(logits(plain, ids, mask), after)
    assert torch.equal(continuation(plain, ids, mask), continuation(model, ids, mask))
    rows = describe(model).layers
    assert {row.scaling for row in rows if row.rotates and row.kind != "sliding_attention"} <= {YaRN(4, 16)}
    assert describe(model).layers == describe(plain).layers


def test_windows_of_gemma3_keep_their_frequencies(tmp_path):
    model, (ids, mask) = make("Gemma3", rope_scaling=None), prompts()
    extend_context(model, YaRN(4, REACH))
    assert [row.scaling for row in describe(model).layers] == [None, YaRN(4, REACH)] * 2
    assert [row.base for row in describe(model).layers] == [100.0, 1e6] * 2
    model.save_pretrained(tmp_path)
    plain = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
    close(logits(plain, ids, mask), logits(model, ids, mask))
    assert not describe(plain).problems


def test_phi3_is_extended_by_longrope(tmp_path):
    parameters = {"rope_type": "default", "rope_theta": 10000.0}
    model, (ids, mask) = make("Phi3", rope_parameters=parameters), prompts()
    extend_context(model, LongRoPE(*LONG.values(), train_length=20, factor=2.0))
    model.save_pretrained(tmp_path)
    plain = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
    assert plain.config.original_max_position_embeddings == 20
    close(logits(plain, ids, mask), logits(model, ids, mask))
    close(logits(plain, ids[:, -15:], mask[:, -15:]), logits(model, ids[:, -15:], mask[:, -15:]))


@pytest.mark.parametrize("family", FAMILIES)
def test_without_rotation(family, tmp_path):
    model, (ids, mask) = make(family), prompts()
    remove_rope(model)
    assert not any(row.rotates for row in describe(model).layers)
    found = logits(model, ids, mask)
    model.save_pretrained(tmp_path)
    plain = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
    close(logits(plain, ids, mask), found)
    assert not any(row.rotates for row in describe(plain).layers)


@pytest.mark.parametrize("family", ["Llama", "Qwen2", "GPTNeoX", "SmolLM3"])
def test_without_rotation_a_layer_sees_a_set(family):
    model = make(family, num_hidden_layers=1)
    remove_rope(model)
    ids = torch.randint(1, VOCABULARY, (1, 8))
    shuffled = ids[:, [3, 1, 0, 2, 6, 5, 4, 7]]
    close(model(input_ids=shuffled).logits[0, -1], model(input_ids=ids).logits[0, -1])


def test_restoring_puts_module_and_config_back():
    for family, scaling in (("Llama", YaRN(4, REACH)), ("Gemma2", PositionInterpolation(2.0)), ("GPTNeoX", NTK(2.0))):
        model = make(family)
        before = state(model)
        extend_context(model, scaling)
        assert state(model) != before
        assert model.config.max_position_embeddings == scaling.factor * REACH
        restore_rope(model)
        assert state(model) == before


def test_another_scaling_in_the_place_of_its_own(tmp_path):
    model = make("GptOss")
    rope = rope_from_config(model.config)
    assert rope.scaling == YaRN(32.0, 4096, 32.0, 1.0, truncate=False)
    replace_rope(model, rope.with_scaling(YaRN(64.0, 4096, truncate=False)))
    assert model.config.max_position_embeddings == 64 * 4096
    model.save_pretrained(tmp_path)
    plain = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
    ids, mask = prompts()
    close(logits(plain, ids, mask), logits(model, ids, mask))
    assert not describe(model).problems


def test_half_precision_keeps_positions_exact():
    model = make("Llama")
    replace_rope(model, rope_from_config(model.config))
    model.bfloat16()
    where = torch.tensor([[5, 1_000_000]])
    cos, sin = model.model.rotary_emb(torch.zeros(1, 2, 48, dtype=torch.bfloat16), where)
    assert cos.dtype == sin.dtype == torch.bfloat16
    angles = where[0].double()[:, None] * 5000.0 ** (-torch.arange(0, 12, 2, dtype=torch.float64) / 12)
    want = angles.cos().repeat(1, 2)
    assert (cos[0].double() - want).abs().max() < 2**-8
    assert (sin[0].double() - angles.sin().repeat(1, 2)).abs().max() < 2**-8


@pytest.mark.parametrize("family", ["Qwen2VL", "Qwen2_5_VL", "Qwen3VL"])
def test_rotations_of_images_and_text(family):
    text = {**WIDE, "hidden_size": 64, "head_dim": 16}
    parameters = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 2, 2]}
    config = getattr(transformers, f"{family}TextConfig")(**{**text, "rope_parameters": parameters})
    model = getattr(transformers, f"{family}TextModel")(config).eval()
    positions = torch.randint(0, 50, (3, 2, 9))
    x = torch.zeros(2, 9, 64)
    before = model.rotary_emb(x, positions)
    rope = rope_from_config(config)
    assert rope.spectrum == Sections((4, 2, 2), interleaved=family == "Qwen3VL")
    ids = torch.randint(1, VOCABULARY, (2, 9))
    told = model(input_ids=ids, use_cache=False).last_hidden_state
    replace_rope(model, rope)
    for ours, theirs in zip(model.rotary_emb(x, positions), before, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)
    close(model(input_ids=ids, use_cache=False).last_hidden_state, told)


# What does not fit


def refused(model, change, match, error=ValueError):
    before = state(model)
    with pytest.raises(error, match=match):
        change(model)
    assert state(model) == before


@pytest.mark.parametrize(
    "rope, match",
    [
        (RoPE(16), r"head_dim \(16\) must be that of the model's heads \(12\)"),
        (RoPE(12, layout="interleaved"), "convert_layout"),
        (RoPE(12, rotary_dim=6), r"rotary_dim \(6\) must be head_dim \(12\)"),
        (RoPE(12, axes=2), r"axes \(2\)"),
        (RoPE(12, xpos=XPos()), "alike"),
        (RoPE(12, spectrum=Mixed(), num_heads=4), "alike"),
        (RoPE(12, spectrum=Learned()), "cannot express|no words for"),
        ([RoPE(12)] * 3, "3 entries, but the model has 4 layers"),
        ([RoPE(12), RoPE(12), RoPE(12), RoPE(12, base=5.0)], "layer 3 differs"),
        ([RoPE(12), None, RoPE(12), RoPE(12)], "layer 1 differs"),
        (RoPE(12, scaling=DynamicNTK(2.0, REACH // 2)), "cannot express"),
    ],
)
def test_an_encoding_that_does_not_fit(rope, match):
    refused(make("Llama"), lambda model: replace_rope(model, rope), match)


def test_what_else_is_refused():
    model = make("Llama")
    for change in (lambda model: replace_rope(model, None), lambda model: extend_context(model, NTK(2)), restore_rope):
        for given in (None, "llama", model.config):
            with pytest.raises(TypeError, match=f"model must be a model of transformers, got {type(given).__name__}"):
                change(given)
    refused(model, lambda model: replace_rope(model, "RoPE"), "rope must be a RoPE", TypeError)
    refused(model, lambda model: extend_context(model, 4), "must be a scaling", TypeError)
    refused(model, restore_rope, "no rotary module of mmpos")
    replace_rope(model, RoPE(12))
    refused(model, lambda model: replace_rope(model, RoPE(12)), "already")
    refused(model, lambda model: extend_context(model, YaRN(4, REACH)), "already")
    refused(model, remove_rope, "already")
    refused(make("GptOss"), lambda model: extend_context(model, YaRN(4, REACH)), "a scaling already")
    refused(make("Phi3", rope_parameters=None), lambda model: extend_context(model, YaRN(4, 16)), "cannot express")
    refused(make("Gemma3"), lambda model: replace_rope(model, [RoPE(16), None, None, None]), "'sliding_attention'")
    refused(make("SmolLM3"), lambda model: replace_rope(model, [RoPE(12)] * 4), "layer 3 of the model does not rotate")
    refused(
        make("Gemma3", rope_scaling=None),
        lambda model: extend_context(model, YaRN(4, REACH, truncate=False)),
        "cannot express",  # transformers does not read truncate there
    )
    other = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=VOCABULARY))
    refused(other, lambda model: replace_rope(model, RoPE(4)), "known: .*Llama")
    two = torch.nn.ModuleList([make("Llama").model, make("Qwen2").model])
    with pytest.raises(ValueError, match="2 rotary modules, in LlamaModel, Qwen2Model"):
        remove_rope(two)


def test_an_encoding_that_transformers_cannot_express_leaves_the_config_alone():
    model, (ids, mask) = make("Llama"), prompts()
    before = model.config.to_dict()
    replace_rope(model, RoPE(12, base=50.0, spectrum=Learned()), write_config=False)
    assert model.config.to_dict() == before
    assert "model.rotary_emb.ropes.all.freqs" in model.state_dict()
    model(input_ids=ids, attention_mask=mask).logits.sum().backward()
    assert model.model.rotary_emb.rope_of("all").freqs.grad.abs().max() > 0


@pytest.mark.parametrize("scaling", [DynamicNTK(2.0, REACH), LongRoPE([1.0] * 6, [2.0] * 6, REACH, factor=2.0)])
def test_cached_keys_are_never_of_other_frequencies(scaling):
    model = make("Llama")
    extend_context(model, scaling)
    ids = torch.randint(1, VOCABULARY, (1, REACH - 4))
    continuation(model, ids, torch.ones_like(ids), steps=4)
    with pytest.raises(ValueError, match=r"passes train_length \(64\).*give the model (NTK|a LongRoPE)"):
        continuation(model, ids, torch.ones_like(ids), steps=8)
    continuation(model, ids, torch.ones_like(ids), steps=8, use_cache=False)
    model(input_ids=torch.randint(1, VOCABULARY, (1, REACH + 4)))
