import copy
import math

import mpmath
import pytest
import torch
from torch import nn

from mmpos import RoPE, grid_coords, packed_coords, padded_coords, sequence_coords, video_coords

LAYOUTS = ["half", "interleaved"]


def phases(coords, width, base):
    """Cosine and sine of ``coord * base ** (-2i / width)`` in 50 digits, an axis block after the other."""
    parts = ([], [])
    with mpmath.workdps(70):
        for point in coords:
            angles = [c * mpmath.mpf(base) ** (mpmath.mpf(-2 * i) / width) for c in point for i in range(width // 2)]
            for part, fn in zip(parts, (mpmath.cos, mpmath.sin), strict=True):
                part.append([float(fn(angle)) for angle in angles])
    return torch.tensor(parts, dtype=torch.float64)


def error(rotation, want):
    got = torch.stack([rotation.cos, rotation.sin])
    assert got.dtype == torch.float32
    return (got[:, 0].double() - want).abs().max().item()


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def logits(rope, q, k, q_coords, k_coords):
    return rope(q_coords).apply(q) @ rope(k_coords).apply(k).mT


@pytest.mark.parametrize("base", [10000.0, 100, 500000.0, 1e6])
@pytest.mark.parametrize("axes, head_dim", [(1, 64), (1, 2), (2, 24), (3, 18)])
def test_phases_are_exact_at_any_distance(axes, head_dim, base):
    far = (0, 10, 4095, 131071, 10**6, 10**9, 2**31 - 1)
    coords = torch.tensor([[sign * c - axis for axis in range(axes)] for c in far for sign in (1, -1)])
    rotation = RoPE(head_dim, axes=axes, base=base)(coords)
    assert error(rotation, phases(coords.tolist(), head_dim // axes, base)) < 1e-7


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_phases_of_real_coordinates_are_exact(dtype):
    coords = torch.tensor([[0.5, -1 / 3], [-4095.75, 1e-7], [1e6 + 0.1, -1e9 - 0.3]], dtype=dtype)
    assert error(RoPE(24, axes=2, base=100.0)(coords), phases(coords.tolist(), 12, 100.0)) < 1e-7


def test_one_channel_far_out():
    # A bfloat16 position gives cos(15936) = -0.2680 here, a bfloat16 frequency is off by 1.68 at position 4095.
    rotation = RoPE(128)(torch.tensor([[15962], [4095]]))
    assert rotation.cos[0, 0, 0].item() == pytest.approx(math.cos(15962), abs=1e-7)
    assert error(rotation, phases([[15962], [4095]], 128, 10000.0)) < 1e-7


@pytest.mark.parametrize("change", [nn.Module.bfloat16, nn.Module.half, nn.Module.double, copy.deepcopy, torch.compile])
@pytest.mark.parametrize("coords", [torch.tensor([[10**9, -3], [257, 2**31 - 1]]), torch.tensor([[0.1, -1e6]])])
def test_phases_have_the_same_bits_in_a_model_of_any_dtype_and_compiled(change, coords):
    want = RoPE(24, axes=2)(coords)
    rope = change(RoPE(24, axes=2))
    assert all(map(torch.equal, rope(coords)[:2], want[:2]))
    with torch.autocast("cpu", torch.bfloat16):
        assert all(map(torch.equal, rope(coords)[:2], want[:2]))
    assert not rope.state_dict()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_compiled_rotation_of_half_precision_queries(layout):
    rope, coords = RoPE(12, axes=2, layout=layout), grid_coords(3, 5, origin=(10**6, -7))
    x = draw(2, 4, 15, 16).bfloat16()
    torch.compiler.reset()
    got = torch.compile(lambda c, x: rope(c).apply(x), fullgraph=True)(coords, x)
    assert torch.equal(got, rope(coords).apply(x))


def test_lengths_may_change_under_one_compilation():
    torch.compiler.reset()
    rope = torch.compile(RoPE(8), backend="aot_eager", fullgraph=True, dynamic=True)
    for length in (5, 7, 300):
        coords = sequence_coords(length, offset=4000)
        assert torch.equal(rope(coords).cos, RoPE(8)(coords).cos)


def test_neighbours_past_256_stay_apart_in_a_bfloat16_model():
    rope = RoPE(8).bfloat16()
    x = torch.ones(1, 1, 4, 8, dtype=torch.bfloat16)
    got = rope(sequence_coords(4, offset=255)).apply(x)
    assert got.dtype == torch.bfloat16
    assert len(got[0, 0].unique(dim=0)) == 4


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("axes, rotary_dim", [(1, None), (2, 12), (3, 6)])
def test_the_rotation_of_a_head(layout, axes, rotary_dim):
    rope = RoPE(16, axes=axes, base=100.0, rotary_dim=rotary_dim, layout=layout)
    width = rotary_dim or 16
    coords = torch.tensor([[3, -1, 7][:axes], [0, 5, -2][:axes]])
    cos, sin = phases(coords.tolist(), width // axes, 100.0)
    x = draw(2, 4, 2, 16)
    got = rope(coords).apply(x)
    for pair in range(width // 2):
        i, j = (pair, pair + width // 2) if layout == "half" else (2 * pair, 2 * pair + 1)
        c, s = cos[:, pair], sin[:, pair]
        torch.testing.assert_close(got[..., i], x[..., i] * c - x[..., j] * s, atol=5e-7, rtol=0)
        torch.testing.assert_close(got[..., j], x[..., j] * c + x[..., i] * s, atol=5e-7, rtol=0)
    assert torch.equal(got[..., width:], x[..., width:])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_logits_depend_on_differences_only(layout, axes):
    rope = RoPE(24, axes=axes, layout=layout)
    coords, shift = torch.randint(0, 300, (9, axes)), torch.tensor([10**6, -4096, 2**30][:axes])
    q, k = draw(2, 9, 24), draw(2, 9, 24, seed=1)
    near = logits(rope, q, k, coords, coords)
    torch.testing.assert_close(logits(rope, q, k, coords + shift, coords + shift), near, atol=4e-6, rtol=0)
    assert not torch.allclose(logits(rope, q, k, coords + shift, coords), near, atol=0.1)


def test_norms_are_kept():
    x = draw(4, 300, 64)
    turned = RoPE(64)(sequence_coords(300, offset=10**6)).apply(x)
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1), atol=0, rtol=2e-7)


def test_the_turn_is_forward_and_only_once():
    x = torch.tensor([[[1.0, 0.0]]])
    got = RoPE(2)(torch.tensor([[3]])).apply(x)[0, 0]
    torch.testing.assert_close(got, torch.tensor([math.cos(3), math.sin(3)]), atol=1e-7, rtol=0)


def test_layouts_agree_after_permuting_the_weights_of_q_and_k():
    perm = [0, 2, 4, 6, 1, 3, 5, 7]
    q, k = draw(4, 6, 8), draw(4, 6, 8, seed=1)
    coords = sequence_coords(6, offset=300)
    interleaved = logits(RoPE(8, layout="interleaved"), q, k, coords, coords)
    half = logits(RoPE(8, layout="half"), q[..., perm], k[..., perm], coords, coords)
    torch.testing.assert_close(half, interleaved, atol=1e-13, rtol=0)


@pytest.mark.parametrize("steps", [(6,), (4, 1, 1), (1,) * 6, (5, 1)])
def test_decoding_step_by_step_equals_the_full_pass(steps):
    rope, x = RoPE(8), draw(2, 4, 6, 8).float()
    full = rope(sequence_coords(6)).apply(x)
    seen, parts = 0, []
    for step in steps:
        parts.append(rope(sequence_coords(step, offset=seen)).apply(x[..., seen : seen + step, :]))
        seen += step
    assert torch.equal(torch.cat(parts, dim=-2), full)


def test_rows_of_a_batch_decode_at_their_own_positions():
    rope, x = RoPE(8), draw(2, 4, 1, 8).float()
    got = rope(sequence_coords(1, offset=torch.tensor([4, 900]))).apply(x)
    for row, seen in enumerate((4, 900)):
        assert torch.equal(got[row], rope(sequence_coords(1, offset=seen)).apply(x[row]))


def test_a_left_padded_row_is_rotated_as_if_alone():
    rope, x = RoPE(8), draw(2, 4, 5, 8).float()
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]], dtype=torch.bool)
    got = rope(padded_coords(mask)).apply(x)
    assert torch.equal(got[0, :, 2:], rope(sequence_coords(3)).apply(x[0, :, 2:]))
    assert torch.equal(got[1], rope(sequence_coords(5)).apply(x[1]))


def test_packed_documents_equal_each_alone():
    rope, lengths = RoPE(8), [3, 5, 2]
    x = draw(4, 10, 8).float()
    got = rope(packed_coords(lengths)[0]).apply(x)
    for part, alone in zip(got.split(lengths, dim=-2), x.split(lengths, dim=-2), strict=True):
        assert torch.equal(part, rope(sequence_coords(alone.shape[-2])).apply(alone))


def test_a_sub_grid_equals_a_slice_of_the_grid():
    rope = RoPE(12, axes=2)
    whole = rope(grid_coords(7, 9)).cos.unflatten(-2, (7, 9))
    part = rope(grid_coords(4, 3, origin=(2, 5))).cos.unflatten(-2, (4, 3))
    assert torch.equal(part, whole[:, 2:6, 5:8])


def test_transposing_an_image_swaps_the_axis_blocks():
    rope = RoPE(16, axes=2)
    upright = rope(grid_coords(3, 5)).sin.unflatten(-2, (3, 5)).unflatten(-1, (2, 4))
    lying = rope(grid_coords(5, 3)).sin.unflatten(-2, (5, 3)).unflatten(-1, (2, 4))
    assert torch.equal(upright.transpose(1, 2).flip(-2), lying)


def test_rows_turn_with_y_and_columns_with_x():
    cos = RoPE(24, axes=3)(video_coords(2, 3, 4)).cos.unflatten(-2, (2, 3, 4)).unflatten(-1, (3, 4))[0]
    for axis in range(3):
        line = cos.movedim(axis, 0)[..., axis, :]
        assert torch.equal(line, line[:, :1, :1].expand_as(line))
        assert not torch.equal(line[0], line[1])


def test_dropped_patches_keep_the_others_at_their_own_places():
    rope, coords, x = RoPE(12, axes=2), grid_coords(2, 8), draw(2, 4, 16, 12).float()
    keep = torch.tensor([[0, 3, 4, 7, 8, 11, 12, 15], [1, 2, 3, 4, 10, 11, 14, 9]])
    full = rope(coords).apply(x)
    kept = x.gather(2, keep[:, None, :, None].expand(-1, 4, -1, 12))
    assert torch.equal(rope(coords[keep]).apply(kept), full.gather(2, keep[:, None, :, None].expand(-1, 4, -1, 12)))


def test_cached_keys_move_by_the_difference():
    rope, k = RoPE(64), draw(4, 9, 64)
    old, new = sequence_coords(9, offset=5000), sequence_coords(9, offset=12)
    moved = rope(new - old).apply(rope(old).apply(k))
    torch.testing.assert_close(moved, rope(new).apply(k), atol=1e-6, rtol=0)
    torch.testing.assert_close(rope(old).inverse().apply(rope(old).apply(k)), k, atol=1e-6, rtol=0)


def test_calls_do_not_depend_on_earlier_calls():
    rope, coords = RoPE(8), sequence_coords(300)
    first = rope(coords[:5])
    rope(coords + 10**6)
    assert all(map(torch.equal, rope(coords[:5])[:2], first[:2]))
    assert all(map(torch.equal, rope(coords, length=10**6)[:2], rope(coords)[:2]))


@pytest.mark.parametrize("shape", [(5, 2), (2, 5, 2), (2, 3, 5, 2)])
def test_the_head_axis_stands_before_the_tokens(shape):
    rotation = RoPE(24, axes=2)(torch.zeros(shape))
    assert rotation.cos.shape == rotation.sin.shape == (*shape[:-2], 1, 5, 12)
    assert (rotation.layout, rotation.scale) == ("half", None)


def test_gradients_reach_real_coordinates():
    rope = RoPE(4, base=100.0)
    coords = torch.tensor([[0.5], [-30.25]], dtype=torch.float64, requires_grad=True)
    x, weight = draw(1, 2, 4), draw(1, 2, 4, seed=1)
    (rope(coords).apply(x) * weight).sum().backward()
    angles = coords.detach() * torch.tensor([1.0, 0.1], dtype=torch.float64)
    a, b, wa, wb = x[0, :, :2], x[0, :, 2:], weight[0, :, :2], weight[0, :, 2:]
    c, s = angles.cos(), angles.sin()
    slope = wa * (-a * s - b * c) + wb * (-b * s + a * c)
    want = (slope * torch.tensor([1.0, 0.1], dtype=torch.float64)).sum(-1, keepdim=True)
    torch.testing.assert_close(coords.grad, want, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ({"head_dim": 50, "axes": 2}, ValueError, r"head_dim \(50\) must be a multiple of 2 \* axes \(4\)"),
        ({"head_dim": 7}, ValueError, r"head_dim \(7\) must be a multiple of 2 \* axes \(2\)"),
        (
            {"head_dim": 16, "axes": 3, "rotary_dim": 8},
            ValueError,
            r"rotary_dim \(8\) must be a multiple of 2 \* axes \(6\)",
        ),
        ({"head_dim": 16, "rotary_dim": 18}, ValueError, r"rotary_dim \(18\) must be at most head_dim \(16\)"),
        ({"head_dim": 16, "rotary_dim": 0}, ValueError, "rotary_dim must be positive, got 0"),
        ({"head_dim": 16.0}, TypeError, "head_dim must be an integer, got 16.0"),
        ({"head_dim": 16, "axes": 0}, ValueError, "axes must be positive, got 0"),
        ({"head_dim": 16, "base": 0}, ValueError, "base must be positive and finite, got 0"),
        ({"head_dim": 16, "base": math.inf}, ValueError, "base must be positive and finite, got inf"),
        ({"head_dim": 16, "base": "1e4"}, TypeError, "base must be a number, got '1e4'"),
        ({"head_dim": 16, "layout": "neox"}, ValueError, "layout must be 'half' or 'interleaved', got 'neox'"),
    ],
)
def test_bad_arguments_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        RoPE(**arguments)


def test_queries_that_were_not_split_into_heads_are_refused_with_both_widths():
    rotation = RoPE(64)(sequence_coords(10))
    with pytest.raises(ValueError, match=r"x must be \(..., h, n, d\), got shape \(10, 768\)"):
        rotation.apply(torch.zeros(10, 768))
    with pytest.raises(ValueError, match="x has 32 channels per head but the rotation turns 64"):
        rotation.apply(torch.zeros(4, 10, 32))
