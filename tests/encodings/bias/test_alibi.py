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


def mixed_reference(slopes, q_coords, k_coords, metric, per):
    """Minus slope times the distance of each pair, in Python's floats."""
    norms = {"sum": sum, "euclidean": lambda sizes: math.sqrt(sum(s * s for s in sizes)), "max": max}
    return torch.tensor(
        [
            [
                [-slope * norms[metric]([abs(a - b) / u for a, b, u in zip(q, k, per, strict=True)]) for k in k_coords]
                for q in q_coords
            ]
            for slope in slopes
        ],
        dtype=torch.float64,
    )


@pytest.mark.parametrize("metric", ["sum", "euclidean", "max"])
@pytest.mark.parametrize("per", [(1.0, 1.0, 1.0), (0.5, 7.0, 30.25)])
def test_metrics_and_units(metric, per):
    q_coords, k_coords = torch.randint(-90, 90, (5, 3)), torch.randint(-90, 90, (4, 3))
    slopes = (0.7, 0.0, 3.0)
    for shift in (0, 0.25):
        q, k = (q_coords + shift, k_coords) if shift else (q_coords, k_coords)
        got = ALiBi(3, axes=3, metric=metric, per=per, slopes=slopes)(q.double() if shift else q, k)
        want = mixed_reference(slopes, q.tolist(), k.tolist(), metric, per)
        torch.testing.assert_close(got.double(), want, atol=1e-12, rtol=2e-7)


def test_one_unit_is_for_all_axes():
    coords = torch.randint(0, 10**9, (7, 2))
    assert torch.equal(ALiBi(4, axes=2, per=60)(coords, coords), ALiBi(4, axes=2, per=(60, 60))(coords, coords))
    hours = ALiBi(4, per=3600)(coords[:, :1], coords[:, :1])
    torch.testing.assert_close(
        hours, ALiBi(4)(coords[:, :1].double() / 3600, coords[:, :1].double() / 3600), atol=0, rtol=2e-7
    )


@pytest.mark.parametrize("num_heads, max_bias", [(8, 16), (12, 5.5), (1, 3)])
def test_the_largest_exponent(num_heads, max_bias):
    got = -ALiBi(num_heads, max_bias=max_bias)(torch.tensor([[0]]), torch.tensor([[1]]))[:, 0, 0].double()
    want = [2.0 ** (float(e) * max_bias / 8) for e in slope_exponents(num_heads)]
    torch.testing.assert_close(got, torch.tensor(want, dtype=torch.float64), atol=0, rtol=6e-8)


@pytest.mark.parametrize("learned", [False, True])
def test_no_key_is_rewarded_for_lying_ahead(learned):
    q_coords = torch.tensor([[0.0], [-70.5], [1e9]], dtype=torch.float64)
    k_coords = q_coords + torch.tensor([-1e9, -3.25, 0, 3.25, 1e9], dtype=torch.float64)[:, None, None]
    bias = ALiBi(6, learned=learned)(q_coords, k_coords[:, 1])
    assert (bias <= 0).all()
    for q, k in zip(q_coords, k_coords.unbind(1), strict=True):
        row = ALiBi(6, learned=learned)(q[None], k)[:, 0]
        assert torch.equal(row, row.flip(-1))
        assert (row[:, 2:].diff() < 0).all()


@pytest.mark.parametrize("metric", ["sum", "euclidean", "max"])
@pytest.mark.parametrize("learned", [False, True])
def test_finite_coordinates_have_finite_biases(metric, learned):
    alibi = ALiBi(3, axes=2, metric=metric, learned=learned, slopes=(50.0, 1.0, 0.1))
    far = torch.tensor([[1e308, -1e308], [-1e308, 1e308], [3e38, 0.0], [0.0, 0.0]], dtype=torch.float64)
    whole = torch.tensor([[2**61, 0], [-(2**61), 2**60], [0, 0]])
    for coords in (far.requires_grad_(), far.detach().float().clamp(-3e38, 3e38), whole):
        bias = alibi(coords, coords)
        assert bias.isfinite().all()
        assert (bias.diagonal(dim1=-2, dim2=-1) == 0).all()
    alibi(far, far).sum().backward()
    assert far.grad.isfinite().all()


def test_timestamps_in_nanoseconds_on_either_side_of_the_epoch():
    year = 365 * 86400 * 10**9
    times = torch.tensor([[-70 * year], [55 * year], [55 * year + 1]])
    bias = ALiBi(8, per=1e9)(times, times)[0].double()
    assert bias[2, 1] == bias[1, 2] == -torch.tensor(0.5e-9).double()
    torch.testing.assert_close(
        bias[0, 1], torch.tensor(-0.5 * 125 * 365 * 86400, dtype=torch.float64), rtol=6e-8, atol=0
    )


def test_learned_slopes_start_as_published_and_stay_positive():
    alibi = ALiBi(12, learned=True)
    coords = sequence_coords(30)
    assert [name for name, _ in alibi.named_parameters()] == ["exponents"] == list(alibi.no_weight_decay())
    torch.testing.assert_close(alibi(coords, coords), ALiBi(12)(coords, coords), atol=0, rtol=3e-7)
    with torch.no_grad():
        alibi.exponents -= 60
    assert (alibi(coords[:1], coords[1:]) < 0).all()
    alibi.reset_parameters()
    torch.testing.assert_close(alibi(coords, coords), ALiBi(12)(coords, coords), atol=0, rtol=3e-7)


def test_learned_slopes_that_are_given():
    alibi = ALiBi(3, learned=True, slopes=(3.0, 0.3, 0.03))
    got = -alibi(torch.tensor([[0]]), torch.tensor([[10]]))[:, 0, 0]
    torch.testing.assert_close(got, torch.tensor([30.0, 3.0, 0.3]), atol=0, rtol=3e-7)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_learned_slopes_stay_in_float32(dtype):
    alibi = ALiBi(12, learned=True)
    with torch.no_grad():
        alibi.exponents += 1e-4  # what half precision could not hold
    coords = sequence_coords(4096)[::63]
    want = alibi(coords, coords)
    cast = nn.Sequential(copy.deepcopy(alibi), nn.Linear(2, 2)).to(dtype)[0]
    assert cast.exponents.dtype == torch.float32
    assert torch.equal(cast(coords, coords), want)
    assert alibi.double()(coords, coords).dtype == torch.float32


@pytest.mark.parametrize("learned", [False, True])
def test_slopes_are_float32_in_models_built_in_half_precision(learned):
    coords = sequence_coords(300)
    want = ALiBi(12, learned=learned)(coords, coords)
    torch.set_default_dtype(torch.bfloat16)
    try:
        alibi = ALiBi(12, learned=learned)
        got = alibi(coords, coords), alibi.factors(coords, coords, ordered=True)
        score = alibi.score(torch.tensor(9), coords[7], coords[299])
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(got[0], want)
    assert torch.equal(score, want[9, 7, 299])
    assert {part.dtype for part in got[1]} == {torch.float32}


def test_gradients_reach_learned_slopes():
    alibi = ALiBi(3, learned=True, slopes=(2.0, 0.5, 0.1))
    coords = torch.tensor([[0], [3], [10]])
    weight = torch.randn(3, 3, 3, dtype=torch.float64)
    (alibi(coords, coords) * weight).sum().backward()
    slopes = torch.tensor([2.0, 0.5, 0.1], dtype=torch.float64, requires_grad=True)
    distance = (coords - coords.mT).abs().double()
    (-slopes[:, None, None] * distance * weight).sum().backward()
    want = slopes.grad * slopes.detach() * math.log(2)  # d slope / d exponent
    torch.testing.assert_close(alibi.exponents.grad.double(), want, atol=1e-6, rtol=1e-6)


def causal_softmax(logits):
    return logits.masked_fill(~torch.ones(logits.shape[-2:], dtype=torch.bool).tril(), -math.inf).softmax(-1)


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("axes", [1, 3])
def test_factors_are_the_bias_after_a_causal_softmax(axes, learned):
    steps = torch.randint(0, 9, (2, 300, axes))
    coords = steps.cumsum(1) + torch.tensor([-4000, 77])[:, None, None]
    alibi = ALiBi(6, axes=axes, per=[2.0, 1.0, 0.5][:axes], learned=learned)
    left, right = alibi.factors(coords, coords, ordered=True)
    assert (left.dtype, right.dtype) == (torch.float32, torch.float32)
    assert left.shape == (2, 6, 300, 1)
    assert right.shape == (2, 1, 300, 1)
    got = causal_softmax(left.double() @ right.double().mT)
    want = causal_softmax(alibi(coords, coords).double())
    torch.testing.assert_close(got, want, atol=1e-4, rtol=0)


@pytest.mark.parametrize("per", [1.0, 3600.0])
@pytest.mark.parametrize("fraction", [False, True])
def test_factors_of_timestamps_are_within_the_bound(per, fraction):
    times = 1_700_000_000 + torch.randint(0, 1000, (2, 700, 1)).cumsum(1)
    times = times + torch.rand(2, 700, 1, dtype=torch.float64) if fraction else times
    alibi = ALiBi(5, per=per)
    left, right = alibi.factors(times, times, ordered=True)
    slopes = torch.tensor([2.0 ** float(e) for e in slope_exponents(5)], dtype=torch.float64)[:, None, None]
    past = -slopes * ((times - times.mT) / per)[:, None]
    off = (left @ right.mT).double() - past
    spread = off.amax(-1) - off.amin(-1)  # what is not the same for all keys of a query
    span = (times.amax(-2) - times.amin(-2))[:, None] / per
    assert (spread <= 2 * 2.0**-22 * slopes[..., 0] * span).all()


def test_factors_of_long_sequences_build_no_matrix_of_pairs():
    coords = sequence_coords(8192)
    left, right = ALiBi(32).factors(coords, coords, ordered=True)
    assert left.expand(32, 8192, 1).numel() + right.numel() <= 33 * 8192


@pytest.mark.parametrize(
    "arguments, ordered", [({}, False), ({"metric": "max"}, True), ({"metric": "euclidean"}, True)]
)
def test_what_is_no_inner_product_has_no_factors(arguments, ordered):
    coords = grid_coords(3, 4)
    assert ALiBi(4, axes=2, **arguments).factors(coords, coords, ordered=ordered) is None


@pytest.mark.parametrize("metric", ["sum", "max", "euclidean"])
def test_on_one_axis_all_metrics_have_factors(metric):
    coords = sequence_coords(9, offset=100)
    left, right = ALiBi(4, metric=metric).factors(coords[3:], coords, ordered=True)
    got = (left @ right.mT).expand(4, 6, 9)
    want = ALiBi(4)(coords[3:], coords)
    difference = (got - want).masked_fill(torch.arange(9) > torch.arange(3, 9)[:, None], math.nan)
    assert torch.equal(difference.nan_to_num(0), difference[..., :1].expand(4, 6, 9).where(~difference.isnan(), 0))


def test_rows_of_a_batch_have_factors_of_their_own():
    now = 1_700_000_000
    coords = torch.tensor([[[now], [now + 1], [now + 7]], [[0], [2], [3]]])
    left, right = ALiBi(4).factors(coords, coords, ordered=True)
    for row in range(2):
        alone = ALiBi(4).factors(coords[row], coords[row], ordered=True)
        assert torch.equal(left.expand(2, 4, 3, 1)[row], alone[0].expand(4, 3, 1))
        assert torch.equal(right[row], alone[1])


def test_factors_of_unknown_coordinates_are_nan_for_their_token():
    coords = torch.tensor([[5.0], [math.nan], [6.0], [math.inf], [7.5]])
    left, right = ALiBi(4).factors(coords, coords, ordered=True)
    bias = left @ right.mT
    assert torch.equal(bias.isnan(), ALiBi(4)(coords, coords).isnan())
    assert torch.equal(bias[0, 0, [0, 2]].diff(), torch.tensor([0.25]))


def test_factors_of_far_coordinates_are_finite():
    coords = torch.tensor([[-1e308], [-1e39], [0.0], [1e39], [1e308]], dtype=torch.float64)
    left, right = ALiBi(4).factors(coords, coords, ordered=True)
    assert left.isfinite().all()
    assert right.isfinite().all()
    assert right[0, -1] == 0
    left, right = ALiBi(4).factors(coords[:0], coords, ordered=True)
    assert (left.shape, right.shape) == ((4, 0, 1), (1, 5, 1))


def test_gradients_through_factors_are_those_of_the_bias():
    value = torch.randn(5, 3)
    grads = []
    for use_factors in (False, True):
        alibi = ALiBi(4, learned=True)
        coords = torch.tensor([[0.0], [0.5], [2.0], [2.25], [9.0]], dtype=torch.float64, requires_grad=True)
        if use_factors:
            left, right = alibi.factors(coords, coords, ordered=True)
            logits = left.double() @ right.double().mT
        else:
            logits = alibi(coords, coords).double()
        (causal_softmax(logits) @ value.double()).square().sum().backward()
        grads.append((alibi.exponents.grad.double(), coords.grad))
    torch.testing.assert_close(grads[1], grads[0], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_positions_in_half_precision_are_refused(dtype):
    coords = torch.arange(255, 259, dtype=dtype)[:, None]
    with pytest.raises(TypeError, match=f"q_coords must not be in half precision, got {dtype}"):
        ALiBi(4)(coords, coords)
    with pytest.raises(TypeError, match="k_coords must not be in half precision"):
        ALiBi(4).factors(coords.double(), coords, ordered=True)


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ({"num_heads": 0}, ValueError, "num_heads must be positive, got 0"),
        ({"num_heads": 4.0}, TypeError, "num_heads must be an integer, got 4.0"),
        ({"num_heads": 4, "axes": -1}, ValueError, "axes must be positive, got -1"),
        ({"num_heads": 4, "metric": "taxi"}, ValueError, "metric must be one of sum, euclidean, max, got 'taxi'"),
        ({"num_heads": 4, "per": 0}, ValueError, "per must be positive and finite, got 0"),
        ({"num_heads": 4, "per": (1, 2)}, ValueError, "per must be one number for all axes or one for each of 1"),
        ({"num_heads": 4, "per": "h"}, TypeError, "per must be a number or a sequence of them, got 'h'"),
        ({"num_heads": 4, "max_bias": -8}, ValueError, "max_bias must be positive and finite, got -8"),
        ({"num_heads": 2, "slopes": (1, 2, 3)}, ValueError, "slopes must be one for each of 2 heads, got 3"),
        ({"num_heads": 2, "slopes": (1, -2)}, ValueError, "slopes must be finite and not negative, got -2"),
        ({"num_heads": 2, "slopes": (1, 0), "learned": True}, ValueError, "slopes must be positive where they are lea"),
        ({"num_heads": 2, "slopes": (1, 2), "max_bias": 4}, ValueError, "give slopes or max_bias, not both"),
    ],
)
def test_bad_arguments_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        ALiBi(**arguments)
