import pytest
import torch
from torch import nn

from mmpos import attention, grid_coords, sequence_coords
from mmpos.encodings.bias.relative import RelativeLogits
from mmpos.encodings.bias.relative_sinusoids import RelativeSinusoids


def modeling(name):
    return pytest.importorskip(f"transformers.models.{name}.modeling_{name}", reason="needs transformers")


def randomise(module):
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    return module


def close(got, want, tolerance=1e-6):
    assert got.shape == want.shape
    torch.testing.assert_close(got.to(want.dtype), want, atol=tolerance * want.abs().max().item(), rtol=0)


def sam_attention(size, heads, head_dim):
    """An attention layer of SAM whose tables are of a grid of this size."""
    sam = modeling("sam")
    config = sam.SamVisionConfig(hidden_size=heads * head_dim, num_attention_heads=heads, image_size=16, patch_size=16)
    layer = randomise(sam.SamVisionAttention(config, window_size=1))
    layer.rel_pos_h = nn.Parameter(torch.randn(2 * size[0] - 1, head_dim))
    layer.rel_pos_w = nn.Parameter(torch.randn(2 * size[1] - 1, head_dim))
    return layer


def from_sam(layer, size):
    bias = RelativeLogits(
        num_heads=layer.num_attention_heads,
        head_dim=layer.rel_pos_h.shape[-1],
        extent=[side - 1 for side in size],
        beyond="error",
        scale=1.0,
    )
    weight = torch.cat([layer.rel_pos_h, layer.rel_pos_w])[None]
    bias.load_state_dict({"weight": weight.detach()})
    return bias.to(weight.dtype)


# It takes the resampling of tables along the way: SAM does it at every call.
@pytest.mark.parametrize("old, new", [((5, 9), (5, 9)), ((6, 4), (9, 5)), ((9, 7), (4, 7)), ((14, 14), (64, 3))])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_transformers_sam(old, new, dtype):
    layer = sam_attention(old, heads=3, head_dim=8).to(dtype)
    query = torch.randn(2, 3, *new, 8, dtype=dtype).flatten(2, 3)
    theirs = layer.get_decomposed_rel_pos(query.flatten(0, 1), layer.rel_pos_h, layer.rel_pos_w, new, new)
    theirs = theirs.flatten(1, 2).flatten(2, 3).unflatten(0, (2, 3))
    coords, bias = grid_coords(*new), from_sam(layer, old).resize(*new)
    close(bias(coords, coords, query=query), theirs)
    parts = bias.factors(coords, coords, query=query)
    if 2 * sum(new) <= new[0] * new[1]:
        close(parts[0] @ parts[1].mT, theirs)
    else:
        assert parts is None


def test_a_layer_of_transformers_sam():
    layer = sam_attention((5, 9), heads=3, head_dim=8)
    for parameter in layer.parameters():
        parameter.data *= 0.3
    x = torch.randn(2, 5, 9, 24)
    theirs, _ = layer(x)
    q, k, v = layer.qkv(x).reshape(2, 45, 3, 3, 8).permute(2, 0, 3, 1, 4)
    y = attention(q, k, v, bias=from_sam(layer, (5, 9)), q_coords=grid_coords(5, 9))
    close(layer.proj(y.transpose(1, 2).reshape(2, 5, 9, 24)), theirs, tolerance=2e-6)


@pytest.mark.parametrize("query_size, key_size", [((8, 12), (4, 4)), ((3, 4), (9, 8)), ((6, 5), (3, 15))])
def test_transformers_sam_with_pooled_keys_or_queries(query_size, key_size):
    sides = [max(pair) for pair in zip(query_size, key_size, strict=True)]
    layer = sam_attention(sides, heads=1, head_dim=4)
    query = torch.randn(1, query_size[0] * query_size[1], 4)
    theirs = layer.get_decomposed_rel_pos(query, layer.rel_pos_h, layer.rel_pos_w, query_size, key_size)

    ratios = [(max(k // q, 1), max(q // k, 1)) for q, k in zip(query_size, key_size, strict=True)]
    q_spacing, k_spacing = zip(*ratios, strict=True)
    # With pooled keys the row of difference 0 is not the one in the middle.
    ahead = [(side - 1) * step for side, step in zip(key_size, k_spacing, strict=True)]
    extent = [2 * side - 2 - front for side, front in zip(sides, ahead, strict=True)]
    bias = RelativeLogits(num_heads=1, head_dim=4, extent=extent, ahead=ahead, beyond="error", scale=1.0)
    bias.load_state_dict({"weight": torch.cat([layer.rel_pos_h, layer.rel_pos_w]).detach()[None]})
    q_coords, k_coords = grid_coords(*query_size, spacing=q_spacing), grid_coords(*key_size, spacing=k_spacing)
    close(bias(q_coords, k_coords, query=query), theirs.flatten(1, 2).flatten(2, 3))


@pytest.mark.parametrize("offset", [0, 7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_transformers_inkling(offset, dtype):
    inkling = modeling("inkling")
    layer = randomise(inkling.InklingRelativeLogits(d_rel=5, rel_extent=6)).to(dtype)
    projection = randomise(nn.Linear(11, 4 * 5, bias=False)).to(dtype)
    tokens = torch.randn(2, 9, 11, dtype=dtype)
    states = projection(tokens).unflatten(-1, (4, 5))
    theirs = layer(states, torch.arange(9) + offset, torch.arange(9 + offset))

    bias = RelativeLogits(num_heads=4, extent=5, ahead=0, beyond="zero", rank=5, dim=11).to(dtype)
    state = {"weight": layer.proj.detach().mT[None], "token_weight": projection.weight.detach().unflatten(0, (4, 5))}
    bias.load_state_dict(state)
    close(bias(sequence_coords(9, offset=offset), sequence_coords(9 + offset), tokens=tokens), theirs)


@pytest.mark.parametrize("queries", [13, 4])
def test_x_transformers_relative_projection(queries):
    peer = pytest.importorskip("x_transformers.x_transformers", reason="needs x-transformers")
    module = randomise(peer.RelativeProjPositionalBias(dim=10, heads=3, num_distance_basis=4, max_dist=6))
    tokens = torch.randn(2, queries, 10)
    theirs = module(tokens, seq_len_k=13)

    bias = RelativeLogits(num_heads=3, extent=5, ahead=0, beyond="zero", rank=4, dim=11)
    linear = module.to_distance_weights[0]
    # Their projection has a bias: a channel more that is 1.
    weight = torch.cat([linear.weight, linear.bias[:, None]], dim=1).unflatten(0, (3, 4))
    bias.load_state_dict({"weight": module.distance_bank.detach().mT[None], "token_weight": weight.detach()})
    tokens = torch.cat([tokens, torch.ones(2, queries, 1)], dim=-1)
    close(bias(sequence_coords(queries, offset=13 - queries), sequence_coords(13), tokens=tokens), theirs)


@pytest.mark.parametrize("behind, ahead", [(4, 4), (6, 2), (64, 8)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_transformers_wav2vec2_bert(behind, ahead, dtype):
    bert = modeling("wav2vec2_bert")
    config = bert.Wav2Vec2BertConfig(
        hidden_size=24,
        num_attention_heads=3,
        position_embeddings_type="relative_key",
        left_max_position_embeddings=behind,
        right_max_position_embeddings=ahead,
    )
    layer = randomise(bert.Wav2Vec2BertSelfAttention(config)).to(dtype)
    query, key = torch.randn(2, 3, 11, 8, dtype=dtype), torch.randn(2, 3, 15, 8, dtype=dtype)
    _, theirs = bert._apply_relative_key_position_encoding(layer, query, key)
    bias = RelativeLogits(num_heads=3, head_dim=8, extent=behind, ahead=ahead).to(dtype)
    bias.load_state_dict({"weight": layer.distance_embedding.weight.detach().flip(0)[None]})
    close(bias(sequence_coords(11), sequence_coords(15), query=query), theirs)


def test_a_layer_of_transformers_wav2vec2_bert():
    bert = modeling("wav2vec2_bert")
    config = bert.Wav2Vec2BertConfig(
        hidden_size=24,
        num_attention_heads=3,
        position_embeddings_type="relative_key",
        left_max_position_embeddings=5,
        right_max_position_embeddings=2,
        attn_implementation="eager",
        attention_dropout=0.0,
    )
    layer = randomise(bert.Wav2Vec2BertSelfAttention(config)).eval()
    for parameter in layer.parameters():
        parameter.data *= 0.3
    x = torch.randn(2, 13, 24)
    theirs, _ = layer(x)
    q, k, v = (
        linear(x).unflatten(-1, (3, 8)).transpose(1, 2) for linear in (layer.linear_q, layer.linear_k, layer.linear_v)
    )
    bias = RelativeLogits(num_heads=3, head_dim=8, extent=5, ahead=2)
    bias.load_state_dict({"weight": layer.distance_embedding.weight.detach().flip(0)[None]})
    y = attention(q, k, v, bias=bias, q_coords=sequence_coords(13))
    close(layer.linear_out(y.transpose(1, 2).flatten(2)), theirs, tolerance=2e-6)


def conformer_layer():
    conformer = modeling("wav2vec2_conformer")
    config = conformer.Wav2Vec2ConformerConfig(
        hidden_size=24,
        num_attention_heads=3,
        position_embeddings_type="relative",
        max_source_positions=40,
        attention_dropout=0.0,
        attn_implementation="eager",
    )
    layer = randomise(conformer.Wav2Vec2ConformerSelfAttention(config)).eval()
    return layer, conformer.Wav2Vec2ConformerRelPositionalEmbedding(config), conformer


def from_conformer(layer):
    bias = RelativeSinusoids(num_heads=3, head_dim=8, dim=24)
    bias.load_state_dict(
        {
            "weight": layer.linear_pos.weight.detach().unflatten(0, (3, 8)),
            "content_bias": layer.pos_bias_u.detach(),
            "position_bias": layer.pos_bias_v.detach(),
        }
    )
    return bias.to(layer.pos_bias_u.dtype)


@pytest.mark.parametrize("length", [1, 7, 39])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_transformers_wav2vec2_conformer(length, dtype):
    layer, positions, conformer = conformer_layer()
    layer = layer.to(dtype)
    query, key = torch.randn(2, 3, length, 8, dtype=dtype), torch.randn(2, 3, length, 8, dtype=dtype)
    embeddings = positions(torch.zeros(1, length, 24)).to(dtype)
    shifted, by_position = conformer._apply_relative_position_encoding(layer, query, key, embeddings)
    theirs = by_position + (shifted - query) @ key.mT * layer.scaling
    coords = sequence_coords(length, offset=3)
    close(from_conformer(layer)(coords, coords, query=query, key=key), theirs)


def test_a_layer_of_transformers_wav2vec2_conformer():
    layer, positions, _ = conformer_layer()
    for parameter in layer.parameters():
        parameter.data *= 0.3
    x = torch.randn(2, 13, 24)
    theirs, _ = layer(x, relative_position_embeddings=positions(x))
    q, k, v = (
        linear(x).unflatten(-1, (3, 8)).transpose(1, 2) for linear in (layer.linear_q, layer.linear_k, layer.linear_v)
    )
    y = attention(q, k, v, bias=from_conformer(layer), q_coords=sequence_coords(13))
    close(layer.linear_out(y.transpose(1, 2).flatten(2)), theirs, tolerance=2e-6)


@pytest.mark.parametrize("memory", [0, 5])
def test_transformers_xlnet(memory):
    xlnet = modeling("xlnet")
    config = xlnet.XLNetConfig(d_model=12, n_head=3, d_head=4, n_layer=1, vocab_size=5, d_inner=8)
    model = xlnet.XLNetModel(config)
    layer = randomise(model.layer[0].rel_attn)
    queries, keys = 6, 6 + memory
    query, key = torch.randn(2, 3, queries, 4), torch.randn(2, 3, keys, 4)
    embeddings = model.relative_positional_encoding(queries, keys, bsz=2)
    by_position = torch.einsum(
        "ibnd,jbnd->bnij",
        query.permute(2, 0, 1, 3) + layer.r_r_bias,
        torch.einsum("jbi,ind->jbnd", embeddings, layer.r),
    )
    by_position = layer.rel_shift_bnij(by_position, klen=keys)
    theirs = (by_position + torch.einsum("nd,bnjd->bnj", layer.r_w_bias, key)[:, :, None]) * layer.scale

    bias = RelativeSinusoids(num_heads=3, head_dim=4, dim=12)
    # Theirs has all sines in front of all cosines.
    weight = layer.r.permute(1, 2, 0).unflatten(-1, (2, 6)).mT.flatten(-2)
    bias.load_state_dict(
        {
            "weight": weight.detach(),
            "content_bias": layer.r_w_bias.detach(),
            "position_bias": layer.r_r_bias.detach(),
        }
    )
    got = bias(sequence_coords(queries, offset=memory), sequence_coords(keys), query=query, key=key)
    close(got, theirs)
