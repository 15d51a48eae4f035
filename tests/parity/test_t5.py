import pytest
import torch

from mmpos import sequence_coords
from mmpos.encodings.bias.buckets import T5Bias

# T5's, WavLM's, and others that nobody released.
SETTINGS = [(32, 128), (320, 800), (64, 512), (16, 1000), (8, 20), (48, 300), (128, 4096), (6, 7), (20, 160), (10, 160)]
STEPS = torch.arange(-2000, 2001)


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("num_buckets, max_distance", SETTINGS)
def test_buckets_of_transformers(num_buckets, max_distance, bidirectional):
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5", reason="needs transformers")
    theirs = t5.T5Attention._relative_position_bucket(STEPS, bidirectional, num_buckets, max_distance)
    ours = T5Bias(2, num_buckets, max_distance, bidirectional).bucket(torch.tensor([[0]]), STEPS[:, None])
    assert torch.equal(ours[0, :, 0], theirs)


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("num_buckets, max_distance", SETTINGS)
def test_buckets_of_x_transformers(num_buckets, max_distance, bidirectional):
    peer = pytest.importorskip("x_transformers.x_transformers", reason="needs x-transformers")
    theirs = peer.RelativePositionBias._relative_position_bucket(STEPS, not bidirectional, num_buckets, max_distance)
    ours = T5Bias(2, num_buckets, max_distance, bidirectional).bucket(torch.tensor([[0]]), STEPS[:, None])
    assert torch.equal(ours[0, :, 0], theirs)


@pytest.mark.parametrize("is_decoder", [True, False])
def test_the_bias_of_a_t5_layer(is_decoder):
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5", reason="needs transformers")
    config = transformers.T5Config(d_model=24, num_heads=6, d_kv=4, is_decoder=is_decoder)
    layer = t5.T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    bias = T5Bias(num_heads=6, bidirectional=not is_decoder)
    bias.load_state_dict({"weight": layer.relative_attention_bias.weight})
    coords = sequence_coords(300)
    assert torch.equal(bias(coords, coords), layer.compute_bias(300, 300)[0])
    # A step of decoding, whose queries follow on those that have been.
    theirs = layer.compute_bias(5, 300, past_seen_tokens=295)[0]
    assert torch.equal(bias(coords[295:], coords), theirs)


@pytest.mark.parametrize("causal", [True, False])
def test_the_bias_of_x_transformers(causal):
    peer = pytest.importorskip("x_transformers.x_transformers", reason="needs x-transformers")
    module = peer.RelativePositionBias(scale=1.0, causal=causal, num_buckets=16, max_distance=100, heads=5)
    bias = T5Bias(5, 16, 100, bidirectional=not causal)
    bias.load_state_dict({"weight": module.relative_attention_bias.weight})
    assert torch.equal(bias(sequence_coords(7, offset=293), sequence_coords(300)), module(7, 300))
