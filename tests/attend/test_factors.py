"""Biases as more channels of queries and keys: how exact they are, and what they take for granted."""

import pytest
import torch

from mmpos import attention, sequence_coords
from mmpos.attend import choose_backend
from tests.attention_checks import Steep, draw, reference


def rows_by_the_formula(q, k, v, bias, rows):
    """Causal attention of a few queries in float64."""
    n = q.shape[-2]
    i = torch.arange(n, dtype=torch.float64)
    dense = -bias.slopes.double()[:, None, None] * (i[rows, None] - i).abs()
    return reference(q[:, :, rows], k, v, dense, visible=i <= i[rows, None])


def test_factors_lose_no_digits_to_the_size_of_positions():
    # Added up in another order, terms of the size of 2900 would leave errors of 1e-4 and more.
    n, bias = 4096, Steep(2**-0.5, 0.3, 0.01)
    q, k, v = (draw(1, 3, n, 16, seed=seed) for seed in range(3))
    got = attention(q, k, v, bias=bias, q_coords=sequence_coords(n), is_causal=True)
    assert choose_backend(q, k, v, bias=bias, q_coords=sequence_coords(n), is_causal=True).backend == "factors"
    rows = torch.tensor([0, 1, 2, 100, 2047, 2048, 3001, 4095])
    torch.testing.assert_close(got[:, :, rows].double(), rows_by_the_formula(q, k, v, bias, rows), atol=1e-5, rtol=0)


@pytest.mark.parametrize("dtype, tolerance", [(torch.bfloat16, 2e-2), (torch.float16, 2e-3)])
@pytest.mark.parametrize("autocast", [False, True])
def test_factors_are_exact_in_half_precision(dtype, tolerance, autocast):
    n, bias = 2048, Steep(2**-0.5, 0.05)
    exact = [draw(1, 2, n, 16, seed=seed).to(dtype) for seed in range(3)]
    q, k, v = (part.float() if autocast else part for part in exact)
    with torch.autocast("cpu", dtype, enabled=autocast):
        got = attention(q, k, v, bias=bias, q_coords=sequence_coords(n), is_causal=True, backend="factors")
    assert got.dtype == v.dtype
    rows = torch.tensor([0, 5, 777, 1500, 2047])
    want = rows_by_the_formula(*(part.float() for part in exact), bias, rows)
    torch.testing.assert_close(got[:, :, rows].double(), want, atol=tolerance, rtol=0)


@pytest.mark.parametrize("backend", ["factors", "blocks", "sdpa"])
@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("autocast", [False, True])
def test_half_precision_tells_neighbours_far_away_apart(backend, half, autocast):
    # Rounded to half precision they would all weigh the same, and two numbers of bfloat16 are not enough either.
    n, dtype = 300, torch.float32 if autocast else half
    q, k = torch.zeros(1, 1, n, 8, dtype=dtype), torch.zeros(1, 1, n, 8, dtype=dtype)
    v = torch.eye(n, dtype=dtype)[None, None]
    coords, bias = (100_000 + 0.37 * torch.arange(n, dtype=torch.float64))[:, None], Steep(0.4)
    with torch.autocast("cpu", half, enabled=autocast):
        got = attention(q, k, v, bias=bias, q_coords=coords, is_causal=True, backend=backend)
    weights = (0.4 * 0.37 * torch.arange(n)).double().exp()
    torch.testing.assert_close(got[0, 0, -1].double(), weights / weights.sum(), atol=2**-9, rtol=0)


ORDERS = {
    "grows": ([0, 0, 1, 3, 3, 9], True),
    "falls": ([5, 4, 3, 2, 1, 0], False),
    "falls once": ([0, 1, 5, 4, 6, 7], False),
}


@pytest.mark.parametrize("order", ORDERS)
def test_order_is_looked_up(order):
    coords, grows = ORDERS[order]
    coords, bias = torch.tensor(coords)[:, None], Steep(0.5, 0.25)
    q, k, v = (draw(1, 2, 6, 8, seed=seed) for seed in range(3))
    options = {"bias": bias, "q_coords": coords, "is_causal": True}
    if grows:
        want = attention(q, k, v, backend="dense", **options)
        torch.testing.assert_close(attention(q, k, v, backend="factors", **options), want, atol=1e-5, rtol=0)
    else:
        with pytest.raises(ValueError, match="no factors where coordinates do not grow"):
            attention(q, k, v, backend="factors", **options)


def test_order_counts_between_queries_and_keys():
    # A key at the query's own place must not lie past it: the last two queries stand at 3 and 2 among keys up to 3.
    q, k, v = (draw(1, 2, n, 8, seed=seed) for seed, n in enumerate((2, 4, 4)))
    options = {"bias": Steep(0.5, 0.25), "k_coords": sequence_coords(4), "is_causal": True, "backend": "factors"}
    with pytest.raises(ValueError, match="do not grow"):
        attention(q, k, v, q_coords=torch.tensor([[3], [2]]), **options)
    attention(q, k, v, q_coords=torch.tensor([[2], [3]]), **options)
