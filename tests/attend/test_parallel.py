"""Sequences whose tokens lie on several processes: what each makes of its own coordinates is what the whole gives."""

import pytest
import torch

import mmpos
from mmpos.testing.subject import Subject, expect_same
from tests.configurations import CONFIGURATIONS

RANKS, N = 3, 24


def contiguous(n):
    return torch.arange(n).chunk(RANKS)


def striped(n):
    return [torch.arange(rank, n, RANKS) for rank in range(RANKS)]


def head_tail(n):
    """A chunk of the beginning and as long a one of the end, with which every rank has as many keys to attend to."""
    chunks = torch.arange(n).chunk(2 * RANKS)
    return [torch.cat([chunks[rank], chunks[-1 - rank]]) for rank in range(RANKS)]


ORDERS = [contiguous, striped, head_tail]
TABLES = ("LearnedTable", "FactorizedTable", "ERPE", "SwinBias", "T5Bias", "GroupBias")
CASES = [
    pytest.param(name, options, id=f"{name}-{number}")
    for name, configurations in CONFIGURATIONS.items()
    for number, options in enumerate(configurations)
]


def share_of(inputs, rows):
    """Arguments of a call for these tokens; a bias has these queries and all keys."""
    axes = {"coords": -2, "q_coords": -2, "visible": -1, "query": -2, "tokens": -2}
    return {name: value.index_select(axes[name], rows) if name in axes else value for name, value in inputs.items()}


@pytest.mark.parametrize("order", ORDERS)
def test_every_token_is_on_one_rank(order):
    assert sorted(torch.cat(list(order(N))).tolist()) == list(range(N))


@pytest.mark.parametrize("name, options", CASES)
def test_shares_of_the_coordinates_give_shares_of_the_whole(name, options):
    subject = Subject(mmpos.create_encoding(name, **options))
    token_axis = next(iter(subject.token_axes.values()))
    for floats in (False, True):
        # Sums of networks, and between the cells of a table, come in an order that depends on the shape.
        exact = subject.fixed or subject.kind in ("rotary", "scale") or (name in TABLES and not floats)
        inputs = subject.inputs(N, 31, (2,), floats=floats)
        whole = subject.call(subject.encoding, inputs)
        for rows in (rows for order in ORDERS for rows in order(N)):
            got = subject.call(subject.encoding, share_of(inputs, rows))
            want = {part: value.index_select(token_axis, rows) for part, value in whole.items()}
            expect_same(got, want, f"{name} of tokens {rows.tolist()}", 0.0 if exact else 1e-6)


ATTENDED = {
    "alibi": {"bias": mmpos.ALiBi(4)},
    "t5": {"bias": mmpos.T5Bias(4, bidirectional=False)},
    "fire": {"bias": mmpos.create_encoding("FIRE", num_heads=4)},
    "content": {"bias": mmpos.create_encoding("RelativeLogits", num_heads=4, head_dim=16, extent=9)},
    "scale": {"bias": mmpos.ALiBi(4), "logit_scale": mmpos.create_encoding("LogScale", train_length=8)},
}


def attended():
    torch.manual_seed(1)
    q, k, v = torch.randn(3, 2, 4, N, 16, dtype=torch.float64)
    return q, k, v, mmpos.RoPE(16), mmpos.sequence_coords(N, offset=5000)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", ATTENDED)
def test_queries_of_a_rank_attend_to_all_keys(name, order):
    q, k, v, rope, coords = attended()
    slots = ATTENDED[name]
    want = mmpos.attention(q, k, v, rotation=rope(coords), q_coords=coords, is_causal=True, **slots)
    places = torch.cat(list(order(N)))  # as keys stand when they are gathered
    for rows in order(N):
        got = mmpos.attention(
            q[..., rows, :],
            k[..., places, :],
            v[..., places, :],
            rotation=(rope(coords[rows]), rope(coords[places])),
            q_coords=coords[rows],
            k_coords=coords[places],
            mask=coords[rows] >= coords[places].mT,
            **slots,
        )
        torch.testing.assert_close(got, want[..., rows, :], atol=1e-6, rtol=0)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", ["alibi", "t5", "fire"])
def test_keys_that_come_round_rank_by_rank_sum_up_to_attention(name, order):
    q, k, v, rope, coords = attended()
    bias = ATTENDED[name]["bias"]
    want = mmpos.attention(q, k, v, rotation=rope(coords), bias=bias, q_coords=coords, is_causal=True)
    for rows in order(N):
        total, values = torch.full((2, 4, len(rows), 1), -torch.inf, dtype=torch.float64), 0.0
        for keys in order(N):
            logits = rope(coords[rows]).apply(q[..., rows, :]) @ rope(coords[keys]).apply(k[..., keys, :]).mT / 4
            logits = logits + bias(coords[rows], coords[keys])
            logits = logits.masked_fill(coords[rows] < coords[keys].mT, -torch.inf)
            seen = torch.logaddexp(total, logits.logsumexp(-1, keepdim=True))
            kept = (total - seen).exp().nan_to_num(0.0)  # a query that has seen no key yet
            values = kept * values + (logits - seen).exp().nan_to_num(0.0) @ v[..., keys, :]
            total = seen
        torch.testing.assert_close(values, want[..., rows, :], atol=1e-6, rtol=0)
