import math

import pytest
import torch

from mmpos import ALiBi, LearnedTable, RoPE, Rotation, Sinusoidal, sequence_coords
from mmpos.encodings import check_coords
from mmpos.encodings.checks import keep_float32

LAYOUTS = ["half", "interleaved"]


def pairs_of(x, layout, pairs):
    """The channel pairs of ``x`` as complex numbers."""
    if layout == "half":
        return torch.complex(x[..., :pairs], x[..., pairs : 2 * pairs])
    return torch.complex(x[..., : 2 * pairs : 2], x[..., 1 : 2 * pairs : 2])


def reference(x, angles, layout, scale=1.0):
    """Complex multiplication by ``scale * exp(i angles)`` in float64; channels beyond the pairs pass through."""
    x, pairs = x.double(), angles.shape[-1]
    turned = pairs_of(x, layout, pairs) * torch.polar(torch.ones_like(angles), angles) * scale
    result = x.clone()
    if layout == "half":
        result[..., :pairs], result[..., pairs : 2 * pairs] = turned.real, turned.imag
    else:
        result[..., : 2 * pairs : 2], result[..., 1 : 2 * pairs : 2] = turned.real, turned.imag
    return result


def rotation_of(angles, layout="half", scale=None):
    return Rotation(angles.cos().float(), angles.sin().float(), layout, scale)


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("head_dim", [6, 7, 10])
@pytest.mark.parametrize("batch", [(), (1,), (2,)])
def test_pairs_turn_as_complex_numbers_and_the_rest_passes_through(layout, head_dim, batch):
    angles, x = draw(*batch, 1, 5, 3) * 4, draw(2, 4, 5, head_dim, seed=1)
    got = rotation_of(angles, layout).apply(x)
    assert got.dtype == torch.float64
    torch.testing.assert_close(got, reference(x, angles, layout), atol=3e-7, rtol=0)
    assert torch.equal(got[..., 6:], x[..., 6:])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_double_precision_input_is_turned_in_double(layout):
    cos = torch.tensor([[[0.6, -0.8]]])
    sin = torch.tensor([[[0.8, 0.6]]])
    x = draw(1, 1, 5)
    got = Rotation(cos, sin, layout).apply(x)
    want = reference(x, torch.atan2(sin.double(), cos.double()), layout, torch.hypot(sin.double(), cos.double()))
    torch.testing.assert_close(got, want, atol=1e-15, rtol=0)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_output_has_the_dtype_of_x_and_is_rounded_once(layout, dtype):
    angles, x = draw(1, 300, 8) * 1000, (draw(2, 3, 300, 20, seed=1) * 3).to(dtype)
    got = rotation_of(angles, layout).apply(x)
    assert got.dtype == dtype
    want = reference(x, angles, layout)
    assert ((got.double() - want).abs() <= torch.finfo(dtype).eps / 2 * want.abs() + 3e-6).all()
    assert torch.equal(got[..., 16:], x[..., 16:])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_autocast_does_not_reach_the_rotation(layout):
    rotation, x = rotation_of(draw(1, 7, 3), layout), draw(2, 4, 7, 6).float()
    with torch.autocast("cpu", torch.bfloat16):
        got = rotation.apply(x)
    assert torch.equal(got, rotation.apply(x))


def test_layouts_are_one_rotation_of_permuted_channels():
    perm = [0, 2, 4, 6, 1, 3, 5, 7, 8, 9]
    angles, x = draw(1, 5, 4), draw(2, 3, 5, 10).float()
    half, interleaved = (rotation_of(angles, layout) for layout in LAYOUTS)
    # Of two products and a sum each layout has its own order of rounding: each is off by half a unit of each at most.
    for part in (x, x.double()):
        got, want = half.apply(part[..., perm]), interleaved.apply(part)[..., perm]
        size = part[..., :8].unflatten(-1, (4, 2)).norm(dim=-1)
        bound = 2 * torch.finfo(part.dtype).eps * torch.cat([size, size, 0 * part[..., 8:]], dim=-1)
        assert ((got - want).abs() <= bound).all()


def test_the_two_layouts_of_one_vector():
    x = torch.tensor([1.0, 2.0, 3.0, 4.0])[None, None]
    angles = torch.tensor([[[1.0, 0.01]]], dtype=torch.float64)
    (c, s), (c2, s2) = ((math.cos(a), math.sin(a)) for a in (1.0, 0.01))
    half = torch.tensor([c - 3 * s, 2 * c2 - 4 * s2, 3 * c + s, 4 * c2 + 2 * s2])
    interleaved = torch.tensor([c - 2 * s, 2 * c + s, 3 * c2 - 4 * s2, 4 * c2 + 3 * s2])
    torch.testing.assert_close(rotation_of(angles).apply(x)[0, 0], half, atol=5e-7, rtol=0)
    torch.testing.assert_close(rotation_of(angles, "interleaved").apply(x)[0, 0], interleaved, atol=5e-7, rtol=0)


@pytest.mark.parametrize("heads, num_heads", [(1, 6), (2, 6), (3, 6), (6, 6), (3, 3)])
def test_a_head_axis_of_key_value_groups_is_repeated_for_their_queries(heads, num_heads):
    angles, x = draw(2, heads, 5, 3), draw(2, num_heads, 5, 6, seed=1)
    got = rotation_of(angles).apply(x)
    for head in range(num_heads):
        group = head // (num_heads // heads)
        want = reference(x[:, head : head + 1], angles[:, group : group + 1], "half")
        torch.testing.assert_close(got[:, head : head + 1], want, atol=3e-7, rtol=0)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_x_is_never_modified_and_the_result_is_new(layout):
    for pairs in (3, 2):  # all channels turn; some pass through
        rotation, x = rotation_of(torch.zeros(1, 5, pairs, dtype=torch.float64), layout), draw(2, 4, 5, 6).float()
        before = x.clone()
        rotation.apply(x).add_(1)
        assert torch.equal(x, before)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_flow_to_x_and_to_the_angles(layout):
    angles = draw(2, 1, 4, 2).requires_grad_()
    x = draw(2, 3, 4, 5).requires_grad_()
    assert torch.autograd.gradcheck(lambda a, x: Rotation(a.cos(), a.sin(), layout).apply(x), (angles, x))


def test_prefix_tokens_turn_as_at_coordinate_zero():
    angles, x = draw(2, 1, 5, 3), draw(2, 4, 7, 6).float()
    rotation = rotation_of(angles, "interleaved")
    got = rotation.with_prefix(2).apply(x)
    assert torch.equal(got[..., :2, :], x[..., :2, :])
    assert torch.equal(got[..., 2:, :], rotation.apply(x[..., 2:, :]))
    assert all(map(torch.equal, rotation.with_prefix(0)[:2], rotation[:2]))


@pytest.mark.parametrize("positioned", [[[1, 0, 1, 1, 0], [0, 1, 1, 1, 1]], [1, 1, 0, 0, 1]])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_tokens_without_a_position_turn_as_at_coordinate_zero(positioned, batch):
    positioned = torch.tensor(positioned, dtype=torch.bool)
    rotation, x = rotation_of(draw(*batch, 1, 5, 3)), draw(2, 4, 5, 6).float()
    got = rotation.where(positioned).apply(x)
    chosen = positioned.expand(2, 5)[:, None, :, None].expand_as(x)
    assert torch.equal(got[~chosen], x[~chosen])
    assert torch.equal(got[chosen], rotation.apply(x)[chosen])


def test_where_hides_coordinates_that_are_no_numbers():
    coords = torch.tensor([[1.0], [math.nan], [2.0]])
    rotation = RoPE(6)(coords).where(torch.tensor([True, False, True]))
    assert rotation.apply(draw(4, 3, 6).float()).isfinite().all()


def test_the_inverse_turns_back():
    rotation, x = rotation_of(draw(1, 300, 3) * 100), draw(2, 4, 300, 8).float()
    torch.testing.assert_close(rotation.inverse().apply(rotation.apply(x)), x, atol=2e-6, rtol=0)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_scale_multiplies_queries_and_divides_keys(layout):
    angles, scale, x = draw(1, 5, 3), draw(1, 5, 3, seed=1).exp(), draw(2, 4, 5, 7)
    rotation = rotation_of(angles, layout, scale.float())
    query, key = rotation.apply(x, role="query"), rotation.apply(x, role="key")
    torch.testing.assert_close(query, reference(x, angles, layout, scale.float().double()), atol=2e-6, rtol=1e-6)
    torch.testing.assert_close(key, reference(x, angles, layout, 1 / scale.float().double()), atol=2e-6, rtol=1e-6)
    for role, turned in (("query", query), ("key", key)):
        back = rotation.inverse().apply(turned, role=role)
        torch.testing.assert_close(back, x, atol=1e-5, rtol=0)


def test_a_scale_is_one_for_prefix_and_unpositioned_tokens():
    rotation = rotation_of(draw(1, 3, 2), scale=draw(1, 3, 2).float().exp())
    assert torch.equal(rotation.with_prefix(2).scale[:, :2], torch.ones(1, 2, 2))
    assert torch.equal(rotation.with_prefix(2).scale[:, 2:], rotation.scale)
    hidden = rotation.where(torch.tensor([True, False, True])).scale
    assert torch.equal(hidden[:, 1], torch.ones(1, 2))
    assert torch.equal(hidden[:, [0, 2]], rotation.scale[:, [0, 2]])


def test_a_scale_of_groups_is_repeated_too():
    angles, scale, x = draw(2, 5, 3), draw(2, 5, 3, seed=1).exp(), draw(2, 6, 5, 6)
    got = rotation_of(angles, scale=scale.float()).apply(x, role="query")
    want = reference(x, angles.repeat_interleave(3, 0), "half", scale.float().double().repeat_interleave(3, 0))
    torch.testing.assert_close(got, want, atol=2e-6, rtol=1e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_attention_factor_belongs_to_every_token_but_is_no_part_of_a_move(layout):
    angles, x = draw(2, 1, 5, 3), draw(2, 4, 5, 7)
    factor = torch.tensor([[[1.25, 1.0, 1.5]]])
    rotation = Rotation(angles.cos().float() * factor, angles.sin().float() * factor, layout, factor=factor)
    still = reference(x, torch.zeros_like(angles), layout, factor.double())
    turned = reference(x, angles, layout, factor.double())

    torch.testing.assert_close(rotation.apply(x), turned, atol=1e-6, rtol=0)
    torch.testing.assert_close(rotation.inverse().apply(rotation.apply(x)), x, atol=1e-6, rtol=0)
    torch.testing.assert_close(rotation.inverse().inverse().apply(x), turned, atol=2e-6, rtol=0)
    pure = rotation.without_factor()
    torch.testing.assert_close(pure.apply(x), reference(x, angles, layout), atol=1e-6, rtol=0)
    assert pure.without_factor() is pure
    prefixed = rotation.with_prefix(5).apply(torch.cat([x, x], dim=-2))
    torch.testing.assert_close(prefixed, torch.cat([still, turned], dim=-2), atol=1e-6, rtol=0)
    positioned = torch.tensor([True, False, True, True, False])
    want = torch.where(positioned[:, None], turned, still)
    torch.testing.assert_close(rotation.where(positioned).apply(x), want, atol=1e-6, rtol=0)


ROTATION = rotation_of(torch.zeros(2, 2, 5, 3, dtype=torch.float64))
SCALED = ROTATION._replace(scale=torch.ones(2, 2, 5, 3))


@pytest.mark.parametrize(
    "call, error, message",
    [
        (
            lambda: ROTATION.apply(torch.zeros(2, 4, 6, 6)),
            ValueError,
            r"x has 6 tokens .* has 5; prefix tokens\? use rotation.with_prefix\(1\)",
        ),
        (lambda: ROTATION.apply(torch.zeros(2, 4, 4, 6)), ValueError, "x has 4 tokens but the rotation has 5$"),
        (
            lambda: ROTATION.apply(torch.zeros(2, 4, 5, 4)),
            ValueError,
            "x has 4 channels per head but the rotation turns 6",
        ),
        (
            lambda: ROTATION.apply(torch.zeros(2, 3, 5, 6)),
            ValueError,
            "x has 3 heads, which the rotation's 2 do not divide",
        ),
        (
            lambda: ROTATION.apply(torch.zeros(3, 4, 5, 6)),
            ValueError,
            r"x has batch shape \(3,\) but the rotation \(2,\)",
        ),
        (lambda: ROTATION.apply(torch.zeros(4, 5, 6)), ValueError, r"x has batch shape \(\) but the rotation \(2,\)"),
        (lambda: ROTATION.apply(torch.zeros(5, 6)), ValueError, r"x must be \(..., h, n, d\), got shape \(5, 6\)"),
        (lambda: ROTATION.apply(torch.zeros(2, 4, 5, 6).long()), TypeError, "floating point, got torch.int64"),
        (
            lambda: ROTATION.apply(torch.zeros(2, 4, 5, 6), role="value"),
            ValueError,
            "role must be 'query' or 'key', got 'value'",
        ),
        (lambda: SCALED.apply(torch.zeros(2, 4, 5, 6)), ValueError, "with a scale .* needs apply"),
        (
            lambda: ROTATION._replace(layout="pairs").apply(torch.zeros(2, 4, 5, 6)),
            ValueError,
            "layout must be .* got 'pairs'",
        ),
        (lambda: ROTATION.with_prefix(-1), ValueError, "num_prefix_tokens must not be negative, got -1"),
        (lambda: ROTATION.with_prefix(True), TypeError, "num_prefix_tokens must be an integer, got True"),
        (lambda: ROTATION.where(torch.ones(5)), TypeError, "positioned must be boolean, got torch.float32"),
        (
            lambda: ROTATION.where(torch.ones(2, 6, dtype=torch.bool)),
            ValueError,
            "positioned has 6 tokens but the rotation has 5",
        ),
    ],
)
def test_a_misfit_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("encoding", [RoPE(12, axes=2), Sinusoidal(12, axes=2), LearnedTable(12, size=(3, 4))])
@pytest.mark.parametrize(
    "coords, error, message",
    [
        (
            torch.zeros(196, 3),
            ValueError,
            r"coords must have 2 axes \(y, x\), got shape \(196, 3\); for video use \w+\((axes=3|size=\(t, y, x\))\)",
        ),
        (torch.zeros(196, 1), ValueError, r"got shape \(196, 1\); for sequences use \w+\((axes=1|size=\(t\))\)"),
        (torch.zeros(196, 7), ValueError, r"got shape \(196, 7\)$"),
        (torch.zeros(2), ValueError, r"got shape \(2,\)$"),
        (
            torch.zeros(5, 2).half(),
            TypeError,
            "must not be in half precision, got torch.float16, .*make them in float64 or int64",
        ),
        (torch.zeros(5, 2).bfloat16(), TypeError, "must not be in half precision, got torch.bfloat16"),
        (torch.zeros(5, 2).bool(), TypeError, "coords must be integers or floats, got torch.bool"),
        (torch.zeros(5, 2, dtype=torch.complex64), TypeError, "coords must be integers or floats, got torch.complex64"),
        ([[0, 1]], TypeError, "coords must be a tensor, got list"),
    ],
)
def test_wrong_coordinates_are_named(encoding, coords, error, message):
    with pytest.raises(error, match=message):
        encoding(coords)


def test_a_bias_names_the_coordinates_that_are_wrong():
    good, bad = sequence_coords(3), torch.zeros(5, 2)
    with pytest.raises(ValueError, match=r"q_coords must have 1 axis \(t\), got shape \(5, 2\)"):
        ALiBi(4)(bad, good)
    with pytest.raises(ValueError, match=r"k_coords must have 1 axis \(t\), got shape \(5, 2\)"):
        ALiBi(4)(good, bad)
    check_coords(good, 1)


@pytest.mark.parametrize("start", [torch.float32, torch.float64])
@pytest.mark.parametrize("goal", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_learned_frequencies_take_any_precision_but_half(start, goal):
    tensor = torch.ones(3, dtype=start)
    got = keep_float32(lambda t: t.to(goal))(tensor)
    assert got.dtype == (goal if goal.itemsize >= 4 else start)
    assert keep_float32(lambda t: t.to("meta", goal))(tensor).is_meta
