import dataclasses
import math

import mpmath
import pytest
import torch

from mmpos import RoPE, create_encoding, grid_coords, padded_coords, sequence_coords, video_coords
from mmpos.frequencies import Periods
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
    scale_spectrum,
)
from mmpos.spectra import Axial, Given, Learned, Mixed, Sections, Shared

FAR = (10, 4095, 131071, 10**6, 10**9, 2**31 - 1)
REAL = (0.5, -1 / 3, 998.3897, -4095.75, 1e6 + 0.1, -1e9 - 0.3)
SHORT, LONG = [1 + 0.05 * i for i in range(12)], [1.5**i for i in range(12)]


# The published formulas: the new frequencies of a series base ** (-2 i / width), in 50 digits


def series(base, width):
    return [mpmath.mpf(base) ** (mpmath.mpf(-2 * i) / width) for i in range(width // 2)]


def interpolation(base, width, factor):
    return [freq / mpmath.mpf(factor) for freq in series(base, width)]


def ntk(base, width, factor):
    return series(base * mpmath.mpf(factor) ** (mpmath.mpf(width) / (width - 2)), width)


def yarn(base, width, factor, train_length, fast=32, slow=1, truncate=True):
    low, high = (width * mpmath.log(train_length / (2 * mpmath.pi * r)) / (2 * mpmath.log(base)) for r in (fast, slow))
    if truncate:
        low, high = mpmath.floor(low), mpmath.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    high += mpmath.mpf("0.001") if low == high else 0
    ramps = [min(max((i - low) / (high - low), 0), 1) for i in range(width // 2)]
    return [f / factor * ramp + f * (1 - ramp) for f, ramp in zip(series(base, width), ramps, strict=True)]


def llama3(base, width, factor, low, high, train_length):
    def change(freq):
        turns = train_length * freq / (2 * mpmath.pi)
        if turns > high:
            return freq
        if turns < low:
            return freq / factor
        smooth = (turns - low) / (high - low)
        return (1 - smooth) * freq / factor + smooth * freq

    return [change(freq) for freq in series(base, width)]


def proportional(base, width, share):
    return [freq if i < int(share * width / 2) else mpmath.mpf(0) for i, freq in enumerate(series(base, width))]


def riflex(base, width, index, length):
    return [2 * mpmath.pi * mpmath.mpf("0.9") / length if i == index else f for i, f in enumerate(series(base, width))]


def clipped(base, width, train_length):
    return [freq if 2 * mpmath.pi / freq <= train_length else mpmath.mpf(0) for freq in series(base, width)]


def longrope(base, width, divisors):
    return [freq / mpmath.mpf(divisor) for freq, divisor in zip(series(base, width), divisors, strict=True)]


# A scaling, the published frequencies for 24 channels and base 10000, and the attention factor.
SCALINGS = {
    "interpolation": (PositionInterpolation(3), lambda: interpolation(10000, 24, 3), 1),
    "finer": (PositionInterpolation(0.7), lambda: interpolation(10000, 24, 0.7), 1),
    "ntk": (NTK(4), lambda: ntk(10000, 24, 4), 1),
    "yarn": (YaRN(4, 4096), lambda: yarn(10000, 24, 4, 4096), 0.1 * math.log(4) + 1),
    "yarn whole": (YaRN(40, 4096, truncate=False), lambda: yarn(10000, 24, 40, 4096, truncate=False), None),
    "yarn betas": (
        YaRN(8, 2048, beta_fast=16, beta_slow=2, attention_factor=1.0),
        lambda: yarn(10000, 24, 8, 2048, 16, 2),
        1,
    ),
    "yarn of a short length": (YaRN(2, 14, attention_factor=1.0), lambda: yarn(10000, 24, 2, 14), 1),
    "yarn of a short length, whole": (
        YaRN(2, 40, truncate=False, attention_factor=1.0),
        lambda: yarn(10000, 24, 2, 40, truncate=False),
        1,
    ),
    "yarn of a long length": (YaRN(4, 131072, attention_factor=1.0), lambda: yarn(10000, 24, 4, 131072), 1),
    "llama3": (Llama3(8, 1, 4, 8192), lambda: llama3(10000, 24, 8, 1, 4, 8192), 1),
    "proportional": (Proportional(0.3), lambda: proportional(10000, 24, 0.3), 1),
    "riflex": (RIFLEx(3, 66), lambda: riflex(10000, 24, 3, 66), 1),
    "clipped": (ClipLow(512), lambda: clipped(10000, 24, 512), 1),
    "longrope short": (LongRoPE(SHORT, LONG, 4096), lambda: longrope(10000, 24, SHORT), 1),
    "longrope long": (LongRoPE(SHORT, LONG, 4096, factor=32), lambda: longrope(10000, 24, LONG), None),
    "dynamic, not yet": (DynamicNTK(2, 4096), lambda: series(10000, 24), 1),
}
LENGTHS = {"longrope short": 4096, "longrope long": 4097, "dynamic, not yet": 4096}


def reference(coords, freqs):
    """Cosine and sine ``(2, n, p)`` of ``coord * freq``."""
    parts = [[[float(fn(mpmath.mpf(c) * f)) for f in freqs] for c in coords] for fn in (mpmath.cos, mpmath.sin)]
    return torch.tensor(parts, dtype=torch.float64)


@pytest.mark.parametrize("name", SCALINGS)
@pytest.mark.parametrize("values", [FAR, REAL], ids=["indices", "real"])
def test_phases_of_every_fixed_scaling_are_exact_at_any_distance(name, values):
    scaling, published, factor = SCALINGS[name]
    line = [sign * value for value in values for sign in (1, -1)]
    coords = torch.tensor(line, dtype=torch.int64 if values is FAR else torch.float64)[:, None]
    rotation = RoPE(24, scaling=scaling)(coords, length=LENGTHS.get(name))
    with mpmath.workdps(70):
        want = reference(line, published())
    if factor == 1:
        assert rotation.factor is None
        assert (torch.stack(rotation[:2])[:, 0].double() - want).abs().max() < 1e-7
    else:
        factor = rotation.factor.double()
        got = torch.stack(rotation[:2])[:, 0].double()
        assert ((got - want * factor).abs() <= 1e-7 * factor + 2**-23).all()
        got = torch.stack(rotation.without_factor()[:2])[:, 0].double()
        assert (got - want).abs().max() < 3e-7


@pytest.mark.parametrize("values", [FAR[:-1], REAL], ids=["indices", "real"])
@pytest.mark.parametrize("length", [4097, 10**6])
def test_dynamic_ntk_grows_the_base_with_the_length(values, length):
    coords = torch.tensor([[value] for value in values])
    growth = mpmath.mpf(3) * length / 4096 - 2
    with mpmath.workdps(70):
        freqs = ntk(10000, 24, growth)
        want = reference([point[0] for point in coords.tolist()], freqs)
    got = torch.stack(RoPE(24, scaling=DynamicNTK(3, 4096))(coords, length=length)[:2])[:, 0]
    angle = coords.double().abs() * torch.tensor([float(freq) for freq in freqs], dtype=torch.float64)
    assert ((got.double() - want).abs() <= 1e-7 + 2**-50 * angle).all()


# Numbers that others published


def test_yarn_blends_frequencies_and_not_periods():
    spectrum = Axial().spectrum(128, 1, 10000.0)
    ratio = scale_spectrum(spectrum, [YaRN(4, 4096)]).tensor(torch.float64, "cpu") / spectrum.tensor(
        torch.float64, "cpu"
    )
    got = ratio[0, 0, [20, 21, 33, 45, 46]]
    torch.testing.assert_close(got, torch.tensor([1, 0.971154, 0.625, 0.278846, 0.25]).double(), atol=1e-6, rtol=0)


def test_interpolation_compresses():
    got, want = RoPE(24, scaling=PositionInterpolation(4))(torch.tensor([[8]])), RoPE(24)(torch.tensor([[2.0]]))
    torch.testing.assert_close(got.sin, want.sin, atol=1e-7, rtol=0)


@pytest.mark.parametrize(
    "scaling, want",
    [
        (YaRN(40, 4096), 1.36889),
        (YaRN(4, 64, mscale=1.0, mscale_all_dim=1.0), 1.0),
        (YaRN(40, 4096, mscale=0.707, mscale_all_dim=1.0), (0.0707 * math.log(40) + 1) / (0.1 * math.log(40) + 1)),
        (YaRN(40, 4096, mscale=0.707), 1.36889),
        (YaRN(40, 4096, attention_factor=0.8, mscale=1.0, mscale_all_dim=0.5), 0.8),
        (YaRN(0.5, 4096), 1.0),
        (LongRoPE(SHORT, LONG, 4096, factor=32), 1.19024),
        (LongRoPE(SHORT, LONG, 4096), 1.0),
        (LongRoPE(SHORT, LONG, 4096, factor=0.5), 1.0),
        (LongRoPE(SHORT, LONG, 4096, factor=32, attention_factor=1.25), 1.25),
    ],
)
@pytest.mark.parametrize("length", [9, 4097])
def test_attention_factors(scaling, want, length):
    rotation = RoPE(24, scaling=scaling)(sequence_coords(9), length=length)
    norm = (rotation.cos.double() ** 2 + rotation.sin.double() ** 2).sqrt()
    torch.testing.assert_close(norm, torch.full_like(norm, want), atol=1e-5, rtol=0)


def test_the_turn_and_the_attention_factor_are_applied_once():
    factor = 0.1 * math.log(4) + 1
    got = RoPE(2, scaling=YaRN(4, 4096))(torch.tensor([[3]])).apply(torch.tensor([[[1.0, 0.0]]]))[0, 0]
    torch.testing.assert_close(got, factor * torch.tensor([math.cos(3), math.sin(3)]), atol=3e-7, rtol=0)


# Identity, values, and routes to them


IDENTITIES = [
    PositionInterpolation(1),
    NTK(1),
    YaRN(1, 64),
    YaRN(1, 64, truncate=False, mscale=0.7, mscale_all_dim=0.3),
    Llama3(1, 1, 4, 64),
    Proportional(1),
    ClipLow(10**9),
]


@pytest.mark.parametrize("scaling", IDENTITIES)
@pytest.mark.parametrize("recipe, axes", [(Axial(), 2), (Sections((4, 8)), 2), (Axial(dealt=True), 2), (Axial(), 1)])
def test_a_factor_of_one_returns_the_spectrum_unchanged(scaling, recipe, axes):
    spectrum = recipe.spectrum(24, axes, 10000.0)
    assert scale_spectrum(spectrum, [scaling] * axes) == spectrum
    coords = torch.tensor([[5, 300][:axes], [-(10**9), 2**31 - 1][:axes]])
    got, want = (
        RoPE(24, axes=axes, spectrum=recipe, scaling=scaling)(coords),
        RoPE(24, axes=axes, spectrum=recipe)(coords),
    )
    assert all(map(torch.equal, got[:2], want[:2]))
    assert got.factor is None


@pytest.mark.parametrize("scaling", [DynamicNTK(1, 300), DynamicNTK(4, 300), LongRoPE([1] * 12, [1] * 12, 300)])
def test_up_to_the_trained_length_nothing_changes(scaling):
    coords = sequence_coords(300)
    for got, want in zip(RoPE(24, scaling=scaling)(coords)[:2], RoPE(24)(coords)[:2], strict=True):
        torch.testing.assert_close(got, want, atol=1e-7, rtol=0)


def test_an_attention_factor_of_its_own_leaves_the_turn_alone():
    coords = sequence_coords(9)
    got, want = RoPE(24, scaling=YaRN(1, 64, attention_factor=1.5))(coords), RoPE(24)(coords)
    torch.testing.assert_close(got.cos, want.cos * 1.5)


@pytest.mark.parametrize("scaling", [case[0] for case in SCALINGS.values()])
def test_scalings_are_frozen_values(scaling):
    assert dataclasses.replace(scaling) == scaling
    assert hash(dataclasses.replace(scaling)) == hash(scaling)
    with pytest.raises(dataclasses.FrozenInstanceError):
        scaling.train_length = 3


@pytest.mark.parametrize("scaling", [case[0] for case in SCALINGS.values()])
def test_constructor_factory_and_config_give_the_same_frequencies(scaling):
    coords = sequence_coords(5, offset=4090)
    spec = {"name": type(scaling).__name__, **dataclasses.asdict(scaling)}
    routes = [
        RoPE(24, scaling=scaling),
        create_encoding("RoPE", head_dim=24, scaling=spec),
        RoPE(24).with_scaling(scaling),
    ]
    first, *others = (rope(coords, length=4095) for rope in routes)
    assert all(torch.equal(first.cos, other.cos) for other in others)


@pytest.mark.parametrize("name", [name for name in SCALINGS if name not in LENGTHS])
def test_what_is_fixed_does_not_change_with_the_length(name):
    rope, coords = RoPE(24, scaling=SCALINGS[name][0]), sequence_coords(5, offset=10**6)
    assert torch.equal(rope(coords).cos, rope(coords, length=10**7).cos)
    assert torch.equal(rope(coords[-1:]).cos, rope(coords).cos[:, -1:])


def test_whole_numbers_may_come_as_floats():
    for scaling in (Llama3(8, 1, 4, 8192.0), YaRN(4, 4096.0), ClipLow(512.0), DynamicNTK(2, 64.0), NTK(4.0)):
        whole = {k: int(v) for k, v in dataclasses.asdict(scaling).items() if isinstance(v, float) and v == int(v)}
        want = RoPE(24, scaling=dataclasses.replace(scaling, **whole))(sequence_coords(100))
        assert torch.equal(RoPE(24, scaling=scaling)(sequence_coords(100)).cos, want.cos)


# Several axes


def freqs_of(spectrum):
    return spectrum.tensor(torch.float64, torch.device("cpu"))


def numbers(freqs):
    return torch.tensor([float(freq) for freq in freqs], dtype=torch.float64)


@pytest.mark.parametrize(
    "scaling, published",
    [
        (NTK(4), lambda base, width: ntk(base, width, 4)),
        (YaRN(4, 300, beta_fast=8), lambda base, width: yarn(base, width, 4, 300, 8)),
    ],
)
def test_ntk_and_yarn_go_by_the_series_of_the_pair(scaling, published):
    # Axis blocks have series of their own width; sections and dealt blocks are cut from one series of the whole width.
    budget = Axial(channels=(6, 10, 8)).spectrum(24, 3, 10000.0)
    whole = Sections((3, 5, 4)).spectrum(24, 3, 10000.0)
    dealt = Axial(dealt=True).spectrum(24, 2, 10000.0)
    blocks = freqs_of(scale_spectrum(budget, [scaling] * 3))[0].amax(0).split([3, 5, 4])
    for block, width in zip(blocks, (6, 10, 8), strict=True):
        torch.testing.assert_close(block, numbers(published(10000, width)), atol=0, rtol=1e-14)
    want = numbers(published(10000, 24))
    got = freqs_of(scale_spectrum(whole, [scaling] * 3))[0].amax(0)
    torch.testing.assert_close(got, want, atol=0, rtol=1e-14)
    got = freqs_of(scale_spectrum(dealt, [scaling] * 2))[0].amax(0)
    torch.testing.assert_close(got, torch.cat([want[0::2], want[1::2]]), atol=0, rtol=1e-14)


def test_each_axis_may_have_a_scaling_of_its_own():
    rope = RoPE(36, axes=3, scaling=[YaRN(4, 300, beta_fast=8), None, PositionInterpolation(2)])
    rotation, coords = (
        rope(video_coords(2, 3, 4, origin=(300, 0, 0))),
        video_coords(2, 3, 4, origin=(300, 0, 0)).double(),
    )
    freqs = [numbers(f) for f in (yarn(10000, 12, 4, 300, 8), series(10000, 12), interpolation(10000, 12, 2))]
    want = torch.cat([(coords[:, axis, None] * freqs[axis]).cos() for axis in range(3)], dim=-1)
    factor = torch.tensor([0.1 * math.log(4) + 1] * 6 + [1.0] * 12).double()
    torch.testing.assert_close(rotation.cos[0].double(), want * factor, atol=3e-7, rtol=0)
    torch.testing.assert_close(rotation.factor[0, 0].double(), factor, atol=1e-7, rtol=0)


def test_a_grid_that_doubles_on_one_axis():
    # 16 x 16 to 32 x 16: row factor 2, column factor 1.
    rope = RoPE(24, axes=2, base=100.0)
    got, want = (
        rope.with_scaling([PositionInterpolation(2), None])(grid_coords(32, 16)),
        rope(grid_coords(32, 16, (0.5, 1))),
    )
    torch.testing.assert_close(got.sin, want.sin, atol=1e-7, rtol=0)


def test_a_pair_that_several_axes_turn_has_the_attention_factor_of_each_scaling_once():
    factor = 0.1 * math.log(4) + 1
    once = RoPE(24, axes=2, spectrum=Shared(), scaling=YaRN(4, 300))(grid_coords(2, 3))
    torch.testing.assert_close(once.factor, torch.full((1, 1, 12), factor), atol=1e-7, rtol=0)
    each = RoPE(24, axes=2, spectrum=Shared(), scaling=[YaRN(4, 300), YaRN(8, 300)])(grid_coords(2, 3))
    both = factor * (0.1 * math.log(8) + 1)
    torch.testing.assert_close(each.factor, torch.full((1, 1, 12), both), atol=2e-7, rtol=0)


@pytest.mark.parametrize("default", [torch.bfloat16, torch.float64])
def test_the_default_dtype_does_not_reach_the_attention_factor(default):
    want = RoPE(24, scaling=YaRN(40, 4096))(sequence_coords(5))
    torch.set_default_dtype(default)
    try:
        got = RoPE(24, scaling=YaRN(40, 4096))(sequence_coords(5))
    finally:
        torch.set_default_dtype(torch.float32)
    assert got.cos.dtype == torch.float32
    assert torch.equal(got.cos, want.cos)


# What depends on the length


BY_LENGTH = {"longrope": LongRoPE(SHORT, LONG, 16), "dynamic": DynamicNTK(2, 16)}


@pytest.mark.parametrize("name", BY_LENGTH)
def test_a_row_of_a_batch_is_as_if_alone(name):
    rope = RoPE(24, scaling=BY_LENGTH[name])
    mask = torch.arange(64) < torch.tensor([[4], [64], [16], [17]])
    coords = padded_coords(mask)
    together = rope(coords)
    for row, length in enumerate((4, 64, 16, 17)):
        alone = rope(sequence_coords(length))
        assert torch.equal(together.cos[row, :, :length], alone.cos)
        assert torch.equal(alone.sin, rope(sequence_coords(length), length=length).sin)


@pytest.mark.parametrize("name", BY_LENGTH)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_length_may_be_one_number_or_one_for_each_row(name, dtype):
    rope, coords = RoPE(24, scaling=BY_LENGTH[name]), sequence_coords(5, offset=torch.tensor([[0, 3, 20], [7, 1, 9]]))
    lengths = torch.tensor([[5, 17, 25], [40, 16, 14]])
    got = rope(coords, length=lengths.to(dtype))
    assert got.cos.shape == (2, 3, 1, 5, 12)
    for i, j in ((i, j) for i in range(2) for j in range(3)):
        assert torch.equal(got.cos[i, j], rope(coords[i, j], length=lengths[i, j].item()).cos)
        assert torch.equal(got.cos[i, j], rope(coords, length=lengths[i, j]).cos[i, j])


@pytest.mark.parametrize("length, factors", [(4, SHORT), (16, SHORT), (17, LONG)])
def test_longrope_goes_by_the_length_of_the_row_and_switches_past_the_trained_one(length, factors):
    want = sequence_coords(length).double() * numbers(longrope(10000, 24, factors))
    torch.testing.assert_close(
        RoPE(24, scaling=BY_LENGTH["longrope"])(sequence_coords(length)).sin[0].double(), want.sin()
    )


def test_longrope_refuses_a_call_whose_cached_keys_would_not_fit():
    rope, full = RoPE(24, scaling=LongRoPE(SHORT, LONG, 8)), sequence_coords(10)
    rope(full[:6])
    for rest in (full[6:], full[9:]):
        with pytest.raises(ValueError, match=r"starts past 0 and passes train_length \(8\).*give length"):
            rope(rest)
        pinned = rope(rest, length=10)
        assert torch.equal(pinned.cos, rope(full).cos[:, -len(rest) :])
    with pytest.raises(ValueError, match="give length"):
        rope(sequence_coords(4, offset=torch.tensor([0, 6])))


@pytest.mark.parametrize("name", BY_LENGTH)
@pytest.mark.parametrize("steps", [(6, 4, 10), (1,) * 20])
def test_decoding_with_the_length_pinned_equals_the_full_pass(name, steps):
    rope, full, seen = RoPE(24, scaling=BY_LENGTH[name]), sequence_coords(20), 0
    parts = []
    for step in steps:
        parts.append(rope(sequence_coords(step, offset=seen), length=20).cos)
        seen += step
    assert torch.equal(torch.cat(parts, dim=-2), rope(full).cos)


@pytest.mark.parametrize("name", BY_LENGTH)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_coordinate_that_is_no_number_spoils_its_own_token_only(name, bad):
    rope, line = RoPE(24, scaling=BY_LENGTH[name]), torch.arange(20.0)[:, None]
    broken = line.clone()
    broken[3] = bad
    got, want = rope(broken), rope(line)
    keep = torch.arange(20) != 3
    assert got.cos[0, 3].isnan().all()
    assert torch.equal(got.cos[:, keep], want.cos[:, keep])


@pytest.mark.parametrize("name", BY_LENGTH)
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.float32])
def test_the_length_of_a_row_is_counted_in_any_dtype(name, dtype):
    rope, line = RoPE(24, scaling=BY_LENGTH[name]), torch.arange(256 if dtype == torch.uint8 else 128)[:, None]
    assert torch.equal(rope(line.to(dtype)).cos, rope(line).cos)


@pytest.mark.parametrize("name", BY_LENGTH)
def test_compiled_calls_need_the_length(name):
    rope, coords = RoPE(24, scaling=BY_LENGTH[name]), sequence_coords(3, offset=torch.tensor([0, 18]))
    compiled = torch.compile(rope, fullgraph=True, backend="eager")
    for length in (21, torch.tensor([3, 21])):
        assert torch.equal(compiled(coords, length=length).cos, rope(coords, length=length).cos)
    with pytest.raises(Exception, match="length, which must be given under compile"):
        compiled(coords)


@pytest.mark.parametrize("name", BY_LENGTH)
def test_shapes_on_the_meta_device(name):
    coords = torch.empty(2, 9, 1, dtype=torch.int64, device="meta")
    for length in (None, 20, torch.empty(2, dtype=torch.int64, device="meta")):
        assert RoPE(24, scaling=BY_LENGTH[name])(coords, length=length).cos.shape == (2, 1, 9, 12)


@pytest.mark.parametrize("scaling", [None, *BY_LENGTH.values()])
@pytest.mark.parametrize("length", [-3, 2.5, "9", True, torch.tensor([2.5, 3.0])])
def test_a_length_that_is_none_is_refused(scaling, length):
    with pytest.raises((TypeError, ValueError), match="length must"):
        RoPE(24, scaling=scaling)(sequence_coords(3, offset=torch.tensor([0, 1])), length=length)


# Sharing


@pytest.mark.parametrize("spectrum", [Mixed(), Learned(Axial(), per_head=True)])
def test_with_scaling_shares_what_is_learned(spectrum):
    torch.manual_seed(0)
    rope = RoPE(12, axes=2, spectrum=spectrum, num_heads=3)
    coords = grid_coords(5, 7)
    finer = rope.with_scaling([PositionInterpolation(2), None])
    assert finer.freqs is rope.freqs
    torch.testing.assert_close(
        finer(coords).sin, rope(coords * torch.tensor([0.5, 1.0]).double()).sin, atol=1e-7, rtol=0
    )
    before = finer(coords).sin
    finer(coords).sin.square().sum().backward()
    torch.optim.SGD(rope.parameters(), lr=0.1).step()
    assert not torch.equal(finer(coords).sin, before)
    assert list(rope.state_dict()) == list(finer.state_dict()) == ["freqs"]
    assert torch.equal(finer.with_scaling(None)(coords).sin, rope(coords).sin)


def test_with_scaling_leaves_the_original_alone():
    rope, coords = RoPE(24, scaling=NTK(2)), sequence_coords(300)
    before = rope(coords)
    other = rope.with_scaling(YaRN(4, 64))
    assert (rope.scaling, other.scaling) == (NTK(2), YaRN(4, 64))
    assert torch.equal(rope(coords).cos, before.cos)
    torch.testing.assert_close(other(coords).cos, RoPE(24, scaling=YaRN(4, 64))(coords).cos, atol=0, rtol=0)
    calls = []
    other.register_forward_hook(lambda *_: calls.append(1))
    rope(coords)
    assert not calls


# Bad input


@pytest.mark.parametrize(
    "scaling, arguments, error, message",
    [
        *(
            (kind, {"factor": factor}, ValueError, "factor must be positive and finite, got")
            for kind in (PositionInterpolation, NTK)
            for factor in (0, -2, math.inf, math.nan)
        ),
        (PositionInterpolation, {"factor": "2"}, TypeError, "factor must be a number, got '2'"),
        (NTK, {"factor": True}, TypeError, "factor must be a number, got True"),
        (DynamicNTK, {"factor": 2}, TypeError, "train_length"),
        (DynamicNTK, {"factor": 0, "train_length": 8}, ValueError, "factor must be positive and finite, got 0"),
        (DynamicNTK, {"factor": 2, "train_length": 0}, ValueError, "train_length must be positive and finite, got 0"),
        (YaRN, {"factor": 2}, TypeError, "train_length"),
        (YaRN, {"factor": -1, "train_length": 64}, ValueError, "factor must be positive and finite, got -1"),
        (YaRN, {"factor": 2, "train_length": -64}, ValueError, "train_length must be positive and finite, got -64"),
        (
            YaRN,
            {"factor": 2, "train_length": 64, "beta_fast": 1, "beta_slow": 32},
            ValueError,
            "beta_slow < beta_fast, got 32 and 1",
        ),
        (YaRN, {"factor": 2, "train_length": 64, "beta_fast": "32"}, TypeError, "beta_fast"),
        (YaRN, {"factor": 2, "train_length": 64, "attention_factor": 0}, ValueError, "attention_factor"),
        (YaRN, {"factor": 2, "train_length": 64, "attention_factor": "1"}, TypeError, "attention_factor"),
        (YaRN, {"factor": 2, "train_length": 64, "mscale": "1", "mscale_all_dim": 1}, TypeError, "mscale"),
        (LongRoPE, {"short_factors": SHORT, "long_factors": LONG}, TypeError, "train_length"),
        (LongRoPE, {"short_factors": SHORT, "long_factors": LONG[:-1], "train_length": 8}, ValueError, "got 12 and 11"),
        (
            LongRoPE,
            {"short_factors": [1, 0], "long_factors": [1, 2], "train_length": 8},
            ValueError,
            "short_factors must be positive",
        ),
        (
            LongRoPE,
            {"short_factors": [1, 2], "long_factors": [1, -2], "train_length": 8},
            ValueError,
            "long_factors must be positive",
        ),
        (
            LongRoPE,
            {"short_factors": [1], "long_factors": [1], "train_length": 0},
            ValueError,
            "train_length must be positive",
        ),
        (
            LongRoPE,
            {"short_factors": [1], "long_factors": [1], "train_length": 8, "factor": 0},
            ValueError,
            "factor must be positive",
        ),
        (
            LongRoPE,
            {"short_factors": [1], "long_factors": [1], "train_length": 8, "attention_factor": -1},
            ValueError,
            "attention_factor",
        ),
        (
            Llama3,
            {"factor": 0, "low_freq_factor": 1, "high_freq_factor": 4, "train_length": 8},
            ValueError,
            "factor must be positive",
        ),
        (Llama3, {"factor": 8, "low_freq_factor": 1, "high_freq_factor": 4}, TypeError, "train_length"),
        (
            Llama3,
            {"factor": 8, "low_freq_factor": 4, "high_freq_factor": 4, "train_length": 8},
            ValueError,
            r"low_freq_factor \(4\) must be less",
        ),
        (Proportional, {"share": 1.5}, ValueError, "share must be from 0 to 1, got 1.5"),
        (RIFLEx, {"index": -1, "length": 66}, ValueError, "index must not be negative, got -1"),
        (RIFLEx, {"index": 1, "length": 0}, ValueError, "length must be positive and finite, got 0"),
        (ClipLow, {"train_length": 0}, ValueError, "train_length must be positive and finite, got 0"),
    ],
)
def test_values_that_make_no_scaling_are_refused(scaling, arguments, error, message):
    with pytest.raises(error, match=message):
        scaling(**arguments)


NEED_A_BASE = [
    NTK(2),
    DynamicNTK(2, 8),
    YaRN(2, 64),
    LongRoPE([1], [1], 8),
    Llama3(8, 1, 4, 64),
    Proportional(0.5),
    RIFLEx(0, 9),
]


@pytest.mark.parametrize("scaling", NEED_A_BASE)
@pytest.mark.parametrize("spectrum", [Axial(series=Periods(1, 100)), Given(((1.0, 0.5),))])
def test_a_spectrum_without_a_base_takes_interpolation_only(scaling, spectrum):
    with pytest.raises(ValueError, match=f"{type(scaling).__name__} needs the base.*PositionInterpolation serves any"):
        RoPE(4, spectrum=spectrum, scaling=scaling)
    got, coords = (
        RoPE(4, spectrum=spectrum, scaling=PositionInterpolation(2))(sequence_coords(9)),
        sequence_coords(9) / 2,
    )
    torch.testing.assert_close(got.sin, RoPE(4, spectrum=spectrum)(coords).sin, atol=1e-7, rtol=0)


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ({"scaling": LongRoPE(SHORT, LONG, 8), "head_dim": 16}, ValueError, "12 factors for the 8 pairs"),
        ({"scaling": RIFLEx(12, 66)}, ValueError, r"index \(12\) must be less than the pairs of the axis \(12\)"),
        ({"scaling": [NTK(2)], "axes": 2}, ValueError, "one for all axes or one for each of 2, got 1"),
        ({"scaling": 2.0}, TypeError, "scaling must be made of scalings of mmpos.scaling, got 2.0"),
        ({"scaling": [NTK(2), "YaRN"], "axes": 2}, TypeError, "got 'YaRN'"),
        (
            {"scaling": [DynamicNTK(2, 8), DynamicNTK(3, 8)], "axes": 2},
            ValueError,
            "only one scaling may depend on the length",
        ),
        (
            {"scaling": NTK(2), "spectrum": Mixed(), "num_heads": 2, "axes": 2},
            ValueError,
            "learned frequencies take PositionInterpolation only",
        ),
        ({"scaling": [None, YaRN(2, 64)], "spectrum": Learned(), "axes": 2}, ValueError, "learned frequencies take"),
        ({"scaling": YaRN(2, 64), "base": 1}, ValueError, "base"),
        ({"scaling": LongRoPE(SHORT, LONG, 1, factor=4)}, ValueError, "train_length"),
    ],
)
def test_scalings_that_do_not_fit_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        RoPE(**{"head_dim": 24, **arguments})
