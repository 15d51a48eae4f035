"""Biases on real time: whole seconds of today and hours in fractions, against formulas in exact numbers."""

import math
from bisect import bisect_right
from fractions import Fraction

import pytest
import torch
from torch import nn

from mmpos import FIRE, ALiBi, GroupBias, PeriodicBias, T5Bias, time_coords

HOUR, DAY, WEEK = 3600, 86400, 604800
NOW = 1_700_000_000

SECONDS = (NOW + torch.randint(0, 10**8, (13,), generator=torch.Generator().manual_seed(0))).sort().values
SECONDS[5] = SECONDS[4] + 1  # neighbours that float32 cannot tell apart
COORDS = {
    "seconds since 1970": (time_coords(SECONDS), 1),
    "hours since 1970": (time_coords(SECONDS, per="h"), HOUR),
    "hours since an origin": (time_coords(SECONDS, origin=NOW, per="h"), HOUR),
}
TIMES = SECONDS.tolist()


@pytest.fixture(params=COORDS, ids=[name.replace(" ", "-") for name in COORDS])
def times(request):
    """Coordinates and the seconds in their unit."""
    return COORDS[request.param]


def pairwise(function):
    """``(h, q, k)`` in float64 of a function of the seconds of query and key that gives a number for each head."""
    rows = [[function(q, k) for k in TIMES] for q in TIMES[3:]]
    return torch.tensor(rows, dtype=torch.float64).permute(2, 0, 1)


def check(bias, coords, function, rtol=1e-6, atol=1e-6):
    got = bias(coords[3:], coords)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), pairwise(function), rtol=rtol, atol=atol)


def test_alibi_by_the_hour(times):
    coords, unit = times
    bias = ALiBi(4, per=HOUR / unit)
    slopes = [0.25, 0.0625, 2**-6, 2**-8]
    check(bias, coords, lambda q, k: [-slope * abs(q - k) / HOUR for slope in slopes], atol=0)


def test_buckets_of_minutes_hours_and_days(times):
    coords, unit = times
    edges = [0.5, 60, HOUR + 0.5, DAY + 0.5, WEEK + 0.5, 100 * DAY + 0.5]
    bias = T5Bias(3, boundaries=[edge / unit for edge in edges])
    weight = bias.weight.detach().double()

    def row(q, k):
        bucket = bisect_right(edges, abs(q - k)) + (7 if k > q else 0)
        return weight[bucket].tolist()

    check(bias, coords, row, atol=0, rtol=0)


def test_logarithmic_buckets_up_to_years():
    bias = T5Bias(3, num_buckets=64, max_distance=4 * 365 * DAY)
    weight = bias.weight.detach().double()

    def row(q, k):
        step = abs(q - k)
        share = 0 if step < 16 else math.log(step / 16) / math.log(4 * 365 * DAY / 16) * 16
        bucket = step if step < 16 else min(16 + math.floor(share), 31)
        return weight[bucket + (32 if k > q else 0)].tolist()

    check(bias, time_coords(SECONDS), row, atol=0, rtol=0)


def test_fire_of_shares_of_the_way(times):
    coords, unit = times
    fire = FIRE(3, hidden=5, threshold=24 * HOUR / unit)
    state = {name: value.detach().double() for name, value in fire.state_dict().items()}
    c, threshold = state["log_c"].exp().item(), state["log_threshold"].exp().item()
    first = coords.double()[0, 0].item() - TIMES[0] / unit  # minus the origin

    def row(q, k):
        reach = max(threshold, *(abs(time / unit + first) for time in (q, k)))
        share = math.log1p(c * abs(q - k) / unit) / math.log1p(c * reach)
        hidden = (state["first.weight"][:, 0] * share + state["first.bias"]).clamp(min=0)
        return ((state["last.weight"] * hidden).sum(-1) + state["last.bias"]).tolist()

    check(fire, coords, row)


def test_seasons_of_a_day_and_a_week(times):
    coords, unit = times
    bias = PeriodicBias(3, (DAY / unit, WEEK / unit), harmonics=(3, 2))
    nn.init.normal_(bias.amplitudes)
    amplitudes = bias.amplitudes.detach().double()
    rates = [*(k / Fraction(DAY) for k in (1, 2, 3)), *(k / Fraction(WEEK) for k in (1, 2))]

    def row(q, k):
        waves = [math.cos(2 * math.pi * float((q - k) * rate % 1)) for rate in rates]
        return (amplitudes * torch.tensor(waves, dtype=torch.float64)).sum(-1).tolist()

    check(bias, coords, row)


def test_groups_beside_time(times):
    coords, _ = times
    variates = torch.arange(len(coords)) % 4
    bias = GroupBias(3, axes=2, axis=0)
    weight = bias.weight.detach().double()
    both = torch.cat([variates[:, None].to(coords.dtype), coords], dim=-1)
    variate = dict(zip(TIMES, variates.tolist(), strict=True))
    check(bias, both, lambda q, k: weight[int(variate[q] == variate[k])].tolist(), atol=0, rtol=0)


def test_what_depends_on_differences_is_the_same_in_every_window():
    for make in (lambda: ALiBi(4, per=HOUR), lambda: T5Bias(4, boundaries=[60, HOUR]), lambda: PeriodicBias(4, DAY)):
        bias = make()
        here, later = (bias(time_coords(SECONDS + shift), time_coords(SECONDS + shift)) for shift in (0, 10 * WEEK))
        torch.testing.assert_close(later, here, rtol=0, atol=1e-6)
