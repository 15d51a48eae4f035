import dataclasses
import math

import mpmath
import pytest
import torch
from torch import nn

from mmpos import RoPE, grid_coords, video_coords
from mmpos.frequencies import Bands, Geometric, Periods
from mmpos.spectra import Axial, Given, Learned, Mixed, Sections, Shared

FAR = (10, 4095, 131071, 10**6, 10**9, 2**31 - 1)
REAL = (0.5, -1 / 3, 998.3897, -4095.75, 1e6 + 0.1, -1e9 - 0.3)


def geometric(base, width):
    return [mpmath.mpf(base) ** (mpmath.mpf(-2 * i) / width) for i in range(width // 2)]


def periods(first, last, num_pairs, steps):
    return [2 * mpmath.pi / (first * (mpmath.mpf(last) / first) ** (mpmath.mpf(i) / steps)) for i in range(num_pairs)]


def owned(freqs, owners, axes):
    """Rows ``(a, p)`` of frequencies that one axis owns each."""
    pairs = list(zip(freqs, owners, strict=True))
    return [[freq if owner == axis else mpmath.mpf(0) for freq, owner in pairs] for axis in range(axes)]


def blocks(*freqs, order=None):
    """Rows of a block for each axis, in axis order or another."""
    order = order or range(len(freqs))
    return owned([freq for own in order for freq in freqs[own]], [own for own in order for _ in freqs[own]], len(freqs))


def reference(coords, heads):
    """Cosine and sine ``(2, h, n, p)`` of ``sum_a coords[a] * freqs[h][a][p]`` in 50 digits."""

    def angle(point, pair):
        return mpmath.fsum(mpmath.mpf(coord) * freq for coord, freq in zip(point, pair, strict=True))

    angles = [[[angle(point, pair) for pair in zip(*rows, strict=True)] for point in coords] for rows in heads]
    parts = [[[[float(fn(x)) for x in row] for row in head] for head in angles] for fn in (mpmath.cos, mpmath.sin)]
    return torch.tensor(parts, dtype=torch.float64)


GIVEN = (((1.0, 0.25, 0.0), (0.0, -0.75, 1e-3)), ((0.3, 2.0, -1.0), (math.pi, 0.0, 0.5)))
# Arguments of RoPE, and the published frequencies (h, a, p).
RECIPES = {
    "one axis": ({"head_dim": 10}, lambda: [[geometric(10000, 10)]]),
    "one pair": ({"head_dim": 2, "base": 3}, lambda: [[geometric(3, 2)]]),
    "partial": ({"head_dim": 14, "rotary_dim": 6}, lambda: [[geometric(10000, 6)]]),
    "two axes": ({"head_dim": 12, "axes": 2, "base": 100.0}, lambda: [blocks(*[geometric(100, 6)] * 2)]),
    "four axes": ({"head_dim": 16, "axes": 4, "base": 2000.0}, lambda: [blocks(*[geometric(2000, 4)] * 4)]),
    "channels": (
        {"head_dim": 24, "axes": 3, "spectrum": Axial(channels=(4, 8, 6))},
        lambda: [blocks(geometric(10000, 4), geometric(10000, 8), geometric(10000, 6))],
    ),
    "weights": (
        {"head_dim": 22, "axes": 3, "spectrum": Axial(weights=(2, 3, 3), remainder=0)},
        lambda: [blocks(geometric(10000, 6), geometric(10000, 8), geometric(10000, 8))],
    ),
    "order": (
        {"head_dim": 18, "axes": 3, "base": 100, "spectrum": Axial(order=(2, 0, 1))},
        lambda: [blocks(*[geometric(100, 6)] * 3, order=(2, 0, 1))],
    ),
    "dealt": (
        {"head_dim": 12, "axes": 2, "spectrum": Axial(dealt=True)},
        lambda: [blocks(geometric(10000, 12)[0::2], geometric(10000, 12)[1::2])],
    ),
    "own base": ({"head_dim": 8, "spectrum": Axial(series=Geometric(500000.0))}, lambda: [[geometric(500000, 8)]]),
    "periods": (
        {"head_dim": 16, "axes": 2, "spectrum": Axial(series=Periods(0.5, 40.0))},
        lambda: [blocks(*[periods(0.5, 40, 4, 3)] * 2)],
    ),
    "periods short of the last": (
        {"head_dim": 20, "axes": 2, "spectrum": Axial(series=Periods(1, 100, endpoint=False))},
        lambda: [blocks(*[periods(1, 100, 5, 5)] * 2)],
    ),
    "linear bands": (
        {"head_dim": 16, "axes": 2, "spectrum": Axial(series=Bands(14))},
        lambda: [blocks(*[[mpmath.pi * (1 + 2 * i) for i in range(4)]] * 2)],
    ),
    "octaves": (
        {"head_dim": 16, "axes": 2, "spectrum": Axial(series=Bands(224.0, "octaves"))},
        lambda: [blocks(*[[mpmath.pi * mpmath.mpf(112) ** (mpmath.mpf(i) / 3) for i in range(4)]] * 2)],
    ),
    "sections": (
        {"head_dim": 18, "axes": 3, "base": 1e6, "spectrum": Sections((2, 3, 4))},
        lambda: [owned(geometric(1e6, 18), (0, 0, 1, 1, 1, 2, 2, 2, 2), 3)],
    ),
    "interleaved sections": (
        {"head_dim": 16, "axes": 3, "base": 5e6, "spectrum": Sections((4, 2, 2), interleaved=True)},
        lambda: [owned(geometric(5e6, 16), (0, 1, 2, 0, 1, 2, 0, 0), 3)],
    ),
    "shared": ({"head_dim": 8, "axes": 3, "spectrum": Shared()}, lambda: [[geometric(10000, 8)] * 3]),
    "shared bands": (
        {"head_dim": 4, "axes": 2, "spectrum": Shared(Bands(6))},
        lambda: [[[mpmath.pi, 3 * mpmath.pi]] * 2],
    ),
    "given": ({"head_dim": 8, "axes": 2, "spectrum": Given(GIVEN), "num_heads": 2}, lambda: GIVEN),
}


def far(axes, values):
    """Points far out on every axis, in either direction."""
    return [[sign * value - 7 * axis for axis in range(axes)] for value in values for sign in (1, -1)]


def owners(rope):
    """For each pair the letter of the axis that turns it, or '-' if none does."""
    turned = [rope(torch.eye(rope.axes)[axis : axis + 1]).sin[0, 0] != 0 for axis in range(rope.axes)]
    return "".join("".join(letter for letter, own in zip("THWL", pair) if own) or "-" for pair in zip(*turned))  # noqa: B905


# Fixed frequencies


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("values", [FAR, REAL], ids=["indices", "real"])
def test_phases_of_every_recipe_are_exact_at_any_distance(name, values):
    arguments, published = RECIPES[name]
    rope, dtype = RoPE(**arguments), torch.int64 if values is FAR else torch.float64
    coords = torch.tensor(far(rope.axes, values), dtype=dtype)
    with mpmath.workdps(70):
        want = reference(coords.tolist(), published())
    got = torch.stack(rope(coords)[:2])
    assert got.dtype == torch.float32
    assert got.shape == want.shape
    assert (got.double() - want).abs().max() < 1e-7


@pytest.mark.parametrize("name", RECIPES)
def test_fixed_frequencies_have_the_same_bits_in_every_dtype_and_leave_no_state(name):
    rope = RoPE(**RECIPES[name][0])
    coords = torch.tensor(far(rope.axes, FAR))
    want = rope(coords)
    default = torch.get_default_dtype()
    for change in (nn.Module.bfloat16, nn.Module.half, nn.Module.double):
        change(rope)
        torch.set_default_dtype(torch.bfloat16)
        try:
            with torch.autocast("cpu", torch.bfloat16):
                assert all(map(torch.equal, rope(coords)[:2], want[:2]))
        finally:
            torch.set_default_dtype(default)
    assert not rope.state_dict()


@pytest.mark.parametrize(
    "value",
    [
        Axial(channels=[4, 2]),
        Axial(weights=[1.0, 2], order=[1, 0], series=Periods(1, 2)),
        Sections([1, 2]),
        Shared(Bands(4)),
        Given([[1.0, 0.5]]),
        Learned(Axial(), log=True),
        Mixed(),
    ],
)
def test_recipes_are_frozen_values(value):
    assert dataclasses.replace(value) == value
    assert hash(dataclasses.replace(value)) == hash(value)
    with pytest.raises((dataclasses.FrozenInstanceError, AttributeError)):
        value.series = None


# Who owns which pair


@pytest.mark.parametrize(
    "head_dim, spectrum, want",
    [
        (64, Axial(weights=(1, 1, 1)), "T" * 10 + "H" * 10 + "W" * 10),
        (64, Axial(weights=(1, 1, 1), remainder=0), "T" * 12 + "H" * 10 + "W" * 10),
        (64, Axial(weights=(2, 3, 3)), "T" * 8 + "H" * 12 + "W" * 12),
        (20, Axial(weights=(1, 1, 2), remainder=2, order=(1, 0, 2)), "HHTTWWWWWW"),
        (20, Axial(weights=(0, 1, 1)), "HHHHHWWWWW"),
        (20, Axial(channels=(2, 6, 4)), "THHHWW"),
        (10, Axial(weights=(1, 0, 0)), "TTTTT"),
        (16, Sections((2, 3, 3)), "TTHHHWWW"),
        (16, Sections((8, 0, 0)), "TTTTTTTT"),
        (16, Sections((4, 2, 2), interleaved=True), "THWTHWTT"),
        (16, Sections((3, 3, 2), interleaved=True), "THWTHWTH"),
        (16, Sections((6, 2, 0), interleaved=True), "THTTHTTT"),
    ],
)
def test_who_owns_which_pair(head_dim, spectrum, want):
    assert owners(RoPE(head_dim, axes=3, spectrum=spectrum)) == want


@pytest.mark.parametrize("head_dim, weights", [(50, (1, 1)), (64, (1, 1, 1)), (66, (3, 1)), (34, (1, 2, 2, 1))])
def test_a_budget_fits_any_width_and_the_remainder_has_a_home(head_dim, weights):
    axes = len(weights)
    for axis in range(axes):
        assert len(owners(RoPE(head_dim, axes=axes, spectrum=Axial(weights=weights, remainder=axis)))) == head_dim // 2
    left = owners(RoPE(head_dim, axes=axes, spectrum=Axial(weights=weights)))
    assert [left.count(letter) for letter in "THWL"[:axes]] == [head_dim // 2 * w // sum(weights) for w in weights]


def test_channels_that_no_axis_owns_pass_through():
    x = torch.randn(2, 15, 16)
    got = RoPE(16, axes=2, spectrum=Axial(channels=(2, 6)))(grid_coords(3, 5, origin=7)).apply(x)
    assert torch.equal(got[..., 8:], x[..., 8:])
    assert not torch.isclose(got[..., :8], x[..., :8]).any()


@pytest.mark.parametrize("sections, interleaved", [((16, 24, 24), False), ((24, 20, 20), True), ((22, 21, 21), True)])
def test_text_under_mrope_is_text_under_rope(sections, interleaved):
    rope = RoPE(128, axes=3, base=1e6, spectrum=Sections(sections, interleaved))
    line = torch.arange(10**6, 10**6 + 300)[:, None]
    assert all(map(torch.equal, rope(line.expand(-1, 3))[:2], RoPE(128, base=1e6)(line)[:2]))


def test_sections_that_cannot_take_turns_are_refused_with_what_turns_would_give():
    with pytest.raises(ValueError, match=r"sections \(2, 3, 3\) cannot be interleaved; taking turns gives \(3, 3, 2\)"):
        RoPE(16, axes=3, spectrum=Sections((2, 3, 3), interleaved=True))
    with pytest.raises(ValueError, match=r"sections \(8, 12, 12\) .* gives \(11, 11, 10\)"):
        RoPE(64, axes=3, spectrum=Sections((8, 12, 12), interleaved=True))


def test_every_axis_turns_a_shared_pair():
    rope = RoPE(8, axes=2, spectrum=Shared())
    coords = torch.tensor([[3, 40], [-1, 1], [0, 43]])
    torch.testing.assert_close(rope(coords).sin, RoPE(8)(coords.sum(-1, keepdim=True)).sin, atol=1e-7, rtol=0)


# Learned frequencies


def coords_2d():
    return grid_coords(3, 5, origin=(4, -2))


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize(
    "start", [Axial(), Axial(channels=(2, 6), series=Periods(1, 9)), Shared(), Axial(order=(1, 0))]
)
def test_learned_frequencies_start_at_their_recipe(start, log):
    fixed, learned = (RoPE(12, axes=2, spectrum=s) for s in (start, Learned(start, log=log)))
    assert learned.freqs.dtype == torch.float32
    torch.testing.assert_close(learned(coords_2d()).sin, fixed(coords_2d()).sin, atol=3e-6, rtol=0)


def learning(spectrum=None, **options):
    torch.manual_seed(0)
    arguments = {
        "head_dim": 12,
        "axes": 2,
        "base": 10.0,
        "num_heads": 4,
        "num_kv_heads": 2,
        "spectrum": spectrum or Mixed(),
    }
    return RoPE(**{**arguments, **options})


LEARNED = {
    "one for all heads": Learned(Axial()),
    "of each head": Learned(Axial(), per_head=True),
    "logarithms": Learned(Axial(), log=True),
    "in sections": Learned(Sections((2, 4)), per_head=True),
    "mixed": Mixed(),
}


@pytest.mark.parametrize("name", LEARNED)
def test_learned_frequencies_turn_by_what_they_hold_and_learn(name):
    rope, spectrum = learning(LEARNED[name]), LEARNED[name]
    with torch.no_grad():
        rope.freqs.mul_(1 + torch.rand_like(rope.freqs))
    leaf = rope.freqs.detach().double().requires_grad_()
    freqs = leaf.exp() if spectrum == LEARNED["logarithms"] else leaf
    if freqs.ndim < 3:
        first = torch.arange(6) < (2 if name == "in sections" else 3)
        freqs = freqs.reshape(-1, 1, 6) * torch.stack([first, ~first])
    angles = (coords_2d()[:, :, None] * freqs[:, None]).sum(-2)
    rotation = rope(coords_2d())
    torch.testing.assert_close(rotation.cos.double(), angles.cos(), atol=1e-7, rtol=0)

    weight = torch.randn_like(rotation.sin)
    (rotation.sin * weight).sum().backward()
    (angles.sin() * weight).sum().backward()
    torch.testing.assert_close(rope.freqs.grad.double(), leaf.grad, atol=1e-4, rtol=1e-5)
    assert (rope.freqs.grad != 0).any(-1).all()

    before = rope.freqs.detach().clone()
    torch.optim.SGD(rope.parameters(), lr=0.1).step()
    assert (rope.freqs != before).any()
    assert not torch.equal(rope(coords_2d()).sin, rotation.sin)


@pytest.mark.parametrize("name", LEARNED)
@pytest.mark.parametrize("cast", [nn.Module.bfloat16, nn.Module.half, lambda m: m.to(torch.bfloat16)])
def test_learned_frequencies_stay_in_float32_and_keep_their_bits(name, cast):
    want = learning(LEARNED[name])(coords_2d() * 4096)
    rope = cast(learning(LEARNED[name]))
    assert rope.freqs.dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert all(map(torch.equal, rope(coords_2d() * 4096)[:2], want[:2]))


@pytest.mark.parametrize("name", LEARNED)
def test_learned_frequencies_are_listed_saved_and_drawn_in_float32_whatever_the_default(name):
    torch.set_default_dtype(torch.bfloat16)
    try:
        rope = learning(LEARNED[name])
    finally:
        torch.set_default_dtype(torch.float32)
    assert rope.freqs.dtype == torch.float32
    assert torch.equal(rope.freqs, learning(LEARNED[name]).freqs)
    assert rope.no_weight_decay() == {"freqs"} == set(rope.state_dict())


def test_each_head_is_learned_for_its_key_value_group():
    rope, x = learning(), torch.randn(2, 4, 15, 12)
    assert rope.freqs.shape == (2, 2, 6)
    rotation = rope(coords_2d())
    got, keys = rotation.apply(x), rotation.apply(x[:, ::2])
    for head in range(4):
        own = rotation._replace(cos=rotation.cos[head // 2, None], sin=rotation.sin[head // 2, None])
        assert torch.equal(got[:, head], own.apply(x[:, head, None])[:, 0])
    assert torch.equal(keys, torch.stack([got[:, 0], got[:, 2]], dim=1))


@pytest.mark.parametrize("axes, width, base", [(2, 16, 10.0), (3, 12, 100.0)])
def test_mixed_directions_start_orthonormal_and_speeds_geometric(axes, width, base):
    freqs = RoPE(width, axes=axes, base=base, spectrum=Mixed(), num_heads=5).freqs.detach()
    assert freqs.shape == (5, axes, width // 2)
    series = torch.tensor([base ** (-2 * i * axes / width) for i in range(width // (2 * axes))])
    directions = freqs.unflatten(-1, (axes, -1)) / series
    torch.testing.assert_close(directions, directions[..., :1].expand_as(directions), atol=1e-6, rtol=1e-5)
    frame = directions[..., 0]
    torch.testing.assert_close(frame.mT @ frame, torch.eye(axes).expand(5, axes, axes), atol=1e-6, rtol=0)
    assert not torch.allclose(frame[0], frame[1])


@pytest.mark.parametrize("name", ["of each head", "mixed"])
@pytest.mark.parametrize("value", FAR)
def test_learned_phases_are_as_exact_as_float64_allows(name, value):
    rope = learning(LEARNED[name])
    heads = rope.freqs.detach().double()
    if heads.ndim == 2:
        heads = heads[:, None] * torch.tensor([[1] * 3 + [0] * 3, [0] * 3 + [1] * 3])
    points = torch.tensor([[value, -7], [-value, value - 1]])
    with mpmath.workdps(50):
        want = reference(points.tolist(), heads.tolist())
    angle = (points.double()[:, :, None].abs() * heads[:, None].abs()).sum(-2)
    got = torch.stack(rope(points)[:2]).double()
    assert ((got - want).abs() <= 1e-7 + 2**-52 * angle).all()


@pytest.mark.parametrize("start", [Given(((0.5, 0.25), (0.1, 0.0))), Given(((-0.5, 0.25),)), Given(((0.0, 0.25),))])
def test_a_start_that_one_number_a_pair_cannot_hold_is_refused_or_kept(start):
    axes = len(start.freqs[0])
    line = torch.arange(-3, 9)[:, None].expand(-1, axes)
    want = RoPE(4, axes=axes, spectrum=start)(line)
    try:
        got = RoPE(4, axes=axes, spectrum=Learned(start))(line)
    except ValueError:
        return
    torch.testing.assert_close(got.sin, want.sin, atol=1e-6, rtol=0)


def test_logarithms_of_frequencies_that_are_not_positive_are_refused():
    with pytest.raises(ValueError, match="log"):
        RoPE(4, spectrum=Learned(Given(((0.0, 0.25),)), log=True))


# Bad input


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"head_dim": 50, "axes": 2}, r"head_dim \(50\) must be a multiple of 2 \* axes \(4\)"),
        ({"head_dim": 16, "rotary_dim": 6, "axes": 2}, r"rotary_dim \(6\) must be a multiple of 2 \* axes \(4\)"),
        (
            {"axes": 2, "spectrum": Axial(channels=(12, 8))},
            r"channels \(12, 8\) add up to 20, more than head_dim \(16\)",
        ),
        ({"axes": 3, "spectrum": Axial(channels=(4, 4))}, r"shares channels out to 2 axes, but there are 3: \(4, 4\)"),
        ({"axes": 2, "spectrum": Axial(weights=(1, 2, 3))}, r"shares channels out to 3 axes, but there are 2"),
        ({"axes": 2, "spectrum": Axial(weights=(1, 1), remainder=2)}, "remainder must be an axis from 0 to 1, got 2"),
        ({"axes": 2, "spectrum": Axial(order=(0, 2))}, r"order must be a permutation of the 2 axes, got \(0, 2\)"),
        (
            {"axes": 2, "spectrum": Axial(weights=(1, 3), dealt=True)},
            "dealing out one series needs blocks of the same width",
        ),
        ({"axes": 4, "spectrum": Axial(weights=(1, 1, 1, 1)), "head_dim": 6}, "no pair"),
        ({"axes": 2, "spectrum": Axial(channels=(0, 0))}, "no pair"),
        (
            {"axes": 3, "spectrum": Sections((4, 4))},
            r"sections must have a number for each of the 3 axes, got \(4, 4\)",
        ),
        ({"axes": 3, "spectrum": Sections((2, 2, 2))}, r"sections \(2, 2, 2\) must add up to half of head_dim \(16\)"),
        ({"head_dim": 7, "axes": 2, "spectrum": Shared()}, r"head_dim \(7\) must be even"),
        ({"axes": 2, "spectrum": Given(((1.0,),))}, "freqs must have a row for each of the 2 axes, got 1"),
        ({"head_dim": 4, "spectrum": Given(((1.0, 2.0, 3.0),))}, r"freqs turn 6 channels, more than head_dim \(4\)"),
        ({"axes": 2, "spectrum": Given(GIVEN), "num_heads": 3}, "the spectrum is for 2 heads, but there are 3"),
        ({"axes": 2, "spectrum": Mixed()}, "num_heads must be given"),
        ({"axes": 2, "spectrum": Learned(per_head=True)}, "need num_heads"),
    ],
)
def test_a_spectrum_that_does_not_fit_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        RoPE(**{"head_dim": 16, **arguments})


@pytest.mark.parametrize(
    "recipe, arguments, error, message",
    [
        (Axial, {"channels": (4, 4), "weights": (1, 1)}, ValueError, "channels or weights, not both"),
        (Axial, {"channels": (3, 5)}, ValueError, r"channels must be even and not negative, got \(3, 5\)"),
        (Axial, {"channels": (-2, 4)}, ValueError, r"channels must be even and not negative, got \(-2, 4\)"),
        (Axial, {"weights": (0, 0)}, ValueError, r"weights must not be negative or all 0, got \(0, 0\)"),
        (Axial, {"weights": (1, -1, 3)}, ValueError, "weights must not be negative"),
        (Axial, {"weights": (1, math.nan)}, ValueError, "weights must not be negative"),
        (Axial, {"remainder": 1}, ValueError, "remainder says where the rounding of weights goes"),
        (Sections, {"sections": (4, -2, 6)}, ValueError, r"sections must not be negative, got \(4, -2, 6\)"),
        (Sections, {"sections": "422"}, TypeError, r"sections must be integers, got \('4', '2', '2'\)"),
        (Sections, {"sections": (4.0, 2, 2)}, TypeError, r"sections must be integers, got \(4.0, 2, 2\)"),
        (Geometric, {"base": 0}, ValueError, "base must be positive and finite, got 0"),
        (Geometric, {"base": "1e4"}, TypeError, "base must be a number, got '1e4'"),
        (Periods, {"min_period": 0, "max_period": 2}, ValueError, "0 < min_period < max_period, got 0 and 2"),
        (Periods, {"min_period": 3, "max_period": 2}, ValueError, "0 < min_period < max_period, got 3 and 2"),
        (Periods, {"min_period": 1, "max_period": math.inf}, ValueError, "0 < min_period < max_period"),
        (Bands, {"max_freq": 1}, ValueError, "max_freq must be at least 2, got 1"),
        (Bands, {"max_freq": 8, "spacing": "log"}, ValueError, "spacing must be 'linear' or 'octaves', got 'log'"),
        (
            Given,
            {"freqs": (1.0, 2.0)},
            ValueError,
            r"freqs must be \(axes, pairs\) or \(heads, axes, pairs\), got shape \(2,\)",
        ),
        (Given, {"freqs": ((),)}, ValueError, "freqs must be"),
        (Given, {"freqs": ((1.0, math.inf),)}, ValueError, "freqs must be finite"),
    ],
)
def test_values_that_make_no_spectrum_are_refused(recipe, arguments, error, message):
    with pytest.raises(error, match=message):
        recipe(**arguments)


def test_a_given_spectrum_may_be_a_tensor():
    freqs = torch.tensor([[1.0, 0.5], [0.0, 2.0]], dtype=torch.float64)
    assert Given(freqs) == Given(((1, 0.5), (0, 2)))


def test_the_axes_of_a_video_are_time_height_and_width():
    rope = RoPE(16, axes=3, spectrum=Axial(channels=(2, 4, 6)))
    cos = rope(video_coords(2, 3, 4)).cos[0].unflatten(0, (2, 3, 4)).split([1, 2, 3], dim=-1)
    for axis, block in enumerate(cos):
        line = block.movedim(axis, 0)
        assert torch.equal(line, line[:, :1, :1].expand_as(line))
        assert not torch.equal(line[0], line[1])
