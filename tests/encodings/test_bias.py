import copy
import math
from fractions import Fraction

import pytest
import torch
from torch import nn

from mmpos import ALiBi, attention, grid_coords, padded_coords, sequence_coords


def slope_exponents(num_heads):
    """Exponents of two by the paper: a geometric series that starts at its own ratio, others interleaved."""
    power = 1
    while 2 * power <= num_heads:
        power *= 2
    exponents = [Fraction(-8 * (i + 1), power) for i in range(power)]
    between = [Fraction(-8 * (i + 1), 2 * power) for i in range(0, 2 * power, 2)]
    return exponents + between[: num_heads - power]


def reference(num_heads, q_coords, k_coords):
    """Minus slope times the sum over axes of absolute differences, in float64."""
    slopes = torch.tensor([2.0 ** float(e) for e in slope_exponents(num_heads)], dtype=torch.float64)
    distance = (q_coords[..., :, None, :] - k_coords[..., None, :, :]).abs().sum(-1).double()
    return -slopes[:, None, None] * distance[..., None, :, :]


@pytest.mark.parametrize("num_heads", range(1, 65))
def test_slopes_are_the_published_ones(num_heads):
    got = -ALiBi(num_heads)(torch.tensor([[0]]), torch.tensor([[1]]))[:, 0, 0]
    want = torch.tensor([2.0 ** float(e) for e in slope_exponents(num_heads)], dtype=torch.float64)
    assert got.dtype == torch.float32
    assert torch.equal(got, want.float())


@pytest.mark.parametrize(
    "num_heads, exponents",
    [
        (3, [-4, -8, -2]),
        (6, [-2, -4, -6, -8, -1, -3]),
        (8, [-1, -2, -3, -4, -5, -6, -7, -8]),
        (12, [-1, -2, -3, -4, -5, -6, -7, -8, -0.5, -1.5, -2.5, -3.5]),
    ],
)
def test_slopes_of_the_head_counts_that_others_got_wrong(num_heads, exponents):
    got = -ALiBi(num_heads)(torch.tensor([[0]]), torch.tensor([[1]]))[:, 0, 0]
    assert torch.equal(got, torch.tensor([2.0**e for e in exponents], dtype=torch.float64).float())


def test_far_keys_are_penalised_and_near_ones_are_not():
    bias = ALiBi(num_heads=8)(torch.tensor([[4]]), sequence_coords(5))
    assert bias[0, 0].tolist() == [-2.0, -1.5, -1.0, -0.5, 0.0]


def test_the_bias_is_symmetric_without_a_causal_mask():
    coords = sequence_coords(5)
    bias = ALiBi(num_heads=6)(coords, coords)
    assert torch.equal(bias, bias.mT)
    torch.testing.assert_close(bias.double(), reference(6, coords, coords), atol=1e-7, rtol=0)


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("num_heads", [4, 12])
def test_distance_is_the_sum_over_axes(axes, num_heads):
    q_coords = torch.randint(-500, 500, (2, 7, axes))
    k_coords = torch.randint(-500, 500, (2, 300, axes))
    got = ALiBi(num_heads, axes=axes)(q_coords, k_coords)
    assert got.shape == (2, num_heads, 7, 300)
    torch.testing.assert_close(got.double(), reference(num_heads, q_coords, k_coords), atol=0, rtol=1.2e-7)


def test_rows_of_a_batch_have_their_own_coordinates():
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]], dtype=torch.bool)
    coords = padded_coords(mask)
    bias = ALiBi(num_heads=4)(coords, coords)
    for row in range(2):
        assert torch.equal(bias[row], ALiBi(num_heads=4)(coords[row], coords[row]))
    assert torch.equal(bias[0, :, 2:, 2:], bias[1, :, :3, :3])


def test_bias_depends_on_differences_only():
    q_coords, k_coords, shift = sequence_coords(4, offset=3), sequence_coords(9), 10**12
    alibi = ALiBi(num_heads=4)
    assert torch.equal(alibi(q_coords + shift, k_coords + shift), alibi(q_coords, k_coords))
    assert torch.equal(alibi(q_coords.double() + 2**30, k_coords.double() + 2**30), alibi(q_coords, k_coords))


def test_far_neighbours_stay_apart():
    # In bfloat16, 4095 and 4096 positions away would be one distance.
    alibi = ALiBi(num_heads=8).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        bias = alibi(torch.tensor([[131071]]), torch.tensor([[131071 - 4095], [131071 - 4096], [131071 - 4097], [0]]))
    assert bias.dtype == torch.float32
    assert bias[0, 0].tolist() == [-2047.5, -2048.0, -2048.5, -131071 / 2]
    assert bias[7, 0].tolist() == [-d / 256 for d in (4095, 4096, 4097, 131071)]


def test_timestamps_a_second_apart_in_a_century():
    now = 1_767_225_600.0
    times = torch.tensor([[now - 3.15e9], [now - 1.5], [now - 0.001], [now]], dtype=torch.float64)
    bias = ALiBi(num_heads=8)(times[3:], times)[0, 0].double()
    torch.testing.assert_close(bias, -(times[3] - times[:, 0]) / 2, atol=0, rtol=6e-8)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.float32, torch.float64])
def test_a_whole_number_has_the_same_bias_in_every_dtype(dtype):
    coords = torch.tensor([[0, 120], [100, 3], [127, 127]])
    want = ALiBi(4, axes=2)(coords, coords)
    assert torch.equal(ALiBi(4, axes=2)(coords.to(dtype), coords.to(dtype)), want)


def test_distances_of_small_integers_do_not_wrap():
    coords = torch.tensor([[-30000], [30000]])
    got = ALiBi(8)(coords.to(torch.int16), coords.to(torch.int16))
    assert torch.equal(got, ALiBi(8)(coords, coords))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_coordinates_that_are_no_numbers_give_nan_for_their_token(bad):
    q_coords, k_coords = torch.tensor([[0.0], [bad]]), torch.tensor([[1.0], [bad], [2.0]])
    bias = ALiBi(4)(q_coords, k_coords)
    assert bias[:, 1].isnan().all()
    assert bias[:, :, 1].isnan().all()
    assert bias[:, 0, [0, 2]].isfinite().all()


@pytest.mark.parametrize("change", [nn.Module.half, nn.Module.bfloat16, nn.Module.double, copy.deepcopy, torch.compile])
def test_the_same_bits_in_a_model_of_any_dtype_and_compiled(change):
    coords = grid_coords(3, 50, origin=(7, 4000))
    alibi = ALiBi(num_heads=12, axes=2)
    assert torch.equal(change(alibi)(coords, coords), alibi(coords, coords))
    assert not alibi.state_dict()


def test_score_is_one_entry_of_the_bias():
    alibi = ALiBi(num_heads=6, axes=2)
    q_coords, k_coords = grid_coords(2, 3, origin=4000), grid_coords(3, 2)
    dense = alibi(q_coords, k_coords)
    scores = [[[alibi.score(torch.tensor(h), q, k) for k in k_coords] for q in q_coords] for h in range(6)]
    assert torch.equal(torch.stack([torch.stack([torch.stack(row) for row in head]) for head in scores]), dense)


def test_gradients_reach_real_coordinates():
    q_coords = torch.tensor([[0.5], [3.0]], dtype=torch.float64, requires_grad=True)
    k_coords = torch.tensor([[1.0], [2.0], [-7.25]], dtype=torch.float64, requires_grad=True)
    ALiBi(2)(q_coords, k_coords).sum().backward()
    sign = (q_coords - k_coords.mT).detach().sign()
    slopes = 2.0**-4 + 2.0**-8
    torch.testing.assert_close(q_coords.grad, -slopes * sign.sum(1, keepdim=True), atol=1e-7, rtol=0)
    torch.testing.assert_close(k_coords.grad, slopes * sign.sum(0)[:, None], atol=1e-7, rtol=0)


def test_causal_attention_may_drop_what_is_constant_in_a_row():
    # Bloom and MPT bias by the key's position alone: the same after a causal softmax, and only there.
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 4, 9, 8) for _ in range(3))
    coords, alibi = sequence_coords(9), ALiBi(num_heads=4)
    by_key = -alibi(torch.tensor([[0]]), coords).expand(4, 9, 9)
    causal = attention(q, k, v, bias=alibi, q_coords=coords, is_causal=True)
    torch.testing.assert_close(attention(q, k, v, bias=by_key, is_causal=True), causal, atol=2e-6, rtol=0)
    both = attention(q, k, v, bias=alibi, q_coords=coords)
    assert not torch.allclose(attention(q, k, v, bias=by_key), both, atol=1e-2)


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ({"num_heads": 0}, ValueError, "num_heads must be positive, got 0"),
        ({"num_heads": 4.0}, TypeError, "num_heads must be an integer, got 4.0"),
        ({"num_heads": 4, "axes": -1}, ValueError, "axes must be positive, got -1"),
    ],
)
def test_bad_arguments_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        ALiBi(**arguments)
