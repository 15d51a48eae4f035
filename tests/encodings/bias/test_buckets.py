import copy
import math
from decimal import Decimal, localcontext
from functools import cache

import pytest
import torch
from torch import nn

from mmpos import grid_coords, sequence_coords
from mmpos.encodings.bias.buckets import T5Bias


@cache
def exact_bucket(distance, num_buckets, max_distance):
    """The bucket of a distance by T5's formula in 50 digits, for one direction."""
    exact = num_buckets // 2
    if distance < exact:
        return math.floor(distance)
    with localcontext(prec=50):
        share = (Decimal(distance) / exact).ln() / (Decimal(max_distance) / exact).ln() * (num_buckets - exact)
        whole = share.to_integral_value()
        share = whole if abs(share - whole) < Decimal("1e-30") else share  # a logarithm's last digit
        return min(exact + math.floor(share), num_buckets - 1)


def reference_bucket(step, num_buckets, max_distance, bidirectional):
    """The bucket of query minus key."""
    if not bidirectional:
        return exact_bucket(max(step, 0), num_buckets, max_distance)
    half = num_buckets // 2
    return exact_bucket(abs(step), half, max_distance) + (half if step < 0 else 0)


SETTINGS = [(32, 128), (8, 20), (64, 800.5), (320, 800), (14, 2000), (2, 3), (5, 2.5), (10, 160)]


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("num_buckets, max_distance", SETTINGS)
def test_buckets_are_those_of_the_formula(num_buckets, max_distance, bidirectional):
    num_buckets *= 2 if bidirectional else 1
    bias = T5Bias(3, num_buckets, max_distance, bidirectional)
    steps = range(-2000, 2001)
    got = bias.bucket(torch.tensor([[0]]), torch.tensor(steps)[:, None].neg())[0, :, 0]
    assert got.tolist() == [reference_bucket(step, num_buckets, max_distance, bidirectional) for step in steps]


@pytest.mark.parametrize("bidirectional", [True, False])
def test_real_distances_lie_in_the_bucket_of_the_last_boundary_below(bidirectional):
    bias = T5Bias(3, 24, 300, bidirectional)
    steps = ((torch.rand(500, dtype=torch.float64) - 0.5) * torch.logspace(-1, 3.2, 500, dtype=torch.float64)).tolist()
    now = 1_700_000_000.0  # exact in float64 to 2.4e-7
    keys = torch.tensor(steps, dtype=torch.float64)[:, None]
    got = bias.bucket(torch.zeros(1, 1, dtype=torch.float64), -keys)[0, :, 0]
    assert got.tolist() == [reference_bucket(step, 24, 300, bidirectional) for step in steps]
    far = bias.bucket(torch.tensor([[now]], dtype=torch.float64), now - keys)[0, :, 0]
    assert (far != got).sum() <= 1


@pytest.mark.parametrize(
    "key, bucket", [(0, 0), (-1, 1), (1, 17), (-8, 8), (8, 24), (-127, 15), (127, 31), (-9999, 15), (9999, 31)]
)
def test_released_buckets_of_encoders(key, bucket):
    assert T5Bias(4).bucket(torch.tensor([[1000]]), torch.tensor([[1000 + key]])).item() == bucket


@pytest.mark.parametrize("key, bucket", [(0, 0), (-1, 1), (-16, 16), (-127, 31), (-9999, 31), (1, 0), (9999, 0)])
def test_released_buckets_of_decoders(key, bucket):
    bias = T5Bias(4, bidirectional=False)
    assert bias.bucket(torch.tensor([[1000]]), torch.tensor([[1000 + key]])).item() == bucket


@pytest.mark.parametrize("bidirectional", [True, False])
def test_the_bias_is_the_entry_of_the_bucket(bidirectional):
    bias = T5Bias(3, 12, 40, bidirectional)
    assert bias.weight.shape == (12, 3)
    q_coords, k_coords = torch.randint(0, 99, (2, 7, 1)), torch.randint(0, 99, (2, 5, 1))
    got = bias(q_coords, k_coords)
    assert got.dtype == torch.float32
    for row, (queries, keys) in enumerate(zip(q_coords, k_coords, strict=True)):
        for i, q in enumerate(queries.flatten().tolist()):
            for j, k in enumerate(keys.flatten().tolist()):
                assert torch.equal(got[row, :, i, j], bias.weight[reference_bucket(q - k, 12, 40, bidirectional)])


def test_axes_have_tables_of_their_own_that_add_up():
    bias = T5Bias(4, 8, 10, axes=2)
    assert bias.weight.shape == (16, 4)
    coords = grid_coords(3, 5)
    tall, wide = (T5Bias(4, 8, 10) for _ in range(2))
    with torch.no_grad():
        tall.weight.copy_(bias.weight[:8])
        wide.weight.copy_(bias.weight[8:])
    want = tall(coords[:, :1], coords[:, :1]) + wide(coords[:, 1:], coords[:, 1:])
    assert torch.equal(bias(coords, coords), want)
    assert not torch.equal(bias(coords, coords), bias(coords.flip(-1), coords.flip(-1)))


def test_boundaries_of_ones_own():
    minute, hour, day, week = 60, 3600, 86400, 604800
    bias = T5Bias(2, boundaries=(minute, hour, day, week))
    assert bias.num_buckets == len(bias.weight) == 10
    now = 1_700_000_000
    ages = [0, 59, 60, 3599, 3600, 86399, 86400, 604799, 604800, 10**9]
    keys = now - torch.tensor([ages]).mT
    got = bias.bucket(torch.tensor([[now]]), keys)[0, :, 0].tolist()
    assert got == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert bias.bucket(torch.tensor([[now]]), now + now - keys)[0, 1:, 0].tolist() == [g + 5 for g in got[1:]]
    assert bias.bucket(torch.tensor([[now]]), keys.double() + 0.5)[0, 2, 0] == 0


def test_boundaries_past_all_integers():
    bias = T5Bias(2, boundaries=(3.5, 1e30))
    coords = torch.tensor([[0], [3], [4], [2**62]])
    assert bias.bucket(coords[:1], coords)[0, :, 0].tolist() == [0, 3, 4, 4]
    assert bias.bucket(coords[:1], coords.double() * 1e12)[0, :, 0].tolist() == [0, 4, 4, 5]


def test_logarithmic_buckets_of_event_models():
    # HSTU bins seconds by floor(log(max(1, |dt|)) / 0.301).
    bias = T5Bias(2, boundaries=[math.exp(0.301 * b) for b in range(1, 129)], bidirectional=False)
    assert len(bias.weight) == 129
    ages = torch.cat([torch.arange(2000), (torch.rand(500) * 1e9).long()])
    want = [math.floor(math.log(max(1, age)) / 0.301) for age in ages.tolist()]
    assert bias.bucket(torch.tensor([[2 * 10**9]]), 2 * 10**9 - ages[:, None])[0, :, 0].tolist() == want


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_coordinates_that_are_no_numbers_give_nan_for_their_token(bad):
    q_coords, k_coords = torch.tensor([[0.0, 1.0], [2.0, bad]]), torch.tensor([[1.0, 3.0], [bad, 0.0], [2.0, 2.0]])
    got = T5Bias(3, axes=2)(q_coords, k_coords).isnan()
    assert torch.equal(got, torch.tensor([[False, True, False], [True, True, True]]).expand(3, 2, 3))


def test_gradients_count_the_pairs_in_a_bucket():
    bias = T5Bias(2, 8, 10, axes=2)
    coords = grid_coords(3, 5)
    grad = torch.randn(2, 15, 15)
    (bias(coords, coords) * grad).sum().backward()
    want = torch.zeros(16, 2)
    for i, q in enumerate(coords.tolist()):
        for j, k in enumerate(coords.tolist()):
            for axis in range(2):
                want[8 * axis + reference_bucket(q[axis] - k[axis], 8, 10, True)] += grad[:, i, j]
    torch.testing.assert_close(bias.weight.grad, want, atol=1e-5, rtol=0)


def test_results_are_float32_whatever_the_table_is():
    bias = T5Bias(3).bfloat16()
    coords = sequence_coords(300)
    assert bias.weight.dtype == torch.bfloat16
    rounded = copy.deepcopy(bias).float()
    with torch.autocast("cpu", torch.bfloat16):
        assert bias(coords, coords).dtype == torch.float32
        assert torch.equal(bias(coords, coords), rounded(coords, coords))


def test_the_bias_depends_on_differences_only():
    bias = T5Bias(3, 16, 50)
    q_coords, k_coords = torch.arange(70)[:, None], torch.arange(0, 200, 3)[:, None]
    for shift in (10**12, -(10**17)):
        assert torch.equal(bias(q_coords + shift, k_coords + shift), bias(q_coords, k_coords))


def test_a_table_starts_small_and_anew():
    bias = T5Bias(64, 512, 2000)
    torch.testing.assert_close(bias.weight.std(), torch.tensor(0.02), atol=5e-4, rtol=0)
    before = bias.weight.clone()
    bias.reset_parameters()
    assert not torch.equal(bias.weight, before)
    assert list(bias.no_weight_decay()) == ["weight"]
    assert isinstance(bias.weight, nn.Parameter)


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ({"num_heads": 0}, ValueError, "num_heads must be positive, got 0"),
        ({"num_heads": 4, "axes": 0}, ValueError, "axes must be positive, got 0"),
        ({"num_heads": 4, "num_buckets": 31}, ValueError, r"num_buckets \(31\) must be even where it is bidirectional"),
        ({"num_heads": 4, "num_buckets": 2}, ValueError, "num_buckets must be at least 2 for each direction, got 1"),
        ({"num_heads": 4, "max_distance": 8}, ValueError, r"max_distance \(8\) must be above half the buckets of a d"),
        ({"num_heads": 4, "max_distance": math.inf}, ValueError, r"max_distance \(inf\) must be above"),
        ({"num_heads": 4, "boundaries": (3, 2)}, ValueError, "boundaries must rise from above 0"),
        ({"num_heads": 4, "boundaries": (0, 2)}, ValueError, "boundaries must rise from above 0"),
        ({"num_heads": 4, "boundaries": (1, math.inf)}, ValueError, "boundaries must rise from above 0"),
        (
            {"num_heads": 4, "boundaries": (1, 2), "num_buckets": 8},
            ValueError,
            "give boundaries or num_buckets and max_d",
        ),
        ({"num_heads": 4, "boundaries": ()}, ValueError, "boundaries must rise from above 0"),
        ({"num_heads": 4, "boundaries": "12"}, TypeError, "boundaries must be numbers, got '12'"),
    ],
)
def test_bad_arguments_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        T5Bias(**arguments)
