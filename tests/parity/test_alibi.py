import pytest
import torch

from mmpos import ALiBi, attention, grid_coords, padded_coords, sequence_coords

HEADS = range(1, 65)


@pytest.mark.parametrize("num_heads", HEADS)
def test_transformers_bloom(num_heads):
    bloom = pytest.importorskip("transformers.models.bloom.modeling_bloom", reason="needs transformers")
    mask = torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1]])
    theirs = bloom.build_alibi_tensor(mask, num_heads, torch.float32).unflatten(0, (2, num_heads))
    coords = padded_coords(mask.bool())
    ours = ALiBi(num_heads)(coords, coords)
    # Theirs leaves out what is constant in a row of causal attention: the bias of position 0.
    first = ours.gather(-1, mask.argmax(-1)[:, None, None, None].expand(-1, num_heads, 7, 1))
    seen = mask[:, None, :, None].bool() & mask[:, None, None].bool() & torch.ones(7, 7).tril().bool()
    difference = (ours - first - theirs)[seen.expand_as(ours)]
    torch.testing.assert_close(difference, torch.zeros_like(difference), atol=1e-6, rtol=0)


@pytest.mark.parametrize("num_heads", HEADS)
def test_transformers_mpt(num_heads):
    mpt = pytest.importorskip("transformers.models.mpt.modeling_mpt", reason="needs transformers")
    theirs = mpt.build_mpt_alibi_tensor(num_heads, 300)
    ours = ALiBi(num_heads)(sequence_coords(1, offset=299), sequence_coords(300))
    torch.testing.assert_close(ours, theirs, atol=0, rtol=2e-7)


@pytest.mark.parametrize("num_heads", HEADS)
@pytest.mark.parametrize("max_bias", [3, 16])
def test_transformers_mpt_with_another_exponent(num_heads, max_bias):
    mpt = pytest.importorskip("transformers.models.mpt.modeling_mpt", reason="needs transformers")
    theirs = mpt.build_mpt_alibi_tensor(num_heads, 30, alibi_bias_max=max_bias)
    ours = ALiBi(num_heads, max_bias=max_bias)(sequence_coords(1, offset=29), sequence_coords(30))
    torch.testing.assert_close(ours, theirs, atol=0, rtol=4e-7)


@pytest.mark.parametrize("num_heads", [5, 12])
def test_factors_are_blooms_bias_by_key(num_heads):
    bloom = pytest.importorskip("transformers.models.bloom.modeling_bloom", reason="needs transformers")
    mask = torch.ones(1, 300)
    theirs = bloom.build_alibi_tensor(mask, num_heads, torch.float32).view(num_heads, 1, 300)
    coords = sequence_coords(300, offset=10**9)
    left, right = ALiBi(num_heads).factors(coords, coords, ordered=True)
    ours = left @ right.mT
    difference = (ours - theirs).expand(num_heads, 300, 300)
    constant = difference[..., :1].expand_as(difference)
    torch.testing.assert_close(difference, constant, atol=3e-5, rtol=0)  # float32 at biases up to 212


@pytest.mark.parametrize("num_heads", [4, 6])
def test_a_step_of_causal_attention_with_mpts_bias(num_heads):
    mpt = pytest.importorskip("transformers.models.mpt.modeling_mpt", reason="needs transformers")
    q, k, v = (torch.randn(2, num_heads, 9, 8) for _ in range(3))
    theirs = attention(q, k, v, bias=mpt.build_mpt_alibi_tensor(num_heads, 9).expand(-1, 9, -1), is_causal=True)
    ours = attention(q, k, v, bias=ALiBi(num_heads), q_coords=sequence_coords(9), is_causal=True)
    torch.testing.assert_close(ours, theirs, atol=2e-6, rtol=0)


@pytest.mark.parametrize("num_heads", HEADS)
def test_x_transformers(num_heads):
    peer = pytest.importorskip("x_transformers.x_transformers", reason="needs x-transformers")
    theirs = peer.AlibiPositionalBias(heads=num_heads)(5, 300)
    ours = ALiBi(num_heads)(sequence_coords(5, offset=295), sequence_coords(300))
    torch.testing.assert_close(ours, theirs, atol=0, rtol=4e-7)


def test_x_transformers_at_positions_of_ones_own():
    peer = pytest.importorskip("x_transformers.x_transformers", reason="needs x-transformers")
    coords = torch.tensor([[3, 0, 40, 7, 4100], [0, 1, 2, 3, 4]])
    theirs = peer.AlibiPositionalBias(heads=6).forward_custom_pos(coords.float(), coords.float())
    ours = ALiBi(6)(coords[..., None], coords[..., None])
    torch.testing.assert_close(ours, theirs, atol=0, rtol=4e-7)


def test_two_axes_add_up():
    peer = pytest.importorskip("x_transformers.x_transformers", reason="needs x-transformers")
    coords, module = grid_coords(3, 5), peer.AlibiPositionalBias(heads=6)
    theirs = sum(module.forward_custom_pos(axis.float()) for axis in coords.unbind(-1))
    torch.testing.assert_close(ALiBi(6, axes=2)(coords, coords), theirs, atol=0, rtol=4e-7)
