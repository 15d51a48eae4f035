"""A decoder on packed, padded, cached and streamed rows, with every encoding and pattern of layers."""

import math

import pytest
import torch
from torch import nn

import mmpos
from mmpos.models import Cache, TextTransformer, generate
from mmpos.models.generate import sample
from mmpos.models.sequence import SequencePositions

SEPARATOR = 7
SLOTS = {
    "none": {},
    "sinusoidal": {"additive": {"name": "Sinusoidal"}},
    "learned": {"additive": {"name": "LearnedTable"}, "length": 40},
    "rope": {"rotary": {"name": "RoPE"}},
    "interleaved_pairs": {"rotary": {"name": "RoPE", "layout": "interleaved", "rotary_dim": 4}},
    "learned_rope": {"rotary": {"name": "RoPE", "spectrum": {"name": "Learned"}}},
    "xpos": {"rotary": {"name": "RoPE", "xpos": {"name": "XPos", "scale_base": 16}}},
    "yarn": {"rotary": {"name": "RoPE", "scaling": {"name": "YaRN", "factor": 4, "train_length": 10}}},
    "dynamic": {"rotary": {"name": "RoPE", "scaling": {"name": "DynamicNTK", "factor": 2, "train_length": 10}}},
    "alibi": {"bias": {"name": "ALiBi"}},
    "t5": {"bias": {"name": "T5Bias", "bidirectional": False}},
    "kerple": {"bias": {"name": "KERPLE"}},
    "fire": {"bias": {"name": "FIRE"}},
    "relative_logits": {"bias": {"name": "RelativeLogits", "extent": 9}},
    "log_scale": {"scale": {"name": "LogScale", "train_length": 5}},
    "ssmax": {"rotary": {"name": "RoPE"}, "scale": {"name": "SSMax"}},
    "window": {"rotary": {"name": "RoPE"}, "window": 6},
    "pattern": {
        "layers": [
            {"window": 5, "rotary": {"name": "RoPE"}},
            {"bias": {"name": "ALiBi"}},
            {"scale": {"name": "LogScale", "train_length": 4}},
        ]
    },
    "grouped": {"rotary": {"name": "RoPE"}, "block": {"num_kv_heads": 2, "mlp": "swiglu", "qk_norm": True}},
}


def make(name="rope", **arguments):
    """A small decoder with weights large enough for positions to matter."""
    torch.manual_seed(3)
    model = TextTransformer(**{"num_tokens": 19, "dim": 32, "depth": 3, "num_heads": 4, **SLOTS[name], **arguments})
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.3)
    return model.eval()


def rows(*shape):
    return torch.randint(8, 19, shape, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("name", SLOTS)
def test_a_token_does_not_see_what_comes_after_it(name):
    model, tokens = make(name), rows(2, 11)
    changed = tokens.clone()
    changed[:, 6:] = changed[:, 6:].flip(-1)
    before, after = model(tokens, length=11), model(changed, length=11)
    torch.testing.assert_close(before[:, :6], after[:, :6], atol=1e-5, rtol=1e-5)
    assert not torch.allclose(before[:, 6:], after[:, 6:])


@pytest.mark.parametrize("name", SLOTS)
def test_reading_with_a_cache_gives_what_one_pass_gives(name):
    model, tokens = make(name), rows(2, 23)
    want = model(tokens, length=23)
    cache = Cache(depth=3)
    got = [model(part, cache=cache, length=23) for part in tokens.split([9, 1, 1, 5, 7], dim=1)]
    torch.testing.assert_close(torch.cat(got, dim=1), want, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", SLOTS)
def test_rows_of_unequal_lengths_are_read_as_each_alone(name):
    model, tokens, lengths = make(name), rows(3, 12), (12, 7, 1)
    real = torch.arange(12) >= 12 - torch.tensor(lengths)[:, None]
    cache = Cache(depth=3)
    got = model(tokens, real=real, cache=cache, length=20)
    more = rows(3, 2).flip(0)
    then = model(more, cache=cache, length=20)
    for row, length in enumerate(lengths):
        alone = model(torch.cat([tokens[row, 12 - length :], more[row]])[None], length=20)[0]
        torch.testing.assert_close(got[row, 12 - length :], alone[:length], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(then[row], alone[length:], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", SLOTS)
def test_packed_documents_are_read_as_each_alone(name):
    model = make(name, separator=SEPARATOR)
    texts = [torch.cat([torch.tensor([SEPARATOR]), rows(1, length)[0]]) for length in (4, 1, 9)]
    packed = model(torch.cat(texts)[None], length=10)[0]
    for got, text in zip(packed.split([len(text) for text in texts]), texts, strict=True):
        torch.testing.assert_close(got, model(text[None], length=10)[0], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", SLOTS)
def test_the_likeliest_text_is_that_of_full_passes(name):
    model, prompts = make(name), [rows(1, length)[0] for length in (9, 3, 1)]
    texts = generate(model, prompts, 8, temperature=0, length=17)
    for prompt, text in zip(prompts, texts, strict=True):
        row = prompt
        for _ in range(8):
            row = torch.cat([row, model(row[None], length=17)[0, -1:].argmax(-1)])
        assert row[len(prompt) :].tolist() == text.tolist()


def test_a_window_counts_the_token_itself():
    model, tokens = make("window", depth=1), rows(1, 15)
    changed = tokens.clone()
    changed[0, 4] = 18 if changed[0, 4] != 18 else 17
    same = torch.isclose(model(tokens), model(changed), atol=1e-5).all(-1)[0]
    assert (~same).nonzero()[:, 0].tolist() == [4, 5, 6, 7, 8, 9]
    encoder = make("window", depth=1, num_classes=3)
    same = torch.isclose(encoder.forward_features(tokens), encoder.forward_features(changed), atol=1e-5).all(-1)[0]
    assert (~same).nonzero()[:, 0].tolist() == list(range(10))


@pytest.mark.parametrize("name", ["rope", "none", "alibi", "xpos", "t5"])
def test_a_streaming_cache_reads_what_it_keeps_as_if_it_stood_together(name):
    model, tokens = make(name, depth=1), rows(2, 30)
    cache = Cache(depth=1, window=6, sinks=2)
    for number in range(30):
        got = model(tokens[:, number : number + 1], cache=cache)
        kept = tokens[:, : number + 1]
        if number + 1 > 9:  # when a token comes, the cache holds two sinks and the last six before it
            kept = torch.cat([tokens[:, :2], tokens[:, number - 6 : number + 1]], dim=1)
        torch.testing.assert_close(got[:, -1], model(kept)[:, -1], atol=1e-4, rtol=1e-4)
    assert len(cache) == 8


def test_a_streaming_cache_of_unequal_rows_is_that_of_each_alone():
    model, prompts = make("rope", depth=2), [rows(1, length)[0] for length in (12, 5, 2)]
    together = generate(model, prompts, 20, temperature=0, window=6, sinks=2)
    alone = [generate(model, [prompt], 20, temperature=0, window=6, sinks=2)[0] for prompt in prompts]
    assert [text.tolist() for text in together] == [text.tolist() for text in alone]


def test_a_class_is_read_from_real_tokens_in_both_directions():
    model, tokens = make("rope", num_classes=5), rows(3, 9)
    assert model(tokens).shape == (3, 5)
    real = torch.arange(9) < torch.tensor([9, 4, 6])[:, None]
    got = model(tokens, real=real)
    for row, length in enumerate((9, 4, 6)):
        torch.testing.assert_close(got[row], model(tokens[row : row + 1, :length])[0], atol=1e-5, rtol=1e-5)
    changed = tokens.clone()
    changed[:, -1] = 18
    features = model.forward_features(tokens), model.forward_features(changed)
    assert not torch.allclose(features[0][:, 0], features[1][:, 0])


def test_what_is_drawn_comes_as_often_as_it_is_likely():
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]]).log_softmax(-1)
    many = logits.expand(20000, -1)
    generator = torch.Generator().manual_seed(0)

    def shares(**arguments):
        return sample(many, generator=generator, **arguments).bincount(minlength=4) / 20000

    def close(got, want):
        return (got - want).abs().max() < 0.02  # 5 standard errors

    assert close(shares(), logits.exp())
    assert close(shares(temperature=0.5), (2 * logits).softmax(-1))
    first_two = logits.exp() * torch.tensor([1, 1, 0, 0])
    assert close(shares(top_k=2), first_two / first_two.sum())
    assert close(shares(top_p=0.7), first_two / first_two.sum())  # 0.64 are not enough, 0.88 are
    assert shares(top_p=0.6)[0] == 1
    assert sample(logits, temperature=0).tolist() == [0]


def test_a_text_ends_with_the_stop_token():
    model, prompts = make("rope"), [rows(1, 5)[0], rows(1, 3)[0]]
    whole = generate(model, prompts, 12, temperature=0)
    stop = int(whole[0][4])
    first, _ = generate(model, prompts, 12, temperature=0, stop=stop)
    end = whole[0].tolist().index(stop) + 1
    assert first.tolist() == whole[0][:end].tolist()
    assert generate(model, prompts, 0)[1].tolist() == []


def test_another_length():
    rope, tokens = make("rope"), rows(2, 20)
    longer = rope.at_length(20, "ntk", trained=10)
    assert torch.equal(rope.at_length(20)(tokens), rope(tokens))
    want = make("rope", rotary={"name": "RoPE", "scaling": {"name": "NTK", "factor": 2}})
    torch.testing.assert_close(longer(tokens), want(tokens))
    assert longer.blocks[0].attn.qkv.weight is rope.blocks[0].attn.qkv.weight
    learned = make("learned", length=10)
    with pytest.raises(ValueError, match="resize"):
        learned(tokens)
    assert torch.equal(learned.at_length(20).encodings.additive.weight, learned.encodings.additive.resize(20).weight)
    with pytest.raises(ValueError, match="how='yarn' scales a rotary encoding, but the rotary slot has none"):
        make("alibi").at_length(20, "yarn", trained=10)
    with pytest.raises(ValueError, match="how='ntk' needs the trained length"):
        rope.at_length(20, "ntk")
    with pytest.raises(ValueError, match=r"how must be one of extend, .*, yarn, log_scale, head_scale, got 'zoom'"):
        rope.at_length(20, "zoom")


def test_embeddings_are_as_large_as_what_is_added_to_them():
    torch.manual_seed(0)
    model, tokens = TextTransformer(dim=48, depth=0, num_heads=4, additive={"name": "Sinusoidal"}), rows(2, 9)
    added = model.embed.weight[tokens] * math.sqrt(48) + mmpos.Sinusoidal(48)(mmpos.sequence_coords(9))
    torch.testing.assert_close(model.forward_features(tokens), torch.nn.functional.layer_norm(added, (48,), eps=1e-6))


def test_attention_temperatures_for_another_length():
    for name in ("none", "rope"):
        model, tokens = make(name), rows(2, 20)
        slots = {"rotary": {"name": "RoPE"}} if name == "rope" else {}
        want = make(name, **slots, scale={"name": "LogScale", "train_length": 10})
        torch.testing.assert_close(model.at_length(20, "log_scale", trained=10)(tokens), want(tokens))
        tuned = model.at_length(20, "head_scale")
        torch.testing.assert_close(tuned(tokens), model(tokens))
        factors = {name for name, _ in tuned.named_parameters()} - {name for name, _ in model.named_parameters()}
        assert factors == {f"encodings.scale.{layer}.factors" for layer in range(len(model.blocks))}
        with torch.no_grad():
            tuned.encodings.scale[-1].factors.mul_(2)
        assert not torch.allclose(tuned(tokens), model(tokens))
    with pytest.raises(ValueError, match=r"the scale slot has .*LogScale.* already"):
        want.at_length(20, "head_scale")


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ({"layers": [{"widow": 3}]}, ValueError, "layers may differ in rotary, bias, scale, window, got 'widow'"),
        ({"block": {"mlp": "relu"}}, ValueError, "mlp must be 'gelu' or 'swiglu', got 'relu'"),
        ({"block": {"mpl": "gelu"}}, TypeError, "block has no argument 'mpl'; did you mean 'mlp'"),
        ({"rotary": {"name": "ALiBi"}}, ValueError, "ALiBi is for the bias slot"),
    ],
)
def test_models_that_cannot_be_built(arguments, error, message):
    with pytest.raises(error, match=message):
        make(**arguments)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"prompts": []}, "prompts must be rows of one token or more"),
        ({"prompts": [torch.empty(0, dtype=torch.int64)]}, "prompts must be rows of one token or more"),
        ({"max_new_tokens": -1}, "max_new_tokens must not be negative"),
        ({"temperature": -0.5}, "temperature must not be negative"),
        ({"top_k": 0}, "top_k must be positive"),
        ({"top_p": 0.0}, "top_p must be above 0 and at most 1"),
        ({"sinks": 2}, r"sinks \(2\) must not be negative, and 0 without a window"),
        ({"window": 0}, "window must be positive"),
    ],
)
def test_requests_that_make_no_sense(arguments, message):
    with pytest.raises(ValueError, match=message):
        generate(**{"model": make(), "prompts": [rows(1, 3)[0]], "max_new_tokens": 2, **arguments})


def test_a_prompt_past_a_learned_table_is_refused_and_nothing_lost():
    model = make("learned", length=6)
    with pytest.raises(ValueError, match="LearnedTable holds 6 positions"):
        generate(model, [rows(1, 5)[0]], 4)
    with pytest.raises(ValueError, match="cannot go on"):
        generate(make(num_classes=3), [rows(1, 5)[0]], 4)


def test_positions_vary_in_the_order_they_are_named():
    coords = mmpos.sequence_coords(6).expand(50, -1, -1)
    generator = torch.Generator().manual_seed(0)
    got = SequencePositions(subsample=20, offset=5).vary(coords, generator)
    assert got.dtype == torch.int64
    assert (got.diff(dim=1) > 0).all()
    assert got.max() > 20
    assert SequencePositions(shift=0.5, jitter=2.0).vary(coords).dtype == torch.float64
    assert not SequencePositions(chunks=3).varies
    assert SequencePositions(skip=9).varies
    with pytest.raises(ValueError, match=r"jitter \(0.5\) must be at least 1"):
        SequencePositions(jitter=0.5)
