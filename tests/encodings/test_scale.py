import math
import re

import mpmath
import pytest
import torch

from mmpos import attention, grid_coords, packed_coords, sequence_coords
from mmpos.encodings.scale import HeadScale, LogScale, SSMax


def exactly(function, *numbers):
    with mpmath.workdps(40):
        return float(function(*map(mpmath.mpf, numbers)))


def reference(n, train_length, coefficient=None, ratio="clamped"):
    """The definition for ``n`` keys, to the last bit of float64."""
    n = max(n, 1)
    coefficient = 1 / mpmath.log(train_length) if coefficient is None else mpmath.mpf(coefficient)
    r = {
        "clamped": max(mpmath.mpf(n) / train_length, 1),
        "plain": mpmath.mpf(n) / train_length,
        "stepped": math.floor(n / train_length) + 1,
    }[ratio]
    return exactly(lambda: 1 + coefficient * mpmath.log(r))


COUNTS = [0, 1, 2, 7, 8, 9, 15, 16, 17, 300, 4097, 2**20 + 1, 2**31 - 1]


@pytest.mark.parametrize("ratio", ["clamped", "plain", "stepped"])
@pytest.mark.parametrize("coefficient", [None, 0.1])
@pytest.mark.parametrize("train_length", [2, 8, 1000])
def test_log_scale_is_the_definition(train_length, coefficient, ratio):
    scale = LogScale(train_length, coefficient=coefficient, ratio=ratio)
    got = scale(sequence_coords(len(COUNTS)), visible=torch.tensor(COUNTS))
    want = [reference(n, train_length, coefficient, ratio) for n in COUNTS]
    assert (got.dtype, got.shape) == (torch.float32, (1, len(COUNTS)))
    torch.testing.assert_close(got[0].double(), torch.tensor(want, dtype=torch.float64), atol=1e-7, rtol=1e-7)


@pytest.mark.parametrize("n", [1, 511, 512, 513, 4096, 131072])
def test_by_default_it_is_the_logarithm_to_the_base_of_the_training_length(n):
    got = LogScale(512)(sequence_coords(1), visible=torch.tensor([n])).item()
    assert got == pytest.approx(max(math.log(n, 512), 1.0), abs=2e-7)
    got = LogScale(512, ratio="plain")(sequence_coords(1), visible=torch.tensor([n])).item()
    assert got == pytest.approx(math.log(n, 512), abs=2e-7)


def test_slopes_start_where_factors_are_1_on_average():
    ssmax = SSMax(num_heads=6)
    assert ssmax.slopes.shape == (6,)
    assert ssmax.slopes.tolist() == pytest.approx([1024 / sum(math.log(n) for n in range(1, 1025))] * 6, rel=1e-6)
    assert round(ssmax.slopes[0].item(), 3) == 0.168
    factors = SSMax(num_heads=2, train_length=50)(sequence_coords(50))
    torch.testing.assert_close(factors.mean(-1), torch.ones(2), atol=1e-6, rtol=0)


def test_ssmax_is_slope_times_logarithm():
    ssmax = SSMax(num_heads=3)
    with torch.no_grad():
        ssmax.slopes.copy_(torch.tensor([0.4, -1.0, 3.0]))
    got = ssmax(sequence_coords(len(COUNTS)), visible=torch.tensor(COUNTS))
    logs = torch.tensor([exactly(mpmath.log, max(n, 1)) for n in COUNTS], dtype=torch.float64)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), ssmax.slopes.double()[:, None] * logs, atol=0, rtol=2e-7)


def test_ssmax_is_a_softmax_to_the_base_of_the_number_of_keys():
    ssmax, keys = SSMax(num_heads=2), 11
    with torch.no_grad():
        ssmax.slopes.copy_(torch.tensor([0.4, 0.9]))
    q, k, v = torch.randn(2, 5, 8), torch.randn(2, keys, 8), torch.randn(2, keys, 8)
    got = attention(q, k, v, logit_scale=ssmax, q_coords=sequence_coords(5))
    powers = (float(keys) ** ssmax.slopes.double()[:, None, None]) ** (q.double() @ k.double().mT * 8**-0.5)
    torch.testing.assert_close(got.double(), powers / powers.sum(-1, keepdim=True) @ v.double(), atol=2e-6, rtol=0)


def test_head_scale_multiplies_the_logits_of_each_head():
    scale, keys = HeadScale(num_heads=2), 11
    q, k, v = torch.randn(2, 5, 8), torch.randn(2, keys, 8), torch.randn(2, keys, 8)
    coords = sequence_coords(5)
    torch.testing.assert_close(attention(q, k, v, logit_scale=scale, q_coords=coords), attention(q, k, v))
    with torch.no_grad():
        scale.factors.copy_(torch.tensor([0.4, 1.9]))
    got = attention(q, k, v, logit_scale=scale, q_coords=coords)
    logits = scale.factors.double()[:, None, None] * (q.double() @ k.double().mT * 8**-0.5)
    torch.testing.assert_close(got.double(), logits.softmax(-1) @ v.double(), atol=2e-6, rtol=0)


@pytest.mark.parametrize("make", [lambda: SSMax(3, train_length=8), lambda: LogScale(8)])
def test_without_a_count_of_keys_it_is_the_position_plus_one(make):
    coords, scale = sequence_coords(40, offset=5), make()
    assert torch.equal(scale(coords), scale(coords, visible=torch.arange(6, 46)))
    assert torch.equal(scale(coords.double()), scale(coords))
    assert torch.equal(scale(torch.tensor([[-7], [-1], [0]])), scale(torch.tensor([[0], [0], [0]])))


def test_a_position_counts_whatever_is_visible_if_asked():
    coords, visible = sequence_coords(40, offset=5), torch.full((40,), 3)
    scale = LogScale(8, by="position", ratio="stepped", coefficient=0.1)
    assert torch.equal(scale(coords, visible=visible), scale(coords))
    want = [reference(n, 8, 0.1, "stepped") for n in range(6, 46)]
    torch.testing.assert_close(scale(coords)[0].double(), torch.tensor(want, dtype=torch.float64), atol=1e-7, rtol=1e-7)


@pytest.mark.parametrize("scale", [LogScale(8, ratio="plain"), LogScale(8), SSMax(3), HeadScale(3)])
@pytest.mark.parametrize("coords", [grid_coords(2, 2)[:, :1], torch.tensor([[0.0], [math.nan], [math.inf], [-9.5]])])
def test_it_is_finite_without_keys_and_nan_without_a_position(scale, coords):
    for count in (0, 1):
        assert scale(coords, visible=torch.full((4,), count)).isfinite().all()
    assert torch.equal(scale(coords).isnan(), (~coords[:, 0].isfinite()).expand(len(scale(coords)), -1))


def test_attention_counts_causal_windowed_and_packed_keys():
    n, scale = 9, LogScale(2, ratio="plain", coefficient=0.7)
    q, k, v = (torch.randn(2, 3, n, 8) for _ in range(3))
    steps = torch.arange(n)[:, None] - torch.arange(n)
    coords, documents = packed_coords([4, 5])
    masks = {
        "causal": (steps >= 0),
        "window": (steps >= 0) & (steps < 3),
        "packed": (steps >= 0) & (documents[:, None] == documents),
    }
    for mask in masks.values():
        got = attention(q, k, v, logit_scale=scale, q_coords=coords, mask=mask)
        factor = 1 + 0.7 * (mask.sum(-1).double() / 2).log()
        logits = factor[:, None] * (q.double() @ k.double().mT) * 8**-0.5
        want = logits.masked_fill(~mask, -math.inf).softmax(-1) @ v.double()
        torch.testing.assert_close(got.double(), want, atol=2e-6, rtol=0)
    # Positions of packed documents start over, so both ways to count agree there.
    by_position = LogScale(2, ratio="plain", coefficient=0.7, by="position")
    assert torch.equal(by_position(coords), scale(coords, visible=masks["packed"].sum(-1)))


@pytest.mark.parametrize("make", [lambda: SSMax(3), lambda: HeadScale(3), lambda: LogScale(4)])
def test_decoding_a_token_is_its_row_of_the_whole(make):
    scale, n = make(), 12
    q, k, v = (torch.randn(3, n, 8) for _ in range(3))
    whole = attention(q, k, v, logit_scale=scale, q_coords=sequence_coords(n), is_causal=True)
    for i in range(n):
        alone = attention(
            q[:, i, None],
            k[:, : i + 1],
            v[:, : i + 1],
            logit_scale=scale,
            q_coords=sequence_coords(1, offset=i),
            is_causal=True,
        )
        torch.testing.assert_close(alone, whole[:, i, None], atol=2e-6, rtol=0)


@pytest.mark.parametrize("make", [lambda: SSMax(3, axes=2), lambda: LogScale(4, axes=2)])
def test_on_a_grid_keys_must_be_counted(make):
    scale, coords = make(), grid_coords(3, 4)
    q, k, v = (torch.randn(2, 3, 12, 8) for _ in range(3))
    assert attention(q, k, v, logit_scale=scale, q_coords=coords).shape == (2, 3, 12, 8)
    message = "needs visible, the number of keys of each query, for coordinates of 2 axes"
    with pytest.raises(ValueError, match=message):
        scale(coords)


def test_rows_have_their_own_counts_over_one_set_of_coordinates():
    visible = torch.tensor([[1, 5, 90], [70, 2, 8]])
    for scale in (LogScale(4), SSMax(5)):
        got = scale(sequence_coords(3), visible=visible)
        assert got.shape == (2, 1 if isinstance(scale, LogScale) else 5, 3)
        for row in range(2):
            assert torch.equal(got[row], scale(sequence_coords(3), visible=visible[row]))


def test_slopes_learn_and_stay_in_float32():
    ssmax = SSMax(num_heads=2)
    visible = torch.tensor([3, 1, 40])
    ssmax(sequence_coords(3), visible=visible).sum().backward()
    torch.testing.assert_close(ssmax.slopes.grad, torch.full((2,), math.log(3) + math.log(40)))
    cast = SSMax(num_heads=2).bfloat16()
    assert cast.slopes.dtype == torch.float32
    assert cast.no_weight_decay() == {"slopes"}
    assert not list(LogScale(4).parameters())


@pytest.mark.parametrize(
    "make, error, message",
    [
        (lambda: LogScale(1), ValueError, "train_length must be at least 2, for its logarithm divides, got 1"),
        (lambda: SSMax(2, train_length=1), ValueError, "train_length must be at least 2"),
        (lambda: LogScale(512.0), TypeError, "train_length must be an integer, got 512.0"),
        (lambda: LogScale(8, ratio="floor"), ValueError, "ratio must be one of clamped, plain, stepped, got 'floor'"),
        (lambda: LogScale(8, by="mask"), ValueError, "by must be one of keys, position, got 'mask'"),
        (
            lambda: LogScale(8, by="position", axes=2),
            ValueError,
            "a position is a coordinate on one axis, but axes is 2",
        ),
        (lambda: HeadScale(0), ValueError, "num_heads must be positive, got 0"),
        (lambda: SSMax(0), ValueError, "num_heads must be positive, got 0"),
        (lambda: SSMax(2, axes=0), ValueError, "axes must be positive, got 0"),
    ],
)
def test_bad_arguments_are_named(make, error, message):
    with pytest.raises(error, match=re.escape(message)):
        make()


@pytest.mark.parametrize("scale", [LogScale(8), SSMax(2)])
@pytest.mark.parametrize(
    "visible, error, message",
    [
        (torch.ones(3), TypeError, "visible must hold integers, the number of keys of each query, got torch.float32"),
        (torch.ones(3).bool(), TypeError, "visible must hold integers"),
        (torch.ones(2, 4).long(), ValueError, "visible has shape (2, 4), but there are 3 queries"),
        (torch.tensor(4), ValueError, "visible has shape (), but there are 3 queries"),
    ],
)
def test_counts_that_do_not_fit_are_named(scale, visible, error, message):
    with pytest.raises(error, match=re.escape(message)):
        scale(sequence_coords(3), visible=visible)
