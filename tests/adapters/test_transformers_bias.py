"""Models of transformers, tiny and random, with our attention bias in the place of their own."""

import copy
import io
import math

import pytest
import torch

pytest.importorskip("transformers", reason="needs transformers")

import transformers
from torch import nn

from mmpos import FIRE, KERPLE, ALiBi, RelativeLogits, T5Bias
from mmpos.adapters.transformers import bias_from_model, describe, replace_bias, restore_bias
from mmpos.encodings import AttentionBias

VOCABULARY, HEADS = 61, 6
FIVES = {
    "vocab_size": VOCABULARY,
    "d_model": 24,
    "d_kv": 5,
    "d_ff": 20,
    "num_heads": HEADS,
    "num_layers": 3,
    "num_decoder_layers": 2,
    "relative_attention_num_buckets": 64,
    "relative_attention_max_distance": 90,
    "decoder_start_token_id": 1,
    "pad_token_id": 0,
    "eos_token_id": None,
    "dropout_rate": 0.0,
    "attn_implementation": "eager",
}
FAMILIES = {
    "T5": FIVES,
    "MT5": FIVES,
    "UMT5": FIVES,
    "Bloom": {
        "vocab_size": VOCABULARY,
        "hidden_size": 48,
        "n_head": HEADS,
        "n_layer": 3,
        "pad_token_id": 0,
        "eos_token_id": None,
    },
    "Mpt": {
        "vocab_size": VOCABULARY,
        "d_model": 48,
        "n_heads": HEADS,
        "n_layers": 3,
        "max_seq_len": 64,
        "pad_token_id": 0,
        "eos_token_id": None,
    },
}
TEXT = ("Bloom", "Mpt")
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning")


class Wave(AttentionBias):
    """``rate[h] * cos(q_coord + 2 k_coord)``, which depends on where each token is and not on their distance alone."""

    axes = 1

    def __init__(self):
        super().__init__()
        self.rate = nn.Parameter(torch.linspace(-3, 3, HEADS))

    def forward(self, q_coords, k_coords, *, query=None, key=None, tokens=None):
        angle = (q_coords + 2 * k_coords.mT).float()
        return self.rate[:, None, None].float() * angle.cos().unsqueeze(-3)


def make(family, **changes):
    config = getattr(transformers, f"{family}Config")(**{**FAMILIES[family], **changes})
    kind = "ForCausalLM" if family in TEXT else "ForConditionalGeneration"
    torch.manual_seed(1)
    model = getattr(transformers, family + kind)(config).eval()
    with torch.no_grad():  # sharp enough for attention to depend on positions
        for each in model.parameters():
            each.copy_(torch.randn_like(each) * (0.2 if each.ndim > 1 else 0.1) + (each.ndim == 1))
        for module in model.modules():
            if isinstance(module, nn.Embedding):
                module.weight.normal_()
    return model


def prompts(side="left", length=13):
    """Rows of 13, 7 and 2 tokens."""
    ids = torch.randint(1, VOCABULARY, (3, length))
    numbers, counts = torch.arange(length), torch.tensor([[length], [7], [2]])
    mask = numbers >= length - counts if side == "left" else numbers < counts
    return ids * mask, mask.long()


def logits(model, ids, mask):
    """Of the real tokens; an encoder reads rows padded on the right, and the decoder reads these."""
    with torch.no_grad():
        if not model.config.is_encoder_decoder:
            return model(input_ids=ids, attention_mask=mask, use_cache=False).logits[mask.bool()]
        given = {"decoder_input_ids": ids, "decoder_attention_mask": mask, "use_cache": False}
        return model(input_ids=ids.flip(1), attention_mask=mask.flip(1), **given).logits[mask.bool()]


def continuation(model, ids, mask, use_cache=True):
    settings = {"max_new_tokens": 9, "do_sample": False, "use_cache": use_cache, "pad_token_id": 0}
    found = model.generate(input_ids=ids, attention_mask=mask, **settings)
    return found[:, -9:]


def close(one, other, atol=1e-5):
    torch.testing.assert_close(one, other, atol=atol, rtol=1e-5)


def own_state(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_computes_what_it_did(family):
    model, (ids, mask) = make(family), prompts()
    before, told = logits(model, ids, mask), continuation(model, ids, mask)
    keys = set(model.state_dict())
    replace_bias(model, bias_from_model(model))
    close(logits(model, ids, mask), before)
    assert torch.equal(continuation(model, ids, mask), told)
    assert torch.equal(continuation(model, ids, mask, use_cache=False), told)
    left = {name for name in model.state_dict() if "mmpos_bias" not in name}
    assert left == {name for name in keys if "relative_attention_bias" not in name}


@pytest.mark.parametrize("heads", [4, 6, 12])
@pytest.mark.parametrize("family", TEXT)
def test_the_slopes_of_any_number_of_heads(family, heads):
    name = "n_head" if family == "Bloom" else "n_heads"
    model, (ids, mask) = make(family, **{name: heads}), prompts(length=40)
    before = logits(model, ids, mask)
    found = bias_from_model(model)
    assert isinstance(found, ALiBi)
    assert found.num_heads == heads
    replace_bias(model, found)
    close(logits(model, ids, mask), before)
    close(model(input_ids=ids[:1]).logits, model(input_ids=ids[:1], attention_mask=mask[:1]).logits)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("family", ["T5", "UMT5"])
def test_a_bias_is_what_the_model_would_learn_as_its_own(family, implementation):
    """KERPLE's and ALiBi's values in the model's own tables, whose buckets hold a distance each at these lengths."""
    model, (ids, mask) = make(family, attn_implementation=implementation), prompts()
    own, kerple, alibi = logits(model, ids, mask), KERPLE(HEADS), ALiBi(HEADS)
    expected = copy.deepcopy(model)
    near = torch.arange(16)[:, None]
    with torch.no_grad():
        there = torch.zeros(1, 1, dtype=torch.int64)
        further, fall = (bias(near, there)[..., 0].mT for bias in (kerple, alibi))  # (distance, head)
        for block in expected.encoder.block:
            table = block.layer[0].SelfAttention
            if table.has_relative_attention_bias:
                table.relative_attention_bias.weight[:16] = further
                table.relative_attention_bias.weight[32:48] = further
        for block in expected.decoder.block:
            table = block.layer[0].SelfAttention
            if table.has_relative_attention_bias:
                table.relative_attention_bias.weight[:16] = fall
    replace_bias(model, {"encoder": kerple, "decoder": alibi})
    close(logits(model, ids, mask), logits(expected, ids, mask))
    assert torch.equal(continuation(model, ids, mask), continuation(expected, ids, mask))
    assert (logits(model, ids, mask) - own).abs().max() > 1e-2
    restore_bias(model)
    assert torch.equal(logits(model, ids, mask), own)


@pytest.mark.parametrize("family", TEXT)
def test_attention_by_hand(family):
    model, (ids, mask) = make(family), prompts()
    replace_bias(model, Wave())
    layers = model.transformer.h if family == "Bloom" else model.transformer.blocks
    attention = layers[1].self_attention if family == "Bloom" else layers[1].attn
    seen = []
    attention.register_forward_hook(lambda module, args, output: seen.append((args[0], output[1])))
    with torch.no_grad():
        model(input_ids=ids, attention_mask=mask)
    (hidden, weights), width = seen[0], 48 // HEADS
    if family == "Bloom":
        q, k, _ = attention.query_key_value(hidden).view(3, 13, HEADS, 3, width).double().unbind(3)
    else:
        q, k, _ = attention.Wqkv(hidden).view(3, 13, 3, HEADS, width).double().unbind(2)
    coords = (mask.cumsum(-1) - 1).double()
    wave = torch.cos(coords[:, :, None] + 2 * coords[:, None, :])
    rates = torch.linspace(-3, 3, HEADS, dtype=torch.float64)
    expected = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(width) + rates[:, None, None] * wave[:, None]
    seen_keys = mask[:, None, None, :].bool() & torch.ones(13, 13, dtype=torch.bool).tril()
    expected = expected.masked_fill(~seen_keys, -torch.inf).softmax(-1)
    real = mask.bool()
    close(weights.transpose(1, 2)[real].double(), expected.transpose(1, 2)[real])


@pytest.mark.parametrize("bias", [Wave, lambda: FIRE(HEADS), lambda: None], ids=["wave", "fire", "none"])
@pytest.mark.parametrize("family", FAMILIES)
def test_rows_of_a_batch_do_not_see_each_other(family, bias):
    model, (ids, mask) = make(family), prompts()
    replace_bias(model, bias())
    together, told = logits(model, ids, mask).split(mask.sum(-1).tolist()), continuation(model, ids, mask)
    assert torch.equal(continuation(model, ids, mask, use_cache=False), told)
    for row, real, ours, text in zip(ids, mask.bool(), together, told, strict=True):
        alone, all_of_it = row[real][None], mask.new_ones(1, int(real.sum()))
        close(logits(model, alone, all_of_it), ours)
        assert torch.equal(continuation(model, alone, all_of_it)[0], text)


@pytest.mark.parametrize("family", TEXT)
def test_a_cache_is_continued_in_pieces(family):
    model, (ids, mask) = make(family), prompts()
    replace_bias(model, Wave())
    whole = logits(model, ids, mask)
    with torch.no_grad():
        first = model(input_ids=ids[:, :6], attention_mask=mask[:, :6], use_cache=True)
        second = model(input_ids=ids[:, 6:], attention_mask=mask, past_key_values=first.past_key_values)
    close(torch.cat([first.logits, second.logits], dim=1)[mask.bool()], whole)
    cache = model(input_ids=ids[:1, :6], use_cache=True).past_key_values
    unpadded = model(input_ids=ids[:1, 6:], past_key_values=cache).logits
    close(unpadded, model(input_ids=ids[:1]).logits[:, 6:])


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("family", ["T5", "UMT5"])
def test_a_static_cache(family, implementation):
    model, (ids, mask) = make(family, attn_implementation=implementation), prompts()
    replace_bias(model, Wave())
    settings = {"max_new_tokens": 9, "do_sample": False, "disable_compile": True}
    found = model.generate(input_ids=ids, attention_mask=mask, cache_implementation="static", **settings)
    assert torch.equal(found[:, -9:], continuation(model, ids, mask))


@pytest.mark.parametrize("family", FAMILIES)
def test_no_bias(family):
    model, (ids, mask) = make(family), prompts()
    zero = copy.deepcopy(model)
    replace_bias(model, None)
    with torch.no_grad():
        for module in zero.modules():
            if hasattr(module, "relative_attention_bias"):
                module.relative_attention_bias.weight.zero_()
    if family in TEXT:
        replace_bias(zero, ALiBi(HEADS, slopes=[0.0] * HEADS))
    close(logits(model, ids, mask), logits(zero, ids, mask))


def test_layers_and_stacks_of_their_own():
    model, (ids, mask) = make("UMT5"), prompts()
    own = bias_from_model(model)
    assert [len(own[name]) for name in ("encoder", "decoder")] == [3, 2]
    assert [own[name][0].bidirectional for name in ("encoder", "decoder")] == [True, False]
    before = logits(model, ids, mask)
    replace_bias(model, {"decoder": own["decoder"]})
    close(logits(model, ids, mask), before)
    assert "encoder.mmpos_bias" not in " ".join(model.state_dict())
    restore_bias(model)
    one = FIRE(HEADS)
    replace_bias(model, {"encoder": [one, None, ALiBi(HEADS)], "decoder": [None, one]})
    rows = describe(model).layers
    assert [row.kind for row in rows] == ["encoder"] * 3 + ["decoder"] * 2
    assert [row.bias for row in rows] == ["FIRE", None, "ALiBi", None, "FIRE"]
    assert {row.head_dim for row in rows} == {5}
    encoder = transformers.T5EncoderModel(make("T5").config)
    assert isinstance(bias_from_model(encoder), T5Bias)
    assert [row.bias for row in describe(encoder).layers] == ["T5Bias"] * 3


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_learned_is_the_models_own(family):
    model, (ids, mask) = make(family), prompts()
    replace_bias(model, Wave())
    names = [name for name in model.state_dict() if "mmpos_bias" in name]
    assert [name.split("mmpos_bias.")[1] for name in names] == ["biases.0.rate"] * (1 if family in TEXT else 2)
    before, other = logits(model, ids, mask), copy.deepcopy(model)
    for change in (0.5, 1.0):
        with torch.no_grad():
            next(each for each in model.modules() if isinstance(each, Wave)).rate.add_(change)
        close(logits(other, ids, mask), before)
        assert (logits(model, ids, mask) - before).abs().max() > 1e-3
    other.load_state_dict(model.state_dict())
    assert torch.equal(logits(other, ids, mask), logits(model, ids, mask))
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    assert torch.equal(logits(torch.load(file, weights_only=False), ids, mask), logits(model, ids, mask))
    restore_bias(other)
    replace_bias(other, ALiBi(HEADS))
    assert not torch.equal(logits(other, ids, mask), logits(model, ids, mask))


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_with_checkpointing_are_those_without(family):
    model, (ids, mask) = make(family).train(), prompts()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    replace_bias(model, Wave())

    def gradients(between):
        model.zero_grad()
        given = {"input_ids": ids, "attention_mask": mask, "use_cache": False}
        if model.config.is_encoder_decoder:
            given |= {"decoder_input_ids": ids, "decoder_attention_mask": mask}
        loss = model(**given).logits[mask.bool()].square().mean()
        if between:  # another forward before the layers are computed again
            model(**{name: each[:2, :9] if torch.is_tensor(each) else each for name, each in given.items()})
        loss.backward()
        return {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}

    plain = gradients(between=False)
    assert all(each.abs().max() > 0 for name, each in plain.items() if name.endswith("rate"))
    assert len([name for name in plain if name.endswith("rate")]) == (1 if family in TEXT else 2)
    model.gradient_checkpointing_enable()
    checkpointed = gradients(between=True)
    assert checkpointed.keys() == plain.keys()
    for name, each in plain.items():
        close(checkpointed[name], each)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_comes_back_as_it_was(family):
    model, (ids, mask) = make(family), prompts()
    keys, before, modules = own_state(model), logits(model, ids, mask), dict(model.named_modules())
    attributes = {name: set(vars(module)) for name, module in modules.items()}
    replace_bias(model, Wave())
    logits(model, ids, mask)
    copied = copy.deepcopy(model)
    for each in (model, copied):
        restore_bias(each)
        assert list(each.state_dict()) == list(keys)
        assert torch.equal(logits(each, ids, mask), before)
        assert all(set(vars(module)) == attributes[name] for name, module in each.named_modules())
        assert not any(module._forward_pre_hooks or module._forward_hooks for module in each.modules())
    replace_bias(model, Wave())
    model.bfloat16()
    with torch.no_grad():
        assert logits(model, ids, mask).isfinite().all()
    restore_bias(model)
    assert {each.dtype for each in model.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_saved_model_is_loaded_into_one_with_such_a_bias(family, tmp_path):
    model, (ids, mask) = make(family), prompts()
    replace_bias(model, Wave())
    model.save_pretrained(tmp_path)
    other = type(model)(model.config).eval()
    replace_bias(other, Wave())
    from safetensors.torch import load_file

    missing, unexpected = other.load_state_dict(load_file(tmp_path / "model.safetensors"), strict=False)
    assert not unexpected
    assert not any("mmpos_bias" in name for name in missing)
    other.tie_weights()  # what is tied to the embedding is not saved
    assert torch.equal(logits(other, ids, mask), logits(model, ids, mask))


@pytest.mark.parametrize("family", FAMILIES)
def test_compiled(family):
    model, (ids, mask) = make(family), prompts()
    replace_bias(model, Wave())
    given = {"input_ids": ids, "attention_mask": mask, "use_cache": False}
    if model.config.is_encoder_decoder:
        given |= {"decoder_input_ids": ids, "decoder_attention_mask": mask}
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with torch.no_grad():
        close(compiled(**given).logits[mask.bool()], model(**given).logits[mask.bool()])


WAYS = {
    "static": {"cache_implementation": "static"},
    "beams": {"num_beams": 3},
    "beams without a cache": {"num_beams": 2, "use_cache": False},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("family", FAMILIES)
def test_other_ways_to_generate(family, way):
    model, (ids, mask) = make(family), prompts()
    settings = {"max_new_tokens": 9, "do_sample": False, "pad_token_id": 0, **WAYS[way]}
    told = model.generate(input_ids=ids, attention_mask=mask, **settings)
    replace_bias(model, bias_from_model(model))
    assert torch.equal(model.generate(input_ids=ids, attention_mask=mask, **settings), told)


def test_copies_of_data_parallel_refuse_what_learns():
    for family in FAMILIES:
        model, (ids, mask) = make(family), prompts()
        replace_bias(model, Wave())
        for module in model.modules():
            module._is_replica = True
        with pytest.raises(RuntimeError, match="Slot holds parameters, which DataParallel does not copy"):
            logits(model, ids, mask)


def refused(model, bias, match, error=ValueError):
    keys, modules = list(model.state_dict()), [type(module) for module in model.modules()]
    with pytest.raises(error, match=match):
        replace_bias(model, bias)
    assert list(model.state_dict()) == keys
    assert [type(module) for module in model.modules()] == modules
    assert not any(module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize(
    "bias, match",
    [
        (ALiBi(4), r"num_heads \(4\) of ALiBi must be that of layer 0 of the model \(6\)"),
        (ALiBi(HEADS, axes=2), r"axes \(2\) of ALiBi must be those of the model's coordinates \(1\)"),
        (RelativeLogits(HEADS, head_dim=8, extent=9), "reads query, but layer 0 of the model"),
        ([ALiBi(HEADS)] * 3, "3 entries, but the model has 1 biases"),
        ({"encoder": ALiBi(HEADS)}, r"bias is for \['encoder'\], but BloomForCausalLM has \['model'\]"),
        ({}, "bias is for"),
    ],
)
def test_a_bias_that_does_not_fit(bias, match):
    refused(make("Bloom"), bias, match)


def test_what_else_is_refused():
    with torch.device("meta"):
        meta = KERPLE(HEADS)
    for family in FAMILIES:
        refused(make(family), meta, "bias is on the meta device, but the model is not")
    for call in (lambda model: replace_bias(model, None), bias_from_model, restore_bias):
        with pytest.raises(TypeError, match="model must be a model of transformers, got NoneType"):
            call(None)
    refused(make("Mpt"), "ALiBi", "bias must be an AttentionBias", TypeError)
    refused(make("T5"), {"encoder": ALiBi(HEADS), "decoder": ALiBi(5)}, "layer 0 of the decoder")
    refused(make("UMT5"), {"encoder": [ALiBi(HEADS), None, ALiBi(3)]}, "layer 2 of the encoder")
    other = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=VOCABULARY))
    refused(other, ALiBi(2), "known: Bloom, MPT, T5, mT5, UMT5, Swin v2")
    refused(nn.ModuleList([make("Bloom"), make("Mpt")]), None, "holds more than one")
    model, (ids, mask) = make("Bloom"), prompts()
    with pytest.raises(ValueError, match="no bias of mmpos"):
        restore_bias(model)
    replace_bias(model, ALiBi(HEADS))
    with pytest.raises(ValueError, match="already; call restore_bias"):
        replace_bias(model, None)
    with pytest.raises(ValueError, match=r"attention_mask must be \(b, k\).*got shape \(3, 5\)"):
        model(input_ids=ids, attention_mask=mask[:, :5])
    documents = torch.zeros(3, 1, 13, 13, dtype=torch.bool)
    documents[..., :5, :5], documents[..., 5:, 5:] = True, True
    with pytest.raises(ValueError, match="hides tokens from the last query"):
        model(input_ids=ids, attention_mask=documents)
    causal = torch.full((1, 1, 13, 13), torch.finfo().min).triu(1)
    close(model(input_ids=ids[:1], attention_mask=causal).logits, model(input_ids=ids[:1]).logits)
