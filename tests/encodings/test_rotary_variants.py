import math

import pytest
import torch

from mmpos import RoPE, grid_coords, packed_coords, padded_coords, sequence_coords, video_coords
from mmpos.encodings.rotary import XPos
from mmpos.frequencies import Bands, Periods
from mmpos.scaling import (
    NTK,
    ClipLow,
    DynamicNTK,
    Llama3,
    LongRoPE,
    PositionInterpolation,
    Proportional,
    RIFLEx,
    YaRN,
)
from mmpos.spectra import Axial, Given, Learned, Mixed, Sections, Shared

PER_HEAD = (((1.0, 0.25, 0.1), (0.0, -0.75, 1e-3)), ((0.3, 2.0, -1.0), (math.pi, 0.0, 0.5)))
BY_LENGTH = {"longrope": LongRoPE([1.1] * 8, [1 + i for i in range(8)], 100, factor=4), "dynamic": DynamicNTK(4, 100)}
# Arguments of RoPE for 4 heads of 16 channels in 2 groups.
VARIANTS = {
    "plain": {},
    "interleaved": {"layout": "interleaved"},
    "axial": {"axes": 2, "base": 100.0},
    "budget": {"axes": 3, "layout": "interleaved", "spectrum": Axial(weights=(2, 3, 3), order=(2, 0, 1))},
    "dealt": {"axes": 2, "spectrum": Axial(dealt=True)},
    "periods": {"axes": 2, "spectrum": Axial(series=Periods(1, 100, endpoint=False))},
    "bands": {"axes": 2, "spectrum": Axial(series=Bands(16, "octaves"))},
    "sections": {"axes": 3, "spectrum": Sections((2, 3, 3))},
    "interleaved sections": {"axes": 3, "spectrum": Sections((4, 2, 2), interleaved=True)},
    "shared": {"axes": 3, "spectrum": Shared()},
    "given": {"axes": 2, "spectrum": Given(PER_HEAD)},
    "partial": {"rotary_dim": 6},
    "partial interleaved": {"rotary_dim": 8, "axes": 2, "layout": "interleaved"},
    "some heads": {"rotary_heads": 1, "axes": 2},
    "learned": {"axes": 2, "spectrum": Learned(Axial(), log=True, per_head=True)},
    "mixed": {"axes": 2, "spectrum": Mixed(), "base": 10.0},
    "mixed interpolated": {"axes": 2, "spectrum": Mixed(), "scaling": [PositionInterpolation(2), None]},
    "xpos": {"xpos": XPos(scale_base=64)},
    "xpos partial": {"xpos": XPos(scale_base=64), "rotary_dim": 6, "layout": "interleaved"},
    "xpos about a centre": {"xpos": XPos(scale_base=64, centre=150)},
    "xpos of a budget": {"xpos": XPos(scale_base=64), "spectrum": Axial(channels=(12,))},
    "xpos of some heads": {"xpos": XPos(scale_base=64), "rotary_heads": 1},
    "interpolation": {"scaling": PositionInterpolation(3)},
    "ntk": {"axes": 2, "scaling": NTK(4)},
    "yarn": {"scaling": YaRN(4, 100, beta_fast=8), "layout": "interleaved"},
    "yarn and partial": {"scaling": YaRN(4, 100, beta_fast=8), "rotary_dim": 12},
    "yarn in time": {
        "axes": 3,
        "rotary_dim": 12,
        "scaling": [YaRN(4, 30, beta_fast=4), None, PositionInterpolation(2)],
    },
    "yarn of xpos": {"scaling": YaRN(4, 100, beta_fast=8), "xpos": XPos(scale_base=64)},
    "llama3": {"scaling": Llama3(8, 1, 4, 100)},
    "proportional": {"scaling": Proportional(0.5)},
    "riflex": {"axes": 3, "rotary_dim": 12, "scaling": [RIFLEx(1, 66), None, None]},
    "clipped": {"scaling": ClipLow(100)},
    "longrope": {"scaling": BY_LENGTH["longrope"]},
    "dynamic": {"scaling": BY_LENGTH["dynamic"]},
}
LENGTH = 300  # what depends on the length is past its trained one
FIXED = [name for name in VARIANTS if "learned" not in name and "mixed" not in name]


def make(name):
    torch.manual_seed(0)
    return RoPE(16, **{"num_heads": 4, "num_kv_heads": 2, **VARIANTS[name]})


def draw(*shape, dtype=torch.float64):
    return torch.randn(shape, dtype=dtype)


def places(rope, n, low=0, high=300):
    return torch.randint(low, high, (n, rope.axes))


def rotate(rope, coords, x, role):
    return rope(coords, length=LENGTH).apply(x, role)


def logits(rope, q, k, q_coords, k_coords):
    keys = rotate(rope, k_coords, k, "key").repeat_interleave(q.shape[-3] // k.shape[-3], dim=-3)
    return rotate(rope, q_coords, q, "query") @ keys.mT


# What a rotation is


@pytest.mark.parametrize("name", VARIANTS)
def test_logits_depend_on_differences_only(name):
    rope = make(name)
    q_coords, k_coords = places(rope, 9), places(rope, 11)
    q, k = draw(4, 9, 16), draw(2, 11, 16)
    near = logits(rope, q, k, q_coords, k_coords)
    far_out = name in FIXED and "xpos" not in name
    shift = torch.tensor([10**6, -4096, 2**30] if far_out else [2000, -1300, 777])[: rope.axes]
    far = logits(rope, q, k, q_coords + shift, k_coords + shift)
    torch.testing.assert_close(far, near, atol=2e-5, rtol=1e-5)
    near_by = q_coords + torch.tensor([20, -13, 7])[: rope.axes]
    assert not torch.allclose(logits(rope, q, k, near_by, k_coords), near, atol=0.1)


@pytest.mark.parametrize("name", [name for name in VARIANTS if "xpos" not in name])
def test_norms_are_kept_but_for_the_attention_factor(name):
    rope = make(name)
    x, rotation = draw(4, 99, 16), rope(places(rope, 99), length=LENGTH)
    turned = rotation.without_factor().apply(x)
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1), atol=0, rtol=3e-7)
    assert (rotation.factor is None) == (name not in ("yarn", "yarn and partial", "yarn in time", "longrope"))
    if rotation.factor is None:
        assert torch.equal(rotation.apply(x), turned)


@pytest.mark.parametrize("role", ["query", "key"])
@pytest.mark.parametrize("name", VARIANTS)
def test_the_inverse_turns_back(name, role):
    rope, x = make(name), draw(2, 4, 9, 16)
    rotation = rope(places(rope, 9), length=LENGTH)
    torch.testing.assert_close(rotation.inverse().apply(rotation.apply(x, role), role), x, atol=2e-6, rtol=1e-6)
    torch.testing.assert_close(rotation.apply(rotation.inverse().apply(x, role), role), x, atol=2e-6, rtol=1e-6)
    again = rotation.inverse().inverse()
    torch.testing.assert_close(again.apply(x, role), rotation.apply(x, role), atol=2e-6, rtol=1e-6)


@pytest.mark.parametrize("name", VARIANTS)
def test_cached_keys_move_by_the_difference(name):
    rope, k = make(name), draw(2, 9, 16)
    old, new = places(rope, 9), places(rope, 9)
    move = rope(new - old, length=LENGTH).without_factor()
    moved = move.apply(rotate(rope, old, k, "key"), "key")
    torch.testing.assert_close(moved, rotate(rope, new, k, "key"), atol=4e-6, rtol=2e-6)


@pytest.mark.parametrize("name", VARIANTS)
def test_decoding_step_by_step_equals_the_full_pass(name):
    rope, x = make(name), draw(2, 4, 9, 16, dtype=torch.float32)
    coords = places(rope, 9)
    full = rotate(rope, coords, x, "query")
    parts = [
        rotate(rope, c, part, "query")
        for c, part in zip(coords.split([4, 1, 3, 1]), x.split([4, 1, 3, 1], -2), strict=True)
    ]
    assert torch.equal(torch.cat(parts, dim=-2), full)


@pytest.mark.parametrize("name", VARIANTS)
def test_a_batch_equals_its_rows(name):
    rope, x = make(name), draw(2, 3, 4, 9, 16)
    coords = torch.randint(0, 300, (2, 3, 9, rope.axes))
    got = rotate(rope, coords, x, "key")
    for i, j in ((0, 2), (1, 0)):
        assert torch.equal(got[i, j], rotate(rope, coords[i, j], x[i, j], "key"))


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("role", ["query", "key"])
def test_prefix_tokens_and_tokens_without_a_position_turn_as_at_the_origin(name, role):
    rope, x = make(name), draw(2, 4, 9, 16)
    coords = torch.randint(1, 300, (2, 7, rope.axes))
    rotation = rope(coords, length=LENGTH)
    origin = torch.zeros_like(coords[:, :2])
    want = rotate(rope, torch.cat([origin, coords], dim=1), x, role)
    torch.testing.assert_close(rotation.with_prefix(2).apply(x, role), want, atol=1e-6, rtol=1e-6)

    positioned = torch.tensor([[True, False, True, True, False, True, True], [False] + [True] * 6])
    placed = coords.where(positioned[..., None], 0)
    got = rotation.where(positioned).apply(x[..., 2:, :], role)
    torch.testing.assert_close(got, rotate(rope, placed, x[..., 2:, :], role), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("name", VARIANTS)
def test_heads_beyond_the_groups_repeat_them(name):
    rope, q = make(name), draw(4, 9, 16)
    rotation = rope(places(rope, 9), length=LENGTH)
    keys = rotation.apply(q[::2], "key")
    same = rotation.apply(q[::2].repeat_interleave(2, dim=0), "key")
    assert torch.equal(same, keys.repeat_interleave(2, dim=0))
    if rotation.cos.shape[-3] == 1:
        assert rotation.apply(q[:3], "query").shape == (3, 9, 16)
    else:
        with pytest.raises(ValueError, match="x has 3 heads, which the rotation's 2 do not divide"):
            rotation.apply(q[:3], "query")


@pytest.mark.parametrize("name", FIXED)
def test_fixed_variants_have_the_same_bits_in_a_bfloat16_model_and_no_state(name):
    rope = make(name)
    coords = places(rope, 9)
    want = rope(coords, length=LENGTH)
    assert not rope.state_dict()
    with torch.autocast("cpu", torch.bfloat16):
        got = rope.bfloat16()(coords, length=LENGTH)
    for part, expected in zip((got.cos, got.sin, got.scale), (want.cos, want.sin, want.scale), strict=True):
        assert part is expected is None or torch.equal(part, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("name", ["yarn", "xpos", "given", "partial"])
def test_rotated_tensors_keep_their_dtype(name, dtype):
    rope, x = make(name), draw(4, 9, 16).to(dtype)
    coords = places(rope, 9, 40, 80)
    got = rotate(rope, coords, x, "query")
    assert got.dtype == dtype
    want = rotate(rope, coords, x.double(), "query")
    torch.testing.assert_close(got.double(), want, atol=1e-6, rtol=torch.finfo(dtype).eps)


@pytest.mark.parametrize("name", VARIANTS)
def test_gradients_reach_x_and_real_coordinates(name):
    rope = make(name)
    coords = (places(rope, 3).double() / 7).requires_grad_()
    x, weight = draw(4, 3, 16).requires_grad_(), draw(4, 3, 16)
    (rotate(rope, coords, x, "key") * weight).sum().backward()
    rotation = rope(coords.detach(), length=LENGTH)
    transposed = rotation._replace(sin=-rotation.sin)
    torch.testing.assert_close(x.grad, transposed.apply(weight, "key"), atol=2e-6, rtol=1e-6)

    step = 2e-3
    for axis in range(rope.axes):
        shift = torch.zeros(rope.axes, dtype=torch.float64)
        shift[axis] = step
        up, down = (rotate(rope, coords.detach() + s, x.detach(), "key") for s in (shift, -shift))
        slope = ((up - down) / (2 * step) * weight).sum((0, 2))
        torch.testing.assert_close(coords.grad[:, axis], slope, atol=2e-3, rtol=2e-2)


# Coordinates


def test_packed_documents_equal_each_alone():
    for name in ("plain", "xpos", "yarn", "longrope"):
        rope, lengths = make(name), [3, 5, 2]
        x = draw(4, 10, 16)
        got = rotate(rope, packed_coords(lengths)[0], x, "query")
        for part, alone in zip(got.split(lengths, dim=-2), x.split(lengths, dim=-2), strict=True):
            assert torch.equal(part, rotate(rope, sequence_coords(alone.shape[-2]), alone, "query"))


def test_a_left_padded_row_is_rotated_as_if_alone():
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]], dtype=torch.bool)
    for name in ("plain", "xpos", "yarn", "dynamic"):
        rope, x = make(name), draw(2, 4, 5, 16)
        got = rotate(rope, padded_coords(mask), x, "query")
        assert torch.equal(got[0, :, 2:], rotate(rope, sequence_coords(3), x[0, :, 2:], "query"))
        assert torch.equal(got[1], rotate(rope, sequence_coords(5), x[1], "query"))


@pytest.mark.parametrize("name", [name for name, arguments in VARIANTS.items() if arguments.get("axes") == 2])
def test_a_sub_grid_equals_a_slice_of_the_grid(name):
    rope = make(name)
    whole = rope(grid_coords(7, 9)).cos.unflatten(-2, (7, 9))
    part = rope(grid_coords(4, 3, origin=(2, 5))).cos.unflatten(-2, (4, 3))
    assert torch.equal(part, whole[:, 2:6, 5:8])


@pytest.mark.parametrize("name", [name for name, arguments in VARIANTS.items() if arguments.get("axes") == 3])
def test_a_clip_equals_a_slice_of_the_video(name):
    rope = make(name)
    whole = rope(video_coords(5, 3, 4)).sin.unflatten(-2, (5, 3, 4))
    assert torch.equal(rope(video_coords(2, 3, 4, origin=(3, 0, 0))).sin.unflatten(-2, (2, 3, 4)), whole[:, 3:])


def test_dropped_patches_keep_the_others_at_their_own_places():
    rope, coords, x = make("given"), grid_coords(2, 8), draw(2, 4, 16, 16)
    keep = torch.tensor([[0, 3, 4, 7, 8, 11, 12, 15], [1, 2, 3, 4, 10, 11, 14, 9]])
    index = keep[:, None, :, None].expand(-1, 4, -1, 16)
    full = rope(coords).apply(x)
    assert torch.equal(rope(coords[keep]).apply(x.gather(2, index)), full.gather(2, index))


def test_queries_and_keys_may_have_different_coordinates():
    # Patches of a small image look at patches of a large one: the logits are those of the joint image.
    rope, small, large = make("axial"), grid_coords(2, 3, origin=(1, 4)), grid_coords(5, 9)
    q, k = draw(4, 6, 16), draw(4, 45, 16)
    got = logits(rope, q, k, small, large)
    turns = [100.0 ** (-2 * i / 8) for i in range(4)]
    angles = [
        torch.cat([c[:, axis, None].double() * torch.tensor(turns).double() for axis in (0, 1)], -1)
        for c in (small, large)
    ]
    complex_q, complex_k = (
        torch.complex(*x.split(8, -1)) * torch.polar(torch.ones_like(a), a) for x, a in zip((q, k), angles, strict=True)
    )
    torch.testing.assert_close(got, (complex_q @ complex_k.mH).real, atol=3e-6, rtol=0)


# Heads, parts of heads


def test_heads_that_do_not_turn_pass_through():
    for layout in ("half", "interleaved"):
        rope = RoPE(16, num_heads=4, rotary_heads=3, layout=layout)
        coords, x = sequence_coords(9, offset=5), draw(2, 4, 9, 16)
        got = rope(coords).apply(x)
        assert torch.equal(got[:, 3], x[:, 3])
        assert torch.equal(got[:, :3], RoPE(16, layout=layout)(coords).apply(x[:, :3]))
    assert torch.equal(RoPE(16, num_heads=4, rotary_heads=0)(coords).apply(x), x)


@pytest.mark.parametrize(
    "options",
    [
        {"xpos": XPos()},
        {"scaling": YaRN(4, 64)},
        {"axes": 2, "spectrum": Mixed()},
        {"axes": 2, "spectrum": Learned(per_head=True)},
        {"axes": 2, "spectrum": Learned(log=True)},
        {"axes": 2, "spectrum": Given(PER_HEAD)},
    ],
    ids=["xpos", "yarn", "mixed", "learned per head", "learned logarithms", "given"],
)
def test_heads_that_do_not_turn_pass_through_whatever_the_spectrum(options):
    def rope(**more):
        torch.manual_seed(0)
        return RoPE(16, num_heads=2, **options, **more)

    coords, x = sequence_coords(9, offset=5).expand(-1, rope().axes), draw(2, 9, 16)
    want, some = rope()(coords).apply(x, "query"), rope(rotary_heads=1)
    got = some(coords).apply(x, "query")
    assert torch.equal(got[1], x[1])
    torch.testing.assert_close(got[0], want[0], atol=1e-6, rtol=0)
    torch.testing.assert_close(rope(rotary_heads=2)(coords).apply(x, "query"), want, atol=1e-6, rtol=0)
    assert all(parameter.isfinite().all() for parameter in some.parameters())


def test_partial_and_proportional_differ():
    # Both turn a quarter of 64 channels: a part has the series of its own width, the proportional one that of the head.
    part, share = RoPE(64, rotary_dim=16), RoPE(64, scaling=Proportional(0.25))
    one = torch.tensor([[1.0]])
    assert (part(one).cos.shape[-1], share(one).cos.shape[-1]) == (8, 32)
    angle = (
        torch.atan2(part(one).sin, part(one).cos)[0, 0, 1].item(),
        torch.atan2(share(one).sin, share(one).cos)[0, 0, 1].item(),
    )
    assert angle == pytest.approx((10000 ** (-1 / 8), 10000 ** (-1 / 32)), rel=1e-6)
    assert (share(one).sin[0, 0, 8:] == 0).all()
    x = draw(1, 1, 64)
    turned = share(one).apply(x)
    assert torch.equal(turned[..., 8:32], x[..., 8:32])
    assert torch.equal(turned[..., 40:], x[..., 40:])


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_layouts_pair_the_channels_that_they_say(layout):
    # x = [1, 2, 3, 4] at position 1: the same numbers, other pairs.
    got = RoPE(4, layout=layout)(torch.tensor([[1]])).apply(torch.tensor([[[1.0, 2.0, 3.0, 4.0]]]))[0, 0]
    c, s = [math.cos(1), math.cos(0.01)], [math.sin(1), math.sin(0.01)]
    first, second = ([1, 2], [3, 4]) if layout == "half" else ([1, 3], [2, 4])
    a = [first[i] * c[i] - second[i] * s[i] for i in (0, 1)]
    b = [second[i] * c[i] + first[i] * s[i] for i in (0, 1)]
    want = torch.tensor(a + b if layout == "half" else [a[0], b[0], a[1], b[1]])
    torch.testing.assert_close(got, want, atol=5e-7, rtol=0)


# xPos


def decay(coords, width, scale_base, centre=0):
    scales = torch.tensor([(2 * i + 0.4 * width) / (1.4 * width) for i in range(width // 2)], dtype=torch.float64)
    return scales ** ((coords.double() - centre) / scale_base)


@pytest.mark.parametrize("centre", [0, 40, -7.5])
@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_xpos_multiplies_queries_and_divides_keys(centre, layout):
    rope = RoPE(18, rotary_dim=12, xpos=XPos(scale_base=128, centre=centre), layout=layout)
    coords, x = sequence_coords(300, offset=-50), draw(4, 300, 18)
    turned = RoPE(18, rotary_dim=12, layout=layout)(coords).apply(x)
    want = decay(coords, 12, 128, centre)
    want = torch.cat([want, want], -1) if layout == "half" else want.repeat_interleave(2, -1)
    want = torch.cat([want, torch.ones(300, 6)], -1)
    torch.testing.assert_close(rope(coords).apply(x, "query"), turned * want, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(rope(coords).apply(x, role="key"), turned / want, atol=1e-6, rtol=1e-6)


def test_xpos_needs_to_know_queries_from_keys():
    rotation, x = RoPE(16, xpos=XPos())(sequence_coords(9)), draw(4, 9, 16)
    with pytest.raises(ValueError, match=r"needs apply\(x, role='query'\) or role='key'"):
        rotation.apply(x)
    with pytest.raises(ValueError, match="role must be 'query' or 'key', got 'value'"):
        rotation.apply(x, role="value")
    assert torch.equal(RoPE(16)(sequence_coords(9)).apply(x, "key"), RoPE(16)(sequence_coords(9)).apply(x))


def test_xpos_is_refused_where_it_would_overflow():
    rope = RoPE(16, xpos=XPos(scale_base=10, centre=100))
    for ok in (700, -500):
        for role in ("query", "key"):
            got = rope(torch.tensor([[ok]])).apply(torch.ones(1, 1, 16), role)
            assert got.isfinite().all()
    for bad in (701, -501, 700.5):
        with pytest.raises(ValueError, match=r"above 60; got coords up to .*larger scale_base or a centre amid"):
            rope(torch.tensor([[bad]]))


def test_a_centre_far_from_0_serves_coordinates_around_it():
    """Coordinate 0 is out of reach there, which matters to tokens that have its turn and to no others."""
    far, near = (RoPE(16, xpos=XPos(scale_base=10, centre=centre)) for centre in (5000, 0))
    coords = torch.tensor([[5000], [5007], [4990]])
    got = far(coords)
    torch.testing.assert_close(got.scale, near(coords - 5000).scale, rtol=0, atol=0)
    prefixed = got.with_prefix(1).apply(torch.ones(1, 4, 16), "key")[0]
    assert prefixed[0].isnan().all()
    assert prefixed[1:].isfinite().all()


def test_xpos_of_no_tokens_takes_a_prefix():
    rope = RoPE(16, xpos=XPos(scale_base=64, centre=150))
    rotation = rope(sequence_coords(0)).with_prefix(2)
    assert torch.equal(rotation.scale, rope(torch.zeros(2, 1, dtype=torch.int64)).scale)


def test_xpos_is_refused_earlier_in_float16():
    rope, x = RoPE(16, xpos=XPos(scale_base=10, centre=100)), torch.ones(1, 1, 16).half()
    for ok in (160, 40):
        for role in ("query", "key"):
            assert rope(torch.tensor([[ok]])).apply(x, role).isfinite().all()
    for bad in (161, 39):
        rotation = rope(torch.tensor([[bad]]))
        for role in ("query", "key"):
            with pytest.raises(ValueError, match="float16"):
                rotation.apply(x, role)
            assert rotation.apply(x.bfloat16(), role).isfinite().all()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_xpos_gives_nan_for_a_coordinate_that_is_no_number(bad):
    got = RoPE(16, xpos=XPos())(torch.tensor([[1.0], [bad], [2.0]])).apply(torch.ones(1, 3, 16), "key")[0]
    assert got[1].isnan().all()
    assert got[[0, 2]].isfinite().all()


def test_xpos_gives_nan_out_of_reach_under_compile():
    compiled = torch.compile(RoPE(16, xpos=XPos(scale_base=10)), fullgraph=True, backend="eager")
    got = compiled(torch.tensor([[600], [601], [-601]])).apply(torch.ones(1, 3, 16), "key")[0]
    assert got[0].isfinite().all()
    assert got[1:].isnan().all()


@pytest.mark.parametrize("scale_base", [0, -512, math.inf, "512"])
def test_an_xpos_that_is_none_is_refused(scale_base):
    with pytest.raises((TypeError, ValueError), match="scale_base"):
        XPos(scale_base=scale_base)


# Bad input


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ({"xpos": XPos(), "axes": 2}, ValueError, "xpos is for one axis, got axes=2"),
        ({"rotary_heads": 2}, ValueError, r"rotary_heads \(2\) must be from 0 to the number of heads \(None\)"),
        (
            {"rotary_heads": 5, "num_heads": 4},
            ValueError,
            r"rotary_heads \(5\) must be from 0 to the number of heads \(4\)",
        ),
        ({"rotary_heads": -1, "num_heads": 4}, ValueError, r"rotary_heads \(-1\)"),
        ({"num_heads": 0}, ValueError, "num_heads must be positive, got 0"),
        ({"num_heads": 2.0}, TypeError, "num_heads must be an integer, got 2.0"),
        ({"num_heads": 6, "num_kv_heads": 4}, ValueError, r"num_heads \(6\) must be a multiple of num_kv_heads \(4\)"),
        ({"rotary_dim": 18}, ValueError, r"rotary_dim \(18\) must be at most head_dim \(16\)"),
        ({"spectrum": "mixed"}, TypeError, "spectrum must be .*got 'mixed'"),
        ({"xpos": 512}, TypeError, "xpos must be .*got 512"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        RoPE(**{"head_dim": 16, **arguments})


def test_a_rotation_of_no_tokens_takes_a_prefix():
    rotation = make("yarn")(sequence_coords(0)).with_prefix(2)
    assert torch.equal(rotation.cos, make("yarn")(torch.zeros(2, 1, dtype=torch.int64)).cos)
