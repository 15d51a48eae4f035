"""Records of attention, against the formula and against what the model computes."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import mmpos
from mmpos.diagnostics import record_attention, slot_contributions, slots_of, switched_off
from mmpos.models import TextTransformer, VisionTransformer

ROPE, ALIBI = {"name": "RoPE", "axes": 2}, {"name": "ALiBi", "axes": 2}


def vit(**slots):
    return VisionTransformer(image_size=(8, 12), dim=32, depth=2, num_heads=2, class_token=True, **slots).eval()


def images():
    return torch.randn(3, 1, 8, 12)


@pytest.mark.parametrize(
    "slots",
    [
        {},
        {"rotary": ROPE},
        {"rotary": ROPE, "bias": ALIBI},
        {"additive": {"name": "Sinusoidal", "axes": 2}, "additive_to": "queries_keys"},
        {"bias": {"name": "RelativeLogits", "extent": (4, 6)}, "scale": {"name": "SSMax", "axes": 2}},
    ],
    ids=["none", "rotary", "rotary, bias", "queries_keys", "content, scale"],
)
def test_weights_are_those_that_the_model_used(slots):
    """What a layer gives is its values, weighted, projected."""
    model = vit(**slots)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        seen = []
        handles = [
            block.attn.register_forward_hook(lambda module, args, output: seen.append((module, args[0], output)))
            for block in model.blocks
        ]
        with record_attention(model) as calls:
            model(images())
        for handle in handles:
            handle.remove()
        assert [call.name for call in calls] == ["blocks.0.attn", "blocks.1.attn"]
        for call, (module, x, output) in zip(calls, seen, strict=True):
            values = module.qkv(x)[..., -32:].unflatten(-1, (2, 16)).transpose(1, 2)
            mixed = (call.weights() @ values).transpose(1, 2).flatten(-2)
            torch.testing.assert_close(module.proj(mixed), output, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(call.logits().softmax(-1), call.weights(), rtol=1e-4, atol=1e-6)
            assert call.num_prefix_tokens == 1
            assert call.q_coords.shape == call.k_coords.shape == (24, 2)


def test_causal_logits_are_hidden_ahead():
    model = TextTransformer(dim=32, depth=2, num_heads=2, rotary={"name": "RoPE"}).eval()
    tokens = torch.randint(256, (2, 600))  # long enough for blocks of queries
    with torch.no_grad(), record_attention(model) as calls:
        model(tokens)
    assert len(calls) == 2
    logits = calls[1].logits()
    assert torch.equal(logits == -torch.inf, ~torch.ones(600, 600, dtype=torch.bool).tril().expand_as(logits))
    rows = calls[1].weights()[..., :1, :]
    assert torch.equal(rows[..., 0], torch.ones_like(rows[..., 0]))


class Plain(nn.Module):
    """Somebody else's attention."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(4, 4)

    def forward(self, q, k, v, **options):
        return self.last(F.scaled_dot_product_attention(q, k, v, **options))


@pytest.mark.parametrize("what", ["plain", "causal", "float mask", "boolean mask", "scale"])
def test_any_model_that_calls_pytorch_is_seen(what):
    q, k = torch.randn(2, 3, 5, 4), torch.randn(2, 3, 7, 4)
    bias, mask = torch.randn(3, 5, 7), torch.ones(5, 7).tril(2).bool()
    options = {
        "plain": {}, "causal": {"is_causal": True}, "float mask": {"attn_mask": bias},
        "boolean mask": {"attn_mask": mask}, "scale": {"scale": 0.3},
    }[what]  # fmt: skip
    with record_attention(Plain()) as calls:
        Plain()(q, k, torch.randn(2, 3, 7, 4), **options)
    (call,) = calls
    logits = q @ k.mT * (0.3 if what == "scale" else 0.5)
    if what == "float mask":
        logits = logits + bias
    if what in ("causal", "boolean mask"):
        logits = logits.masked_fill(~(mask if what == "boolean mask" else torch.ones(5, 7).tril().bool()), -torch.inf)
    torch.testing.assert_close(call.logits(), logits)
    torch.testing.assert_close(call.weights(), logits.softmax(-1))
    assert call.q_coords is None


def test_turned_queries_and_keys_of_timm_are_seen():
    timm = pytest.importorskip("timm", reason="timm is not installed")
    from mmpos.adapters.timm import add_rotary

    model = timm.create_model(
        "vit_tiny_patch16_224", img_size=(32, 48), patch_size=8, depth=2, embed_dim=48, num_heads=3, num_classes=4
    ).eval()
    pictures = torch.randn(2, 3, 32, 48)
    with torch.no_grad(), record_attention(model) as before:
        model(pictures)
    rope = mmpos.RoPE(16, axes=2)
    add_rotary(model, rope)
    with torch.no_grad(), record_attention(model) as after:
        model(pictures)
    assert len(before) == len(after) == 2
    coords = mmpos.grid_coords(4, 6)
    turned = rope(coords).with_prefix(1).apply(before[0].q)
    torch.testing.assert_close(after[0].q, turned, rtol=1e-4, atol=1e-5)


def test_nothing_is_left_behind():
    model = vit(rotary=ROPE)
    pixels = images()
    with torch.no_grad():
        plain = model(pixels)
        with record_attention(model) as calls:
            torch.testing.assert_close(model(pixels), plain, rtol=0, atol=0)
        with switched_off(model, "rotary"):
            assert not torch.equal(model(pixels), plain)
        count = len(calls)
        torch.testing.assert_close(model(pixels), plain, rtol=0, atol=0)
    assert count == len(calls) == 2
    assert not [module for module in model.modules() if module._forward_hooks or module._forward_pre_hooks]


def test_a_call_that_fails_is_forgotten():
    model = vit()
    block = model.blocks[0].attn
    with record_attention(model) as calls:
        with pytest.raises(RuntimeError):
            block(torch.randn(2, 5, 31))
        F.scaled_dot_product_attention(*torch.randn(3, 2, 3, 5, 4))
    assert [call.name for call in calls] == ["0"]


@pytest.mark.parametrize("kind", ["additive", "rotary", "bias", "scale"])
def test_a_slot_that_is_off_is_an_empty_slot(kind):
    slots = {
        "additive": {"name": "Sinusoidal", "axes": 2}, "rotary": ROPE, "bias": ALIBI,
        "scale": {"name": "SSMax", "axes": 2},
    }  # fmt: skip
    full, rest = vit(**slots), vit(**{name: spec for name, spec in slots.items() if name != kind})
    rest.load_state_dict(full.state_dict(), strict=kind != "scale")
    pixels = images()
    assert slots_of(full) == list(slots)
    assert slots_of(rest) == [name for name in slots if name != kind]
    with torch.no_grad(), switched_off(full, kind):
        torch.testing.assert_close(full(pixels), rest(pixels), rtol=1e-5, atol=1e-6)


def test_a_bias_is_off_where_its_factors_are_taken_too():
    model = TextTransformer(dim=32, depth=1, num_heads=2, bias={"name": "ALiBi"}).eval()
    plain = TextTransformer(dim=32, depth=1, num_heads=2).eval()
    plain.load_state_dict(model.state_dict())
    tokens = torch.randint(256, (1, 1100))
    with torch.no_grad():
        assert not torch.allclose(model(tokens), plain(tokens), atol=1e-4)
        with switched_off(model, "bias"):
            torch.testing.assert_close(model(tokens), plain(tokens), rtol=1e-4, atol=1e-5)


def test_contributions_are_scores_without_a_slot_in_evaluation():
    model = vit(rotary=ROPE, bias=ALIBI).train()
    model.blocks[0].eval()
    pixels = images()

    def evaluate():
        assert not any(module.training for module in model.modules())
        assert not torch.is_grad_enabled()
        return model(pixels).square().mean().item()

    scores = slot_contributions(model, evaluate)
    assert list(scores) == ["all", "rotary", "bias"]
    assert all(math.isfinite(score) for score in scores.values())
    assert len(set(scores.values())) == 3
    assert model.training
    assert not model.blocks[0].training
    with pytest.raises(ValueError, match="kind must be one of additive, rotary, bias, scale, got 'rope'"):
        switched_off(model, "rope").__enter__()
