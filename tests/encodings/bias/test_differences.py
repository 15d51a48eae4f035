import math

import pytest
import torch

from mmpos.encodings.bias.differences import check_per, differences, distances, pair_distance, pick


def test_entry_of_a_query_and_a_key_is_their_difference():
    q_coords, k_coords = torch.arange(7)[:, None], torch.arange(4)[:, None]
    got = differences(q_coords, k_coords)
    assert got[..., 0].tolist() == [[i - j for j in range(4)] for i in range(7)]
    assert got.dtype == torch.int64


def test_axes_and_batches():
    q_coords, k_coords = torch.randint(-99, 99, (2, 5, 3)), torch.randint(-99, 99, (2, 7, 3))
    got = differences(q_coords, k_coords)
    assert got.shape == (2, 5, 7, 3)
    want = [
        [[[a - b for a, b in zip(q, k, strict=True)] for k in keys] for q in queries]
        for queries, keys in zip(q_coords.tolist(), k_coords.tolist(), strict=True)
    ]
    assert got.tolist() == want
    assert torch.equal(differences(q_coords, k_coords[:1])[0], got[0])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_small_integers_do_not_wrap(dtype):
    q_coords, k_coords = torch.tensor([[3]], dtype=dtype), torch.tensor([[127]], dtype=dtype)
    assert differences(q_coords, k_coords).item() == -124
    assert differences(k_coords, q_coords).item() == 124


def test_neighbours_stay_apart_however_far_out():
    nanoseconds = torch.tensor([[1_700_000_000_000_000_000], [1_700_000_000_000_000_001]])
    assert differences(nanoseconds, nanoseconds)[..., 0].tolist() == [[0, -1], [1, 0]]
    assert distances(nanoseconds, nanoseconds).tolist() == [[0.0, 1.0], [1.0, 0.0]]
    seconds = torch.tensor([[1_700_000_000.0], [1_700_000_000.5]], dtype=torch.float64)
    assert differences(seconds, seconds)[..., 0].tolist() == [[0.0, -0.5], [0.5, 0.0]]
    assert distances(seconds, seconds.long()).tolist() == [[0.0, 0.0], [0.5, 0.5]]


def test_float32_coordinates_are_subtracted_in_float64():
    q_coords, k_coords = torch.tensor([[2.0**24]]), torch.tensor([[0.5]])
    assert differences(q_coords, k_coords).item() == 2**24 - 0.5
    assert differences(q_coords.long(), k_coords).item() == 2**24 - 0.5


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_gives_nan_for_its_token(bad):
    q_coords = torch.tensor([[0.0, 1.0], [2.0, bad], [1e308, 0.0]], dtype=torch.float64)
    k_coords = torch.tensor([[bad, 0.0], [-1e308, 3.0]], dtype=torch.float64)
    for metric in ("sum", "euclidean", "max"):
        got = distances(q_coords, k_coords, metric)
        assert got.isnan().tolist() == [[True, False], [True, True], [True, False]]
        assert got[2, 1].isfinite()


@pytest.mark.parametrize("metric", ["sum", "euclidean", "max"])
def test_distances_have_the_gradient_of_the_metric(metric):
    q_coords = torch.tensor([[0.5, 2.0], [-3.0, 1.0]], dtype=torch.float64, requires_grad=True)
    k_coords = torch.tensor([[0.5, 2.0], [4.0, -2.0], [1.0, 1.75]], dtype=torch.float64, requires_grad=True)
    distances(q_coords, k_coords, metric, (2.0, 0.25)).sum().backward()
    q, k = q_coords.detach()[:, None], k_coords.detach()
    step = (q - k) / torch.tensor([2.0, 0.25], dtype=torch.float64)
    if metric == "sum":
        slope = step.sign()
    elif metric == "max":
        slope = step.sign() * (step.abs() == step.abs().amax(-1, keepdim=True))
    else:
        slope = step / step.norm(dim=-1, keepdim=True)
    slope[0, 0] = 0  # where both are at the same place
    slope = slope / torch.tensor([2.0, 0.25], dtype=torch.float64)
    torch.testing.assert_close(q_coords.grad, slope.sum(1), atol=1e-7, rtol=0)
    torch.testing.assert_close(k_coords.grad, -slope.sum(0), atol=1e-7, rtol=0)


def test_a_pair_has_the_distance_that_it_has_among_all():
    q_coords, k_coords = torch.randint(-99, 99, (3, 2)), torch.rand(5, 2, dtype=torch.float64)
    for metric in ("sum", "euclidean", "max"):
        want = distances(q_coords, k_coords, metric, (3.0, 0.5))
        for i, q in enumerate(q_coords):
            for j, k in enumerate(k_coords):
                assert torch.equal(pair_distance(q, k, metric, (3.0, 0.5)), want[i, j])
                assert torch.equal(pair_distance(q.unbind(), k.unbind(), metric, (3.0, 0.5)), want[i, j])


def test_a_value_is_picked_by_its_number():
    values = [0.1, 2.0, -7.5, math.pi]
    got = torch.stack([pick(values, head) for head in torch.arange(4)])
    assert torch.equal(got, torch.tensor(values))
    assert torch.equal(torch.vmap(lambda head: pick(values, head))(torch.arange(4)), torch.tensor(values))


def test_units():
    assert check_per(3, 2) == (3, 3)
    assert check_per([3, 0.5], 2) == (3, 0.5)
    for bad, error in (((1,), ValueError), (math.inf, ValueError), ((1, math.nan), ValueError), ("m", TypeError)):
        with pytest.raises(error, match="per must be"):
            check_per(bad, 2)
