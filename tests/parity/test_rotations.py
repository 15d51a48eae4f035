import pytest
import torch

from mmpos import RoPE, attention, grid_coords, sequence_coords, video_coords

# The others form angles in float32, whose frequencies and products are off by 2^-24 each: at angle x, by 2^-23 x.
# Both rotations are then rounded, which values up to 5 make 1e-6.
ROUNDING, FLOOR = 5 * 2**-23, 1e-6


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("size, dim, base", [((5, 7), 24, 100.0), ((9, 4), 8, 10000.0), ((300, 2), 64, 10000.0)])
@pytest.mark.parametrize("options", [{}, {"grid_offset": 0.5}, {"ref_feat_shape": [14, 10]}, {"grid_indexing": "xy"}])
def test_timm_axial(size, dim, base, half, options):
    layers = pytest.importorskip("timm.layers", reason="needs timm")
    module = layers.RotaryEmbeddingCat(dim, in_pixels=False, temperature=base, rotate_half=half, **options)
    embed = module.get_embed(list(size))
    x = draw(2, 3, size[0] * size[1], dim)
    theirs = layers.apply_rot_embed_cat(x, embed, half=half)
    coords = grid_coords(*size, origin=options.get("grid_offset", 0))
    if "ref_feat_shape" in options:
        coords = coords * torch.tensor(options["ref_feat_shape"]) / torch.tensor(size)
    if "grid_indexing" in options:
        coords = coords.flip(-1)
    ours = RoPE(dim, axes=2, base=base, layout="half" if half else "interleaved")(coords).apply(x)
    torch.testing.assert_close(ours, theirs, atol=FLOOR + ROUNDING * coords.max().item(), rtol=0)


@pytest.mark.parametrize("offset", [torch.tensor([0, 7]), torch.tensor([300, 4100])])
@pytest.mark.parametrize("head_dim, base", [(64, 10000.0), (10, 500000.0)])
def test_transformers_llama(offset, head_dim, base):
    llama = pytest.importorskip("transformers.models.llama.modeling_llama", reason="needs transformers")
    parameters = {"rope_type": "default", "rope_theta": base}
    config = llama.LlamaConfig(
        hidden_size=4 * head_dim, num_attention_heads=4, head_dim=head_dim, rope_parameters=parameters
    )
    coords = sequence_coords(9, offset=offset)
    q, k = draw(2, 4, 9, head_dim), draw(2, 2, 9, head_dim, seed=1)
    cos, sin = llama.LlamaRotaryEmbedding(config)(q, coords[..., 0])
    rotation = RoPE(head_dim, base=base)(coords)
    far = coords.max().item()
    for ours, theirs in ((rotation.cos[:, 0], cos), (rotation.sin[:, 0], sin)):
        torch.testing.assert_close(torch.cat([ours, ours], dim=-1), theirs, atol=1e-7 + 2**-23 * far, rtol=0)
    for ours, theirs in zip(
        (rotation.apply(q), rotation.apply(k)), llama.apply_rotary_pos_emb(q, k, cos, sin), strict=True
    ):
        torch.testing.assert_close(ours, theirs, atol=FLOOR + ROUNDING * far, rtol=0)


@pytest.mark.parametrize("rotary_dim", [4, 10])
def test_transformers_gptj(rotary_dim):
    gptj = pytest.importorskip("transformers.models.gptj.modeling_gptj", reason="needs transformers")
    x = draw(2, 9, 4, 10)  # tokens before heads
    sin, cos = gptj.create_sinusoidal_positions(16, rotary_dim)[5:14].expand(2, -1, -1).chunk(2, dim=-1)
    theirs = torch.cat([gptj.apply_rotary_pos_emb(x[..., :rotary_dim], sin, cos), x[..., rotary_dim:]], dim=-1)
    rope = RoPE(10, rotary_dim=rotary_dim, layout="interleaved")
    ours = rope(sequence_coords(9, offset=5)).apply(x.transpose(1, 2)).transpose(1, 2)
    torch.testing.assert_close(ours, theirs, atol=FLOOR + ROUNDING * 14, rtol=0)


@pytest.mark.parametrize("offset", [0, 300])
@pytest.mark.parametrize("rotary_dim, head_dim", [(16, 16), (6, 10)])
def test_rotary_embedding_torch(offset, rotary_dim, head_dim):
    peer = pytest.importorskip("rotary_embedding_torch", reason="needs rotary-embedding-torch")
    x = draw(2, 3, 9, head_dim)
    theirs = peer.RotaryEmbedding(rotary_dim).rotate_queries_or_keys(x, offset=offset)
    rope = RoPE(head_dim, rotary_dim=rotary_dim, layout="interleaved")
    ours = rope(sequence_coords(9, offset=offset)).apply(x)
    torch.testing.assert_close(ours, theirs, atol=FLOOR + ROUNDING * (offset + 9), rtol=0)


@pytest.mark.parametrize("size, head_dim", [((5, 7), 16), ((2, 5, 7), 24)])
def test_rotary_embedding_torch_axial(size, head_dim):
    peer = pytest.importorskip("rotary_embedding_torch", reason="needs rotary-embedding-torch")
    axes = len(size)
    module = peer.RotaryEmbedding(head_dim // axes, freqs_for="lang", theta=100, cache_if_possible=False)
    x = draw(2, 3, *size, head_dim)
    theirs = peer.apply_rotary_emb(module.get_axial_freqs(*size), x).flatten(2, -2)
    coords = (grid_coords if axes == 2 else video_coords)(*size)
    ours = RoPE(head_dim, axes=axes, base=100, layout="interleaved")(coords).apply(x.flatten(2, -2))
    torch.testing.assert_close(ours, theirs, atol=FLOOR + ROUNDING * max(size), rtol=0)


def test_rotary_embedding_torch_with_cached_keys():
    peer = pytest.importorskip("rotary_embedding_torch", reason="needs rotary-embedding-torch")
    q, k = draw(2, 3, 4, 16), draw(2, 3, 9, 16, seed=1)
    theirs = torch.nn.functional.scaled_dot_product_attention(
        *peer.RotaryEmbedding(16).rotate_queries_with_cached_keys(q, k), k
    )
    rope = RoPE(16, layout="interleaved")
    ours = attention(q, k, k, rotation=(rope(sequence_coords(4, offset=5)), rope(sequence_coords(9))))
    torch.testing.assert_close(ours, theirs, atol=FLOOR + ROUNDING * 9, rtol=0)
