import itertools
import math
from decimal import Decimal

import mpmath
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mmpos import RoPE, phases
from mmpos.frequencies import Bands, Geometric, Harmonics, Pair, Periods, Spectrum
from mmpos.scaling import NTK
from mmpos.spectra import Axial, Given, Shared

FAR = (10, 4095, 131071, 10**6, 10**9, 2**31 - 1)
BASES = (10000.0, 100, 500000.0, 1e6, 0.5)


def reference(coords, freqs):
    """Cosine and sine of ``sum_a coords[a] * freqs[a][p]`` in 50 digits, rounded to float64 at the end."""
    with mpmath.workdps(50 + 20):
        angles = [
            [
                mpmath.fsum(mpmath.mpf(c) * f for c, f in zip(point, pair, strict=True))
                for pair in zip(*freqs, strict=True)
            ]
            for point in coords
        ]
        parts = [[[float(fn(angle)) for angle in row] for row in angles] for fn in (mpmath.cos, mpmath.sin)]
    return torch.tensor(parts, dtype=torch.float64)


def published(base, width, axes):
    """Frequencies ``base ** (-2i / width)`` of a block of ``width = total // axes`` channels for each axis."""
    with mpmath.workdps(70):
        block = [mpmath.mpf(base) ** (mpmath.mpf(-2 * i) / (width // axes)) for i in range(width // axes // 2)]
        still = [mpmath.mpf(0)] * len(block)
        return [still * a + block + still * (axes - 1 - a) for a in range(axes)]


def axial(width, axes, base):
    return Axial().spectrum(width, axes, base)


def evaluate(spectrum, coords):
    """Cosine and sine ``(2, ..., n, p)`` of a spectrum that all heads share."""
    cos, sin = spectrum.cos_sin(coords)
    return torch.stack([cos.squeeze(-3), sin.squeeze(-3)])


def worst(spectrum, coords, freqs):
    got = evaluate(spectrum, coords)
    assert got.dtype == torch.float32
    return (got.double() - reference(coords.tolist(), freqs)).abs().max().item()


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("width", [2, 10, 64])
def test_geometric_series_is_right_to_fifty_digits(base, width):
    with mpmath.workdps(70):
        for (got, _), true in zip(Geometric(base).pairs(width // 2), published(base, width, 1)[0], strict=True):
            assert abs(mpmath.mpf(str(got)) / true - 1) < mpmath.mpf(10) ** -50


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("num_pairs", [1, 2, 7, 32])
def test_geometric_series_with_endpoint_or_width_is_right_to_fifty_digits(base, num_pairs):
    wider = 2 * num_pairs + 3
    with mpmath.workdps(70):
        ends = [mpmath.mpf(base) ** (mpmath.mpf(-i) / max(num_pairs - 1, 1)) for i in range(num_pairs)]
        parts = [mpmath.mpf(base) ** (mpmath.mpf(-2 * i) / wider) for i in range(num_pairs)]
        for series, want in ((Geometric(base, endpoint=True), ends), (Geometric(base, width=wider), parts)):
            for (got, _), true in zip(series.pairs(num_pairs), want, strict=True):
                assert abs(mpmath.mpf(str(got)) / true - 1) < mpmath.mpf(10) ** -50
    first = Geometric(base).pairs(40)[:num_pairs]
    assert Geometric(base, width=80).pairs(num_pairs) == first


def test_a_series_with_endpoint_has_no_base_for_ntk():
    spectrum = Axial(series=Geometric(100.0, endpoint=True))
    with pytest.raises(ValueError, match="NTK needs the base of a geometric series"):
        RoPE(16, spectrum=spectrum, scaling=NTK(2))


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"base": 0}, "base must be positive and finite, got 0"),
        ({"width": 0}, "width must be positive, got 0"),
        ({"width": 8, "endpoint": True}, "give endpoint or width, not both; got width=8"),
    ],
)
def test_bad_geometric_series_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        Geometric(**arguments)


@pytest.mark.parametrize("width, axes, base", [(12, 1, 10000.0), (12, 2, 100.0), (12, 3, 10.0), (24, 3, 0.5)])
def test_axial_gives_each_axis_a_block_in_axis_order(width, axes, base):
    (head,) = axial(width, axes, base).rows()
    got = [[float(freq) for freq in row] for row in head]
    assert got == [[float(freq) for freq in row] for row in published(base, width, axes)]


@pytest.mark.parametrize("base", BASES)
def test_phases_are_exact_on_a_line(base):
    coords = torch.tensor([[sign * far] for far in (0, 1, 255, 256, 257, *FAR) for sign in (1, -1)])
    assert worst(axial(64, 1, base), coords, published(base, 64, 1)) < 1e-7


@pytest.mark.parametrize("axes, width, base", [(2, 24, 100.0), (3, 18, 10000.0)])
def test_phases_are_exact_in_space(axes, width, base):
    coords = torch.tensor(list(itertools.islice(itertools.product((3, -FAR[3], FAR[5], -FAR[1]), repeat=axes), 30)))
    assert worst(axial(width, axes, base), coords, published(base, width, axes)) < 1e-7


def test_phases_are_exact_where_axes_share_a_pair():
    rows = ((0.1, 3.0, 1e-9, 1e6), (-0.7, 1e-3, 2.5, math.pi))
    coords = torch.tensor([[FAR[5], -FAR[5]], [-FAR[3], 7], [2, FAR[2]]])
    assert worst(Given(rows).spectrum(8, 2, 1.0), coords, rows) < 1e-7


@pytest.mark.parametrize("coord", [2**32, 2**53 + 1, 2**62 + 12345, 2**63 - 1, -(2**63), -(2**40) - 3, 1_767_225_600])
def test_phases_are_exact_over_all_of_int64(coord):
    coords = torch.tensor([[coord], [coord + (1 if coord < 0 else -1)]])
    assert worst(axial(16, 1, 10000.0), coords, published(10000.0, 16, 1)) < 1e-7


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("base", [10000.0, 1e-6])  # the latter turns by up to 1e6 radians per unit
def test_phases_of_real_coordinates_are_exact(base, dtype):
    values = [
        0.5,
        -0.25,
        1 / 3,
        -math.e,
        1e-12,
        5e-45,
        998.3897,
        15962.75,
        -(10**6) - 0.1,
        1e9 + 0.3,
        1.7e9 + 1e-6,
        -(2**40),
    ]
    coords = torch.tensor(values, dtype=dtype)[:, None]
    assert worst(axial(32, 1, base), coords, published(base, 32, 1)) < 1e-7
    plane = torch.stack([coords[:, 0], coords[:, 0].flip(0)], dim=-1)
    assert worst(axial(24, 2, base), plane, published(base, 24, 2)) < 1e-7


def harmonics(period, num_pairs):
    with mpmath.workdps(70):
        return [2 * mpmath.pi * (i + 1) / mpmath.mpf(period) for i in range(num_pairs)]


@pytest.mark.parametrize("period", [24, 360, 64, 365.2425, 0.3])
def test_harmonics_are_exact(period):
    freqs = harmonics(period, 9)
    with mpmath.workdps(70):
        for (got, place), true in zip(Harmonics(period).pairs(9), freqs, strict=True):
            assert place is None
            assert abs(mpmath.mpf(str(got)) / true - 1) < mpmath.mpf(10) ** -50
    spectrum = Axial(series=Harmonics(period)).spectrum(18, 1, 1.0)
    coords = torch.tensor([[sign * far] for far in (0, 1, 23, 359, *FAR) for sign in (1, -1)])
    assert worst(spectrum, coords, [freqs]) < 1e-7
    for dtype in (torch.float32, torch.float64):
        real = torch.tensor([[0.3], [-0.7], [-1e-12], [359.9], [-17.25], [1e6 + 1 / 3]], dtype=dtype)
        assert worst(spectrum, real, [freqs]) < 1e-7


@pytest.mark.parametrize("period, num_pairs", [(7, 3), (24, 12), (360, 180), (365, 8), (1440, 5), (86400, 4)])
def test_harmonics_have_no_seam(period, num_pairs):
    """The same bits a whole number of periods apart, as far as int64 reaches."""
    spectrum = Axial(series=Harmonics(period)).spectrum(2 * num_pairs, 1, 1.0)
    coords = torch.arange(0, period, max(period // 400, 1))[:, None]
    want = evaluate(spectrum, coords)
    last = 2**31 // period - 1
    for turns in (1, -1, 2, -2, 1000, -1000, last, -last, 2**63 // period - 1, -(2**63 // period)):
        assert torch.equal(evaluate(spectrum, coords + turns * period), want), turns
    assert torch.equal(evaluate(spectrum, (coords - period).to(torch.int32)), want)


def test_a_seam_closes_on_its_own_axis_only():
    """Degrees on the second axis, radians on the first."""
    still = Decimal(0)
    once, twice = (freq for freq, _ in Harmonics(360).pairs(2))
    spectrum = Spectrum(((Pair((Decimal(1), still)), Pair((still, once)), Pair((still, twice))),))
    assert spectrum.periods == (0, 360)
    freqs = [(1, 0, 0), (0, *harmonics(360, 2))]
    coords = torch.tensor([[1000, 1000], [-1000, -1000], [2**31 - 1, 1 - 2**31]])
    assert worst(spectrum, coords, freqs) < 1e-7
    assert torch.equal(evaluate(spectrum, coords), evaluate(spectrum, coords + torch.tensor([0, 720])))
    assert not torch.equal(evaluate(spectrum, coords), evaluate(spectrum, coords + torch.tensor([720, 0])))


def test_axes_that_share_a_pair_close_each():
    spectrum = Shared(series=Harmonics(360)).spectrum(8, 2, 1.0)
    assert spectrum.periods == (360, 360)
    want = evaluate(spectrum, torch.tensor([[3, 359]]))
    for other in ([3 + 360, 359], [3, 359 - 720], [3 - 360, 359 + 360]):
        assert torch.equal(evaluate(spectrum, torch.tensor([other])), want)
    assert Given(((math.tau / 8,),)).spectrum(2, 1, 1.0).periods == (0,)  # math.tau is not 2 pi to all digits


@pytest.mark.parametrize(
    "series, period",
    [
        (Harmonics(24), 24),
        (Harmonics(24.0), 24),
        (Harmonics(365.2425), 0),
        (Harmonics(0.5), 0),
        (Geometric(), 0),
        (Geometric(1.0), 0),
        (Periods(2.0, 32.0), 32),  # octaves
        (Periods(2.0, 31.0), 0),
        (Periods(2.0**62, 2.0**66), 0),  # past int64
        (Bands(10.0), 2),  # half turns
    ],
)
def test_a_spectrum_knows_after_how_many_units_all_repeats(series, period):
    assert Axial(series=series).spectrum(20, 2, 1.0).periods == (period, period)
    coords = torch.tensor([[-5, 2**62]])
    assert evaluate(Axial(series=series).spectrum(20, 2, 1.0), coords).isfinite().all()


def test_a_rotation_by_harmonics_has_no_seam_either():
    rope = RoPE(12, axes=2, spectrum=Axial(series=Harmonics(360)))
    coords = torch.tensor([[0, 359], [-90, 180]])
    for other in (coords + 360, coords + torch.tensor([0, -720])):
        assert torch.equal(torch.cat(rope(other)[:2]), torch.cat(rope(coords)[:2]))


@pytest.mark.parametrize(
    "period, error", [(0, ValueError), (-24, ValueError), (math.inf, ValueError), ("24", TypeError)]
)
def test_bad_periods_are_named(period, error):
    with pytest.raises(error, match=f"period must be .* got '?{period}"):
        Harmonics(period)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.float32, torch.float64])
def test_a_whole_number_has_the_same_bits_in_every_dtype(dtype):
    coords = torch.tensor([[0, 1], [100, 127], [5, 64]])
    for recipe in (Axial(), Axial(series=Harmonics(300))):
        spectrum = recipe.spectrum(24, 2, 10000.0)
        assert torch.equal(evaluate(spectrum, coords.to(dtype)), evaluate(spectrum, coords))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 2.0**63, -1e30])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_a_coordinate_that_is_no_number_gives_nan_for_its_token_only(bad, requires_grad):
    coords = torch.tensor([[1.5, 2.0], [3.0, bad], [-4.0, 5.0]], dtype=torch.float64)
    good = evaluate(axial(8, 2, 10000.0), coords[[0, 2]])
    got = evaluate(axial(8, 2, 10000.0), coords.requires_grad_(requires_grad))
    assert got[:, 1].isnan().all()
    assert torch.equal(got[:, [0, 2]], good)


def test_a_batch_equals_its_rows():
    spectrum = axial(12, 2, 10000.0)
    coords = torch.randint(-(10**6), 10**6, (2, 3, 300, 2))
    got = evaluate(spectrum, coords)
    assert torch.equal(got, evaluate(spectrum, coords.flatten(0, 1)).unflatten(1, (2, 3)))
    assert torch.equal(got[:, 1, 2], evaluate(spectrum, coords[1, 2]))


@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 2e-7), (torch.float32, 5e-7)])
def test_derivatives_to_real_coordinates(dtype, tolerance):
    freqs = published(100.0, 8, 2)
    coords = torch.tensor([[0.5, -3.25], [1e6 + 0.125, -7.0], [12.0, 4095.5]], dtype=dtype)
    cos, sin = reference(coords.tolist(), freqs)
    freqs = torch.tensor([[float(f) for f in row] for row in freqs], dtype=torch.float64)

    def turns(point):
        return evaluate(axial(8, 2, 100.0), point[None])[:, 0]

    for point, c, s in zip(coords, cos, sin, strict=True):
        first = torch.autograd.functional.jacobian(turns, point).double()
        want = torch.stack([-s[:, None] * freqs.mT, c[:, None] * freqs.mT])
        torch.testing.assert_close(first, want, atol=tolerance, rtol=0)
        for part, sign_value in ((0, c), (1, s)):
            for pair in range(4):
                second = torch.autograd.functional.hessian(lambda x, i=part, p=pair: turns(x)[i, p], point).double()
                want = -sign_value[pair] * freqs[:, pair, None] * freqs[:, pair]
                torch.testing.assert_close(second, want, atol=tolerance, rtol=0)


def test_asking_for_a_gradient_does_not_change_the_values():
    coords = torch.tensor([[0.3], [-1e6 - 0.7], [123456.789]])
    plain, traced = (evaluate(axial(16, 1, 10000.0), part) for part in (coords, coords.clone().requires_grad_()))
    assert traced.requires_grad
    assert torch.equal(traced, plain)


class NoDoubles(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        outputs = result if isinstance(result, tuple | list) else [result]
        assert all(not isinstance(part, torch.Tensor) or part.dtype != torch.float64 for part in outputs), func
        return result


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32])
def test_devices_without_float64_can_compute_fixed_phases(dtype):
    coords = torch.tensor([[2**20], [-7]]).to(dtype)
    with NoDoubles():
        evaluate(axial(16, 1, 10000.0), coords)


@pytest.mark.parametrize("default", [torch.float64, torch.bfloat16])
def test_the_default_dtype_does_not_reach_the_phases(default):
    coords = torch.tensor([[10**9], [-1]])
    want = evaluate(axial(16, 1, 10000.0), coords)
    torch.set_default_dtype(default)
    try:
        got = evaluate(axial(16, 1, 10000.0), coords)
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(got, want)


@pytest.mark.parametrize("angles", [1, 50, 3000])
@pytest.mark.parametrize("floats", [False, True])
def test_many_tokens_in_parts_are_the_same_bits(angles, floats, monkeypatch):
    coords = torch.randint(-(2**40), 2**40, (3, 57, 2), generator=torch.Generator().manual_seed(1))
    coords = coords.double() / 7 if floats else coords
    spectrum = Axial().spectrum(24, 2, 100.0)
    whole = spectrum.cos_sin(coords)
    seen, plain = [], phases._phase

    def watched(limbs, steps):
        seen.append(limbs[0].shape[-2])
        return plain(limbs, steps)

    monkeypatch.setattr(phases, "_phase", watched)
    monkeypatch.setattr(phases, "ANGLES", angles)
    assert all(map(torch.equal, spectrum.cos_sin(coords), whole))
    assert (max(seen) == 57) == (angles == 3000)
    assert sum(seen) == 57
