"""Rotary encodings of real time: exact seasons, and order and time together."""

import math
from decimal import Decimal
from fractions import Fraction

import pytest
import torch

from mmpos import Axial, Geometric, Given, Periods, RoPE, Seasons, Sections, Shared
from mmpos.factory import build

DAY, WEEK, YEAR = 86400, 604800, 31556952
NOW = 1_700_000_000


def seasons(period, number):
    return [k / Fraction(period) for k in range(1, number + 1)]


def expected(times, rates):
    """Cosine and sine ``(n, p)`` of turns per unit, reduced exactly."""
    turns = [[2 * math.pi * float(Fraction(time) * rate % 1) for rate in rates] for time in times[:, 0].tolist()]
    angles = torch.tensor(turns, dtype=torch.float64)
    return angles.cos(), angles.sin()


def check(rotation, want):
    for got, right in zip(rotation[:2], want, strict=True):
        torch.testing.assert_close(got.double(), right.expand_as(got), rtol=0, atol=1e-7)


def logits(rope, q, k, q_times, k_times):
    return rope(q_times).apply(q).double() @ rope(k_times).apply(k).double().mT


def test_pairs_turn_once_a_day_a_week_and_a_year():
    rope = RoPE(head_dim=16, rotary_dim=12, spectrum=Axial(series=Seasons((DAY, WEEK, YEAR), harmonics=2)))
    times = NOW + torch.randint(-(10**9), 10**9, (50, 1))
    rates = seasons(DAY, 2) + seasons(WEEK, 2) + seasons(YEAR, 2)
    check(rope(times), expected(times, rates))
    check(rope(times + 0.375), expected(times + 0.375, rates))


def test_logits_depend_on_the_difference_modulo_the_season():
    rope = RoPE(head_dim=8, spectrum=Axial(series=Seasons((DAY, WEEK), harmonics=(3, 1))))
    q, k = torch.randn(2, 3, 7, 8), torch.randn(2, 3, 9, 8)
    q_times, k_times = NOW + torch.randint(0, 10**7, (7, 1)), NOW + torch.randint(0, 10**7, (9, 1))
    here = logits(rope, q, k, q_times, k_times)
    for q_moved, k_moved in ((WEEK, 0), (0, -700 * WEEK), (5 * WEEK + 12345, 12345)):
        torch.testing.assert_close(logits(rope, q, k, q_times + q_moved, k_times + k_moved), here, rtol=0, atol=1e-5)
    assert (logits(rope, q, k, q_times + DAY, k_times) - here).abs().max() > 0.1
    assert torch.equal(rope(q_times + 52 * WEEK).cos, rope(q_times).cos)


def test_the_rest_of_the_pairs_has_a_series_of_its_own():
    rest = Periods(600, 100 * DAY)
    rope = RoPE(head_dim=20, spectrum=Axial(series=Seasons((DAY, WEEK), harmonics=(3, 2), rest=rest)))
    times = NOW + torch.randint(0, 10**7, (30, 1))
    ladder = [1 / Fraction(600 * (100 * DAY / 600) ** (i / 4)) for i in range(5)]
    got = rope(times)
    check((got.cos[..., :5], got.sin[..., :5]), expected(times, seasons(DAY, 3) + seasons(WEEK, 2)))
    torch.testing.assert_close(got.cos[..., 5:].double(), expected(times, ladder)[0][None], rtol=0, atol=1e-6)


def test_order_and_time_split_over_channels():
    series = Seasons((DAY, WEEK), harmonics=(3, 2), rest=Geometric(base=100.0))
    spectrum = Sections(sections=(5, 3), series=series)
    rope = RoPE(head_dim=16, axes=2, spectrum=spectrum)
    times, order = NOW + torch.randint(0, 10**7, (40, 1)), torch.arange(40)[:, None]
    got = rope(torch.cat([times, order], dim=-1))
    check((got.cos[..., :5], got.sin[..., :5]), expected(times, seasons(DAY, 3) + seasons(WEEK, 2)))
    angles = order.double() * torch.tensor([100 ** (-i / 3) for i in range(3)], dtype=torch.float64)
    check((got.cos[..., 5:], got.sin[..., 5:]), (angles.cos(), angles.sin()))
    spec = {
        "name": "RoPE",
        "axes": 2,
        "spectrum": {
            "name": "Sections",
            "sections": [5, 3],
            "series": {
                "name": "Seasons",
                "periods": [DAY, "6.048e5"],
                "harmonics": [3, 2],
                "rest": {"name": "Geometric", "base": 100},
            },
        },
    }
    built = build(spec, kind="rotary", head_dim=16)
    assert torch.equal(built(torch.cat([times, order], dim=-1)).cos, got.cos)


def test_order_and_time_summed():
    coords = torch.stack([torch.randint(0, 10**5, (30,)), torch.arange(30)], dim=-1)
    day, order = Seasons(86.4, harmonics=4).freqs(4), Geometric(base=50.0).freqs(4)
    given = RoPE(head_dim=8, axes=2, spectrum=Given((day, order)))
    rates = [[2 * math.pi * k / 86.4 for k in range(1, 5)], [50 ** (-i / 4) for i in range(4)]]
    rates = torch.tensor(rates, dtype=torch.float64)
    angles = coords.double() @ rates
    check(given(coords), (angles.cos(), angles.sin()))
    # The sum of the angles is one turn after the other.
    q = torch.randn(3, 30, 8)
    one, other = RoPE(8, spectrum=Given((day,))), RoPE(8, spectrum=Given((order,)))
    both = other(coords[:, 1:]).apply(one(coords[:, :1]).apply(q))
    torch.testing.assert_close(given(coords).apply(q), both, rtol=0, atol=1e-6)
    # With one ladder for both, hours count as many steps.
    shared = build({"name": "RoPE", "axes": 2, "spectrum": {"name": "Shared"}}, kind="rotary", head_dim=8)
    assert torch.equal(shared(coords).cos, RoPE(8)(coords.sum(-1, keepdim=True)).cos)
    assert isinstance(shared.spectrum, Shared)
    spec = {"name": "RoPE", "axes": 2, "spectrum": {"name": "Given", "freqs": [day, order]}}
    assert torch.equal(build(spec, kind="rotary", head_dim=8)(coords).sin, given(coords).sin)


def test_order_and_time_split_over_heads():
    day, order, still = Seasons(DAY, harmonics=4).freqs(4), Geometric().freqs(4), [0.0] * 4
    coords = torch.stack([NOW + torch.randint(0, 10**6, (30,)), torch.arange(30)], dim=-1)
    heads = [[day, still], [day, still], [still, order]]
    spec = {"name": "RoPE", "axes": 2, "spectrum": {"name": "Given", "freqs": heads}}
    rope = build(spec, kind="rotary", head_dim=8, num_heads=3)
    got = rope(coords)
    assert got.cos.shape == (3, 30, 4)
    check((got.cos[:2], got.sin[:2]), expected(coords[:, :1], seasons(DAY, 4)))
    angles = coords[:, 1:].double() * torch.tensor([10000 ** (-i / 4) for i in range(4)], dtype=torch.float64)
    check((got.cos[2], got.sin[2]), (angles.cos(), angles.sin()))


def test_in_yaml():
    series = {"name": "Seasons", "periods": [DAY, WEEK, YEAR], "harmonics": 4}
    spec = {"name": "RoPE", "rotary_dim": 24, "spectrum": {"name": "Axial", "series": series}}
    rope = build(spec, kind="rotary", dim=96, num_heads=3)
    assert rope.spectrum == Axial(series=Seasons((DAY, WEEK, YEAR), harmonics=4))
    assert rope(torch.tensor([[NOW]])).cos.shape == (1, 1, 12)
    assert Seasons([24, 168]) == Seasons((24, 168))
    assert Seasons(24) == Seasons((24,))
    assert Seasons(Decimal(24)).freqs(1) == Seasons(24).freqs(1)


@pytest.mark.parametrize(
    "make, error, message",
    [
        (lambda: Seasons(()), ValueError, r"periods must not be empty, got \(\)"),
        (lambda: Seasons((24, -1)), ValueError, "periods must be positive and finite, got -1"),
        (lambda: Seasons(("day",)), TypeError, "periods must be numbers, got 'day'"),
        (lambda: Seasons((24, 168), harmonics=(1,)), ValueError, "harmonics must be one number or one for each of 2 p"),
        (lambda: Seasons(24, harmonics=0), ValueError, "harmonics must be positive, got 0"),
        (lambda: Seasons(24, rest=10.0), TypeError, "rest must be a series such as Periods or Geometric, got 10.0"),
        (lambda: Seasons((24, 168), 2).pairs(3), ValueError, "Seasons has 4 waves, but there are 3 pairs$"),
        (lambda: Seasons(24, 2, Geometric()).pairs(1), ValueError, "Seasons has 2 waves, but there are 1 pairs$"),
        (
            lambda: RoPE(64, spectrum=Axial(series=Seasons(24, 2))),
            ValueError,
            "Seasons has 2 waves, but there are 32 pairs; name a series for the rest of them, or turn 4 channels",
        ),
    ],
)
def test_bad_arguments_are_named(make, error, message):
    with pytest.raises(error, match=message):
        make()
