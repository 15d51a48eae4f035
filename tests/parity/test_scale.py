import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from mmpos import attention, sequence_coords
from mmpos.encodings.scale import LogScale


def modeling(name):
    return pytest.importorskip(f"transformers.models.{name}.modeling_{name}", reason="needs transformers")


@pytest.mark.parametrize("floor_scale, length", [(4, 21), (8192, 5)])
def test_a_layer_of_transformers_llama4(floor_scale, length):
    llama4 = modeling("llama4")
    config = llama4.Llama4TextConfig(
        hidden_size=24,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=4,
        num_hidden_layers=4,
        intermediate_size=8,
        intermediate_size_mlp=8,
        vocab_size=5,
        num_local_experts=1,
        floor_scale=floor_scale,
        attn_scale=0.6,
        attn_temperature_tuning=True,
        attn_implementation="eager",
    )
    layer = llama4.Llama4TextAttention(config, layer_idx=3).eval()
    assert not layer.use_rope
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    x = torch.randn(2, length, 24)
    mask = torch.full((length, length), -math.inf).triu(1)[None, None]
    theirs, _ = layer(x, None, mask)

    q, k, v = (
        linear(x).unflatten(-1, (-1, 4)).transpose(1, 2) for linear in (layer.q_proj, layer.k_proj, layer.v_proj)
    )
    for by in ("keys", "position"):
        scale = LogScale(floor_scale, coefficient=0.6, ratio="stepped", by=by)
        y = attention(q, k, v, logit_scale=scale, q_coords=sequence_coords(length), is_causal=True)
        ours = layer.o_proj(y.transpose(1, 2).flatten(2))
        torch.testing.assert_close(ours, theirs, atol=2e-6 * theirs.abs().max().item(), rtol=0)


@pytest.mark.parametrize("floor_scale", [8192, 100])
def test_the_factors_of_transformers_llama4(floor_scale):
    # Written as in Llama4TextAttention.forward, which has no function for it.
    positions = torch.cat([torch.arange(20000), 10**6 + torch.arange(9000)])
    theirs = torch.log1p(torch.floor((positions.float() + 1.0) / floor_scale)) * 0.1 + 1.0
    ours = LogScale(floor_scale, coefficient=0.1, ratio="stepped", by="position")(positions[:, None])
    torch.testing.assert_close(ours[0], theirs, atol=2e-7, rtol=0)


@pytest.mark.parametrize("module", ["inkling2", "inkling2_loop"])
@pytest.mark.parametrize("floor", [7, 128000])
def test_transformers_inkling(module, floor):
    inkling = modeling(module)
    name = "Inkling2LogScale" if module == "inkling2" else "Inkling2LoopLogScale"
    if not hasattr(inkling, name):
        pytest.skip("needs transformers 5.24")
    theirs = getattr(inkling, name)(SimpleNamespace(log_scaling_alpha=0.1, log_scaling_n_floor=floor))
    positions = torch.cat([torch.arange(300), 127990 + torch.arange(30), 10**6 + torch.arange(20)])[None]
    states = torch.ones(1, positions.shape[1], 1, 1)
    ours = LogScale(floor, coefficient=0.1, by="position")(positions[..., None])
    torch.testing.assert_close(ours[:, 0], theirs(states, positions)[..., 0, 0], atol=3e-7, rtol=0)


@pytest.mark.parametrize("module", ["ministral3", "mistral4"])
def test_transformers_mistral_but_for_where_steps_are(module):
    """It counts the keys in front of a token, without the token itself: each step is one token later."""
    mistral = modeling(module)
    positions = torch.arange(1, 400)
    theirs = mistral.get_llama_4_attn_scale(positions[None], 0.1, 16)[0, 0, :, 0]
    ours = LogScale(16, coefficient=0.1, ratio="stepped", by="position")(positions[:, None] - 1)[0]
    torch.testing.assert_close(ours, theirs, atol=2e-7, rtol=0)
