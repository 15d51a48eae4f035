from functools import partial

import pytest
import torch
from torch import nn

import mmpos
from mmpos.models import Block, LayerEncodings, StackEncodings

ROPE = {"name": "RoPE", "axes": 2, "base": 100.0}
ALIBI = {"name": "ALiBi", "axes": 2}
MIXED = {"name": "RoPE", "axes": 2, "spectrum": {"name": "Mixed"}}
SIZES = {"dim": 48, "num_heads": 3, "size": (5, 4)}
COORDS = mmpos.grid_coords(height=5, width=4)


def count_calls(modules):
    calls = []
    for module in modules:
        module.register_forward_hook(lambda module, args, result: calls.append(module))
    return calls


class QueryBias(mmpos.AttentionBias):
    """A bias that reads content: the mean of each query, for all keys."""

    axes = 2
    needs = frozenset({"query"})

    def forward(self, q_coords, k_coords, *, query=None, key=None, tokens=None):
        return query.mean(-1, keepdim=True) * (q_coords[:, None] - k_coords).abs().sum(-1)


class FewKeys(mmpos.LogitScale):
    """Scales logits by the number of visible keys."""

    axes = 2

    def forward(self, q_coords, *, visible=None):
        return visible.float().expand(3, -1)


def test_a_slot_is_built_once_and_evaluated_once_for_all_layers():
    built = []
    rope = partial(mmpos.RoPE, axes=2)

    def make(head_dim):
        built.append(head_dim)
        return rope(head_dim)

    stack = StackEncodings(depth=4, rotary=make, bias=ALIBI, **SIZES)
    assert built == [16]
    calls = count_calls([*stack.rotary, *stack.bias])
    layers = stack(COORDS)
    assert len(calls) == 2
    assert len(layers) == 4
    assert all(layer.rotation is layers[0].rotation and layer.bias is layers[0].bias for layer in layers)
    torch.testing.assert_close(layers[3].rotation.cos, mmpos.RoPE(16, axes=2)(COORDS).cos, rtol=0, atol=0)
    assert layers[0].bias.shape == (3, 20, 20)


def test_per_layer_builds_a_slot_for_each_layer_and_leaves_the_spec_alone():
    spec = {"name": "RoPE", "axes": 2, "per_layer": True}
    stack = StackEncodings(depth=4, rotary=spec, bias=ALIBI, **SIZES)
    assert spec == {"name": "RoPE", "axes": 2, "per_layer": True}
    assert len({id(rope) for rope in stack.rotary}) == 4
    calls = count_calls([*stack.rotary, *stack.bias])
    layers = stack(COORDS)
    assert len(calls) == 5
    assert len({id(layer.rotation) for layer in layers}) == 4
    assert len({id(layer.bias) for layer in layers}) == 1


def test_learned_rotations_are_per_layer_unless_the_spec_says_otherwise():
    own = StackEncodings(depth=4, rotary=MIXED, **SIZES)
    assert len(own.rotary) == 4
    assert not torch.equal(own.rotary[0].freqs, own.rotary[1].freqs)
    shared = StackEncodings(depth=4, rotary={**MIXED, "per_layer": False}, **SIZES)
    assert len(shared.rotary) == 1
    ready = mmpos.RoPE(16, axes=2, spectrum=mmpos.Mixed(), num_heads=3)
    assert list(StackEncodings(depth=4, rotary=ready, **SIZES).rotary) == [ready]


def test_shared_modules_are_in_the_state_dict_once():
    stack = StackEncodings(depth=4, additive={"name": "LearnedTable"}, rotary={**MIXED, "per_layer": False}, **SIZES)
    assert set(stack.state_dict()) == {"additive.weight", "rotary.0.freqs"}
    assert len(list(stack.parameters())) == 2


@pytest.mark.parametrize("per_layer", ["yes", 1, None])
def test_per_layer_is_true_or_false(per_layer):
    with pytest.raises(ValueError, match=rf"per_layer of the bias slot must be true or false, got {per_layer!r}"):
        StackEncodings(depth=2, bias={**ALIBI, "per_layer": per_layer}, **SIZES)


def test_the_additive_slot_has_no_layers():
    with pytest.raises(ValueError, match="per_layer cannot stand in the additive slot"):
        StackEncodings(depth=2, additive={"name": "Sinusoidal", "axes": 2, "per_layer": True}, **SIZES)


def test_a_slot_refuses_another_kind():
    with pytest.raises(ValueError, match="RoPE is for the rotary slot, not for bias"):
        StackEncodings(depth=2, bias=ROPE, **SIZES)


def test_the_additive_encoding_keeps_the_dtype_of_the_tokens():
    stack = StackEncodings(depth=2, additive={"name": "Sinusoidal", "axes": 2}, **SIZES)
    x = torch.randn(2, 20, 48)
    torch.testing.assert_close(stack.add(x, COORDS), x + mmpos.Sinusoidal(48, axes=2)(COORDS), rtol=0, atol=0)
    assert stack.add(x.bfloat16(), COORDS).dtype == torch.bfloat16
    assert StackEncodings(depth=2, **SIZES).add(x, COORDS) is x


def test_empty_slots_give_every_layer_nothing():
    assert StackEncodings(depth=3, **SIZES)(COORDS) == [LayerEncodings()] * 3


def reference_block(block, x, cos, sin, bias):
    """The block in float64, written out: pairs (i, i + p) turn, and the bias is added to scaled logits."""
    block, x = block.double(), x.double()
    weights, hidden = block.state_dict(), block.norm1(x)
    q, k, v = (hidden @ weights["attn.qkv.weight"].mT + weights["attn.qkv.bias"]).chunk(3, dim=-1)
    q, k, v = (part.unflatten(-1, (3, 16)).transpose(1, 2) for part in (q, k, v))

    def turn(part):
        first, second = part.chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)

    logits = turn(q) @ turn(k).mT / 4 + bias
    attended = (logits.softmax(-1) @ v).transpose(1, 2).flatten(-2)
    x = x + attended @ weights["attn.proj.weight"].mT + weights["attn.proj.bias"]
    hidden = nn.functional.gelu(block.norm2(x) @ weights["mlp.fc1.weight"].mT + weights["mlp.fc1.bias"])
    return x + hidden @ weights["mlp.fc2.weight"].mT + weights["mlp.fc2.bias"]


def test_a_block_with_prefix_tokens_equals_a_float64_reference():
    stack = StackEncodings(depth=1, rotary=ROPE, bias=ALIBI, **SIZES)
    block, x = Block(48, 3, mlp_ratio=2.5), torch.randn(2, 22, 48)
    with torch.no_grad():
        y = block(x, *stack(COORDS, num_prefix_tokens=2), coords=COORDS, num_prefix_tokens=2)
        y_coords, x_coords = COORDS.double().T
        turns = 100.0 ** -(torch.arange(4, dtype=torch.float64) / 4)
        angles = torch.cat([y_coords[:, None] * turns, x_coords[:, None] * turns], dim=-1)
        angles = nn.functional.pad(angles, (0, 0, 2, 0))
        distance = (COORDS[:, None] - COORDS).abs().sum(-1).double()
        slopes = torch.tensor([2.0**-4, 2.0**-8, 2.0**-2], dtype=torch.float64)
        bias = nn.functional.pad(-slopes[:, None, None] * distance, (2, 0, 2, 0))
        expected = reference_block(block, x, angles.cos(), angles.sin(), bias)
    torch.testing.assert_close(y.double(), expected, rtol=1e-5, atol=1e-6)


def test_layers_may_differ():
    block, x = Block(48, 3), torch.randn(2, 20, 48)
    rotation = mmpos.RoPE(16, axes=2)(COORDS)
    assert not torch.allclose(block(x, LayerEncodings(rotation=rotation)), block(x))
    torch.testing.assert_close(block(x, LayerEncodings(rotation=rotation.where(torch.zeros(20) > 0))), block(x))


def test_a_bias_that_reads_content_goes_to_each_layer_as_a_module():
    stack = StackEncodings(depth=2, bias=QueryBias, **SIZES)
    calls = count_calls(stack.bias)
    layers = stack(COORDS)
    assert not calls
    blocks, x = [Block(48, 3) for _ in layers], torch.randn(2, 20, 48)
    for block, layer in zip(blocks, layers, strict=True):
        x = block(x, layer, coords=COORDS)
    assert len(calls) == 2


def test_a_logit_scale_sees_how_many_keys_the_mask_of_its_layer_leaves():
    (layer,) = StackEncodings(depth=1, scale=FewKeys, **SIZES)(COORDS)
    block, x = Block(48, 3), torch.randn(2, 21, 48)
    mask = torch.rand(1, 21, 21) > 0.5
    mask[0].fill_diagonal_(True)
    counts = mask[0].sum(-1).float()
    counts[0] = 1.0  # the prefix token is not scaled
    qkv = block.attn.qkv(block.norm1(x)).unflatten(-1, (3, 3, 16)).permute(2, 0, 3, 1, 4)
    logits = (qkv[0] @ qkv[1].mT / 4 * counts[:, None]).masked_fill(~mask, -torch.inf)
    attended = x + block.attn.proj((logits.softmax(-1) @ qkv[2]).transpose(1, 2).flatten(-2))
    expected = attended + block.mlp(block.norm2(attended))
    torch.testing.assert_close(block(x, layer, coords=COORDS, num_prefix_tokens=1, mask=mask), expected)


def test_drop_path_leaves_evaluation_alone_and_skips_whole_samples_in_training():
    block, x = Block(48, 3, drop_path=0.5), torch.randn(64, 5, 48)
    assert torch.equal(block.eval()(x), block(x))
    unchanged = (block.train()(x) == x).flatten(1).all(-1)
    assert 4 < unchanged.sum() < 32  # a quarter of 64 skip both branches


def attend_as_detr_does(attn, x, position):
    """Queries and keys made of ``x + position``, values of ``x``, in float64."""
    weights, bias = attn.qkv.weight.double(), attn.qkv.bias.double()
    both = (x + position).double() @ weights.mT + bias
    alone = x.double() @ weights.mT + bias
    width = attn.head_dim
    q = both[..., : attn.num_heads * width].unflatten(-1, (-1, width)).transpose(1, 2)
    k, v = (
        part[..., start : start + attn.num_kv_heads * width].unflatten(-1, (-1, width)).transpose(1, 2)
        for part, start in (
            (both, attn.num_heads * width),
            (alone, (attn.num_heads + attn.num_kv_heads) * width),
        )
    )
    k, v = (part.repeat_interleave(attn.num_heads // attn.num_kv_heads, dim=1) for part in (k, v))
    y = (q @ k.mT / width**0.5).softmax(-1) @ v
    return y.transpose(1, 2).flatten(2) @ attn.proj.weight.double().mT + attn.proj.bias.double()


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("num_kv_heads", [3, 1])
def test_an_encoding_may_be_added_to_queries_and_keys_of_every_layer(num_kv_heads, batched):
    sinusoidal = {"name": "Sinusoidal", "axes": 2}
    stack = StackEncodings(depth=2, additive=sinusoidal, additive_to="queries_keys", **SIZES)
    coords = COORDS + torch.tensor([0, 7])[:, None, None] if batched else COORDS
    layers = stack(coords, num_prefix_tokens=1)
    assert layers[0].additive is layers[1].additive
    x = torch.randn(2, 21, 48)
    tokens = x[:, 1:]
    assert stack.add(tokens, coords) is tokens  # not to the tokens as well
    block = Block(48, 3, num_kv_heads=num_kv_heads)
    nn.init.normal_(block.attn.qkv.bias)
    position = nn.functional.pad(mmpos.Sinusoidal(48, axes=2)(coords), (0, 0, 1, 0))  # prefix tokens have none
    normed = block.norm1(x)
    want = x + attend_as_detr_does(block.attn, normed, position).float()
    want = want + block.mlp(block.norm2(want))
    torch.testing.assert_close(block(x, layers[0]), want, atol=1e-5, rtol=1e-5)


def test_an_additive_encoding_may_have_coordinates_of_its_own():
    stack = StackEncodings(depth=2, additive={"name": "LearnedTable"}, additive_to="queries_keys", rotary=ROPE, **SIZES)
    layers = stack(COORDS * 0.5, cells=COORDS)
    torch.testing.assert_close(layers[1].additive, stack.additive(COORDS), rtol=0, atol=0)
    torch.testing.assert_close(layers[1].rotation.cos, mmpos.RoPE(16, axes=2, base=100.0)(COORDS * 0.5).cos)


def test_places_of_an_additive_encoding_that_are_none():
    with pytest.raises(ValueError, match="additive_to must be one of tokens, queries_keys, got 'keys'"):
        StackEncodings(depth=2, additive={"name": "LearnedTable"}, additive_to="keys", **SIZES)


def test_a_stack_is_resized_for_another_grid():
    stack = StackEncodings(depth=2, additive={"name": "LearnedTable"}, rotary=ROPE, **SIZES)
    table, rope = stack.additive, stack.rotary[0]
    stack.resize(7, 3)
    assert torch.equal(stack.additive.weight, table.resize(7, 3).weight)
    assert stack.rotary[0] is rope


def test_layers_may_differ_in_a_pattern_and_equal_ones_share():
    pattern = [{}, {"rotary": {**ROPE, "base": 10.0}}, {"rotary": None, "bias": ALIBI}]
    stack = StackEncodings(depth=7, rotary=ROPE, layers=pattern, **SIZES)
    assert [rope.base for rope in stack.rotary] == [100.0, 10.0]
    calls = count_calls([*stack.rotary, *stack.bias])
    layers = stack(COORDS)
    assert len(calls) == 3
    for layer in (0, 3, 6):
        assert layers[layer].rotation is layers[0].rotation
        assert layers[layer].bias is None
    assert layers[1].rotation is layers[4].rotation is not layers[0].rotation
    assert layers[2].rotation is None
    assert layers[2].bias is layers[5].bias
    torch.testing.assert_close(layers[5].bias, mmpos.ALiBi(3, axes=2)(COORDS, COORDS))
    torch.testing.assert_close(layers[4].rotation.cos, mmpos.RoPE(16, axes=2, base=10.0)(COORDS).cos)


def test_layers_of_a_pattern_may_each_learn_their_own():
    stack = StackEncodings(depth=4, layers=[{"rotary": MIXED}, {"rotary": {**MIXED, "per_layer": False}}], **SIZES)
    assert len(stack.rotary) == 3
    first, second, third, fourth = stack(COORDS)
    assert second.rotation is fourth.rotation
    assert not torch.equal(first.rotation.cos, third.rotation.cos)


def test_a_pattern_holds_slots_of_layers_only():
    with pytest.raises(ValueError, match="layers may differ in rotary, bias and scale, got 'additive'"):
        StackEncodings(depth=2, layers=[{"additive": None}], **SIZES)


def test_a_bias_of_many_numbers_goes_to_the_layers_as_a_module():
    kept = StackEncodings(depth=2, bias={"name": "T5Bias"}, dim=48, num_heads=3)
    coords = mmpos.sequence_coords(2000)
    assert isinstance(kept(coords[:1000])[1].bias, torch.Tensor)
    assert kept(coords)[1].bias is kept.bias[0]
    factored = StackEncodings(depth=2, bias={"name": "ALiBi"}, dim=48, num_heads=3)
    assert factored(coords[:1024])[0].bias is factored.bias[0]
    late = StackEncodings(depth=2, bias={"name": "ERPE"}, dim=48, num_heads=3, size=(9,))
    assert late(coords[:9])[0].bias is late.bias[0]
    prefixed = StackEncodings(depth=2, bias={"name": "SwinBias", "prefix": True}, dim=48, num_heads=3, size=(9,))
    assert prefixed(coords[:9], num_prefix_tokens=1)[0].bias is prefixed.bias[0]
    assert isinstance(prefixed(coords[:9])[0].bias, torch.Tensor)
