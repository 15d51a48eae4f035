import pytest
import torch
from torch import nn

from mmpos import ALiBi, Attention, RoPE, sequence_coords
from tests.attention_checks import causal, draw, reference, turned


@pytest.mark.parametrize(
    "options", [{}, {"num_kv_heads": 2}, {"head_dim": 10}, {"qkv_bias": False, "qk_norm": nn.LayerNorm}]
)
def test_self_attention_projects_and_attends(options):
    layer = Attention(dim=24, num_heads=4, **options).double().eval()
    x, coords = draw(2, 7, 24).double(), sequence_coords(7)
    head_dim, groups = options.get("head_dim", 6), options.get("num_kv_heads", 4)
    flat = x @ layer.qkv.weight.mT + (layer.qkv.bias if options.get("qkv_bias", True) else 0)
    q, k, v = (
        part.reshape(2, 7, -1, head_dim).transpose(1, 2)
        for part in flat.split([4 * head_dim, groups * head_dim, groups * head_dim], dim=-1)
    )
    if "qk_norm" in options:
        q, k = (nn.functional.layer_norm(part, (head_dim,)) for part in (q, k))
    bias = ALiBi(4)(coords, coords)
    y = reference(turned(q, coords), turned(k, coords), v, bias, visible=causal(7, 7))
    want = y.transpose(1, 2).reshape(2, 7, -1) @ layer.proj.weight.mT + layer.proj.bias
    got = layer(x, rotation=RoPE(head_dim)(coords), bias=ALiBi(4), coords=coords, is_causal=True)
    torch.testing.assert_close(got, want, atol=1e-6, rtol=0)


@pytest.mark.parametrize("options", [{}, {"qk_norm": nn.LayerNorm}])
def test_self_attention_under_autocast(options):
    layer, x, coords = Attention(dim=24, num_heads=4, **options), draw(2, 7, 24), sequence_coords(7)
    want = layer(x, rotation=RoPE(6)(coords), bias=ALiBi(4), coords=coords)
    with torch.autocast("cpu", torch.bfloat16):
        got = layer(x, rotation=RoPE(6)(coords), bias=ALiBi(4), coords=coords)
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.float(), want, atol=0.02, rtol=0)


def test_attention_weights_are_dropped_in_training_only():
    layer, x = Attention(dim=24, num_heads=4, attn_drop=0.5), draw(2, 7, 24)
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    assert torch.equal(layer(x), layer(x))


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"dim": 50, "num_heads": 4}, r"dim \(50\) must be a multiple of num_heads \(4\)"),
        ({"dim": 24, "num_heads": 4, "num_kv_heads": 3}, r"num_heads \(4\) must be a multiple of num_kv_heads \(3\)"),
        ({"dim": 24, "num_heads": 0}, "num_heads must be positive, got 0"),
        ({"dim": 24, "num_heads": 4, "num_kv_heads": 0}, "num_kv_heads must be positive, got 0"),
        ({"dim": 0, "num_heads": 4}, "dim must be positive, got 0"),
        ({"dim": 24, "num_heads": 4, "head_dim": -6}, "head_dim must be positive, got -6"),
    ],
)
def test_bad_modules_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        Attention(**arguments)
