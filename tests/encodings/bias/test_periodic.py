import copy
import math
from fractions import Fraction

import pytest
import torch
from torch import nn

from mmpos import grid_coords, sequence_coords
from mmpos.encodings.bias.periodic import PeriodicBias, sandwich_bias

DAY, WEEK, YEAR = 86400, 604800, 365.2425 * 86400


def reference(amplitudes, waves, q_coords, k_coords):
    """Sums of cosines whose turns are reduced exactly; ``waves`` are pairs of an axis and turns per unit."""
    bias = torch.zeros(len(amplitudes), len(q_coords), len(k_coords), dtype=torch.float64)
    for i, q in enumerate(q_coords.tolist()):
        for j, k in enumerate(k_coords.tolist()):
            turns = [(Fraction(q[axis]) - Fraction(k[axis])) * rate % 1 for axis, rate in waves]
            waved = torch.tensor([math.cos(2 * math.pi * turn) for turn in turns], dtype=torch.float64)
            bias[:, i, j] = (amplitudes.double() * waved).sum(-1)
    return bias


def seasons(*periods, axis=0, harmonics=1):
    return [(axis, n / Fraction(period)) for period in periods for n in range(1, harmonics + 1)]


@pytest.mark.parametrize("harmonics", [1, 3])
@pytest.mark.parametrize("fraction", [False, True])
def test_seasons_of_timestamps_are_exact(harmonics, fraction):
    bias = PeriodicBias(3, (DAY, WEEK, YEAR), harmonics=harmonics)
    nn.init.normal_(bias.amplitudes)
    times = 1_700_000_000 + torch.randint(0, 10**8, (9, 1))
    times = times + torch.rand(9, 1, dtype=torch.float64) if fraction else times
    q_coords, k_coords = times[:4], times[2:]
    got = bias(q_coords, k_coords)
    assert got.dtype == torch.float32
    want = reference(bias.amplitudes.detach(), seasons(DAY, WEEK, YEAR, harmonics=harmonics), q_coords, k_coords)
    torch.testing.assert_close(got.double(), want, atol=1e-6, rtol=0)


def test_a_season_later_is_the_same():
    bias = PeriodicBias(4, (DAY, WEEK), harmonics=2)
    times = 1_700_000_000 + 3600 * sequence_coords(30)
    here = bias(times[:5], times)
    for seasons_later in (1, 1000, -(10**9)):
        torch.testing.assert_close(bias(times[:5] + seasons_later * WEEK, times), here, atol=1e-7, rtol=0)


def test_axes_have_periods_of_their_own():
    periods = ((7,), (), (2.5, 12))
    bias = PeriodicBias(3, periods, axes=3, harmonics=2)
    assert bias.amplitudes.shape == (3, 6)
    nn.init.normal_(bias.amplitudes)
    q_coords, k_coords = torch.randint(-99, 99, (2, 5, 3)), torch.randint(-99, 99, (2, 4, 3))
    got = bias(q_coords, k_coords)
    waves = seasons(7, harmonics=2) + seasons(2.5, 12, axis=2, harmonics=2)
    real = bias(q_coords + 0.375, k_coords.double())
    moved = reference(bias.amplitudes.detach(), waves, q_coords[1] + 0.375, k_coords[1])
    torch.testing.assert_close(real[1].double(), moved, atol=1e-6, rtol=0)
    for row in range(2):
        want = reference(bias.amplitudes.detach(), waves, q_coords[row], k_coords[row])
        torch.testing.assert_close(got[row].double(), want, atol=1e-6, rtol=0)


def test_fixed_amplitudes_are_no_parameters():
    coords = grid_coords(3, 4)
    each = PeriodicBias(2, ((3,), (5,)), axes=2, amplitudes=((1.0, -0.5), (0.25, 2.0)))
    assert not list(each.parameters())
    want = reference(torch.tensor([[1.0, -0.5], [0.25, 2.0]]), seasons(3) + seasons(5, axis=1), coords, coords)
    torch.testing.assert_close(each(coords, coords).double(), want, atol=5e-7, rtol=0)
    every = PeriodicBias(2, ((3,), (5,)), axes=2, amplitudes=(1.0, -0.5))(coords, coords)
    assert torch.equal(every[0], each(coords, coords)[0])
    assert torch.equal(every[1], every[0])


def test_factors_are_the_bias_in_any_order():
    bias = PeriodicBias(5, (DAY, 7.5), harmonics=3)
    nn.init.normal_(bias.amplitudes)
    times = 1_700_000_000 + torch.randint(-(10**8), 10**8, (2, 300, 1))
    left, right = bias.factors(times[:, :37], times)
    assert (left.dtype, right.dtype) == (torch.float32, torch.float32)
    assert (left.shape, right.shape) == ((2, 5, 37, 12), (2, 1, 300, 12))
    dense = bias(times[:, :37], times).double()
    torch.testing.assert_close(left.double() @ right.double().mT, dense, atol=1e-6, rtol=0)
    # In float32, as attention computes it.
    size = bias.amplitudes.abs().sum(-1)[:, None, None]
    assert ((left @ right.mT - dense).abs() <= 12 * 2**-23 * size).all()


def test_learned_amplitudes_stay_in_float32():
    bias = PeriodicBias(3, (24, 168))
    coords = sequence_coords(400)
    want = bias(coords, coords)
    cast = nn.Sequential(copy.deepcopy(bias), nn.Linear(2, 2)).bfloat16()[0]
    assert cast.amplitudes.dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(cast(coords, coords), want)


def test_amplitudes_are_float32_in_models_built_in_half_precision():
    coords = sequence_coords(40)
    want = PeriodicBias(2, (7,), amplitudes=(0.3,))(coords, coords)
    torch.set_default_dtype(torch.bfloat16)
    try:
        got = PeriodicBias(2, (7,), amplitudes=(0.3,))(coords, coords)
        assert PeriodicBias(2, (7,)).amplitudes.dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(got, want)


def test_gradients_reach_amplitudes_and_real_coordinates():
    bias = PeriodicBias(2, (7.0, 30.5))
    nn.init.normal_(bias.amplitudes)
    q_coords = torch.tensor([[0.5], [1e6]], dtype=torch.float64, requires_grad=True)
    k_coords = torch.tensor([[3.0], [-2.25], [1e6 - 1]], dtype=torch.float64, requires_grad=True)
    weight = torch.randn(2, 2, 3, dtype=torch.float64)
    (bias(q_coords, k_coords) * weight).sum().backward()
    q, k, amplitudes = (part.detach().double().requires_grad_() for part in (q_coords, k_coords, bias.amplitudes))
    rates = 2 * math.pi / torch.tensor([7.0, 30.5], dtype=torch.float64)
    waves = (rates * (q[:, None] - k)).cos()
    (torch.einsum("hw,qkw->hqk", amplitudes, waves) * weight).sum().backward()
    torch.testing.assert_close(bias.amplitudes.grad.double(), amplitudes.grad, atol=1e-6, rtol=0)
    torch.testing.assert_close(q_coords.grad, q.grad, atol=1e-6, rtol=0)
    torch.testing.assert_close(k_coords.grad, k.grad, atol=1e-6, rtol=0)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_coordinates_that_are_no_numbers_give_nan_for_their_token(bad):
    q_coords, k_coords = torch.tensor([[0.0], [bad], [4.0]]), torch.tensor([[bad], [2.0]])
    got = PeriodicBias(3, (7,))(q_coords, k_coords).isnan()
    assert torch.equal(got, torch.tensor([[True, False], [True, True], [True, False]]).expand(3, 3, 2))


@pytest.mark.parametrize("num_heads, dim, base", [(6, 128, 10000.0), (1, 2, 100.0), (5, 10, 50.0)])
def test_sandwich_is_the_papers_formula(num_heads, dim, base):
    q_coords, k_coords = torch.tensor([[0], [1000], [123456]]), sequence_coords(11)
    step = (q_coords - k_coords.mT).double()
    total = sum((step / base ** (2 * i / dim)).cos() for i in range(1, dim // 2 + 1)) - dim / 2
    want = torch.stack([total / (8 * head / num_heads) for head in range(1, num_heads + 1)])
    bias = sandwich_bias(num_heads, dim, base)
    assert not list(bias.parameters())
    got = bias(q_coords, k_coords).double()
    dropped = torch.tensor([-dim / 2 / (8 * head / num_heads) for head in range(1, num_heads + 1)])[:, None, None]
    torch.testing.assert_close(got + dropped, want, atol=2e-6 * num_heads, rtol=1e-6)


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ({"periods": ()}, ValueError, r"periods must not be empty, got \(\)"),
        ({"periods": (7, 0)}, ValueError, "periods must be positive and finite, got 0"),
        ({"periods": (7, math.inf)}, ValueError, "periods must be positive and finite, got inf"),
        ({"periods": (7, "day")}, TypeError, "periods must be numbers, got 'day'"),
        ({"periods": (7,), "axes": 2}, ValueError, "periods must be a sequence for each of 2 axes"),
        ({"periods": ((7,), 3), "axes": 2}, ValueError, "periods must be a sequence for each of 2 axes"),
        ({"periods": ((), ()), "axes": 2}, ValueError, "periods must not be empty"),
        ({"periods": (7,), "harmonics": 0}, ValueError, "harmonics must be positive, got 0"),
        ({"periods": (7, 9), "amplitudes": (1,)}, ValueError, r"amplitudes must be \(4, 2\), one for each head and w"),
        ({"periods": (7,), "amplitudes": ((1,), (2,))}, ValueError, r"amplitudes must be \(4, 1\).* got \(2, 1\)"),
        ({"periods": (7,), "amplitudes": (math.nan,)}, ValueError, "amplitudes must be finite"),
    ],
)
def test_bad_arguments_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        PeriodicBias(4, **arguments)


def test_sandwich_needs_pairs():
    with pytest.raises(ValueError, match=r"dim \(7\) must be a multiple of 2"):
        sandwich_bias(4, dim=7)
