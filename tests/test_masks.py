import itertools

import pytest
import torch

from mmpos.masks import AttentionMask, Span, causal, documents, padding, window
from mmpos.masks.sight import PAIRS_AT_ONCE

CPU = torch.device("cpu")


def written_out(
    queries, keys, prefix=0, is_causal=False, size=None, two_sided=False, q_ids=None, k_ids=None, real=None
):
    """One pair after the other; ids and padding leave out the prefix tokens."""
    rows = []
    for i in range(queries):
        place, row = i + keys - queries, []
        for j in range(keys):
            special = 0 <= place < prefix or j < prefix
            sees = not is_causal or j <= place
            if size is not None:
                sees &= special or abs(place - j) < size
                sees &= two_sided or j <= place
            if q_ids is not None:
                sees &= special or q_ids[place - prefix - (keys - queries) * (q_ids is not k_ids)] == k_ids[j - prefix]
            if real is not None:
                sees &= j < prefix or real[j - prefix]
            row.append(bool(sees))
        rows.append(row)
    return torch.tensor(rows)


IDS = [0, 0, 0, 2, 2, 5, 5, 5, 5, 1, 1]
REAL = [True, False, True, True, True, True, False, True, True, True, False]
CASES = [
    dict(zip(("is_causal", "size", "two_sided", "packed", "padded", "prefix"), case, strict=True))
    for case in itertools.product([False, True], [None, 1, 4], [False, True], [False, True], [False, True], [0, 2])
    if case[1] is not None or not case[2]
]


def joined(is_causal, size, two_sided, packed, padded, prefix):
    mask = AttentionMask()
    mask = mask & causal() if is_causal else mask
    mask = mask if size is None else mask & window(size, two_sided=two_sided)
    mask = mask & documents(torch.tensor(IDS)) if packed else mask
    return mask & padding(torch.tensor(REAL)) if padded else mask


def expected(is_causal, size, two_sided, packed, padded, prefix):
    ids = IDS if packed else None
    n = len(IDS) + prefix
    return written_out(n, n, prefix, is_causal, size, two_sided, ids, ids, REAL if padded else None)


@pytest.mark.parametrize("case", CASES)
def test_joined_masks_hold_all_conditions(case):
    want, prefix = expected(**case), case["prefix"]
    n = len(want)
    mask = joined(**case)
    dense = mask.dense(n, n, num_prefix_tokens=prefix)
    assert torch.equal(dense, want)

    sight = mask.between((n, n, n), num_prefix_tokens=prefix, device=CPU)
    assert torch.equal(sight.count_keys().flatten(), want.sum(-1))
    blind = not want.any(-1).all()
    assert sight.can_blind or not blind
    i, j = torch.arange(n)[:, None], torch.arange(n)
    assert torch.equal(sight.sees(torch.tensor(0), torch.tensor(0), i, j).expand(n, n), want)
    for start, stop in itertools.combinations(range(n + 1), 2):
        keys = sight.keys_seen(start, stop)
        chosen = keys.take(torch.arange(n), 0)
        hidden = torch.ones(n, dtype=torch.bool)
        hidden[chosen] = False
        assert not want[start:stop, hidden].any()  # nothing that is seen is left out
        block = sight.dense(start, stop, keys)
        rows = want[start:stop, chosen]
        assert rows.all() if block is None else torch.equal(block.expand(1, 1, *rows.shape)[0, 0], rows)


@pytest.mark.parametrize("queries, keys", [(3, 7), (1, 7), (7, 7), (7, 3), (4, 1)])
@pytest.mark.parametrize("is_causal, size, two_sided", [(True, None, False), (False, 3, False), (False, 2, True)])
def test_the_last_query_is_aligned_with_the_last_key(queries, keys, is_causal, size, two_sided):
    mask = causal() if size is None else window(size, two_sided=two_sided)
    want = written_out(queries, keys, 0, is_causal, size, two_sided)
    assert torch.equal(mask.dense(queries, keys).expand(queries, keys), want)
    sight = mask.between((1, queries, keys), device=CPU)
    assert torch.equal(sight.count_keys(), want.sum(-1))


def test_a_window_is_that_of_mistral():
    row = window(3).dense(6, 6)[4]
    assert row.tolist() == [False, False, True, True, True, False]
    row = window(3, two_sided=True).dense(8, 8)[4]
    assert row.tolist() == [False, False, True, True, True, True, True, False]


def test_of_two_windows_the_narrower_counts_on_each_side():
    mask = window(5, two_sided=True) & window(2)
    assert torch.equal(mask.dense(6, 6), window(2).dense(6, 6))
    assert torch.equal((window(2) & window(5, two_sided=True)).dense(6, 6), window(2).dense(6, 6))


def test_rows_have_documents_and_padding_of_their_own():
    ids = torch.tensor([[0, 0, 0, 1], [0, 1, 1, 1]])
    real = torch.tensor([[True, True, True, True], [False, True, True, True]])
    dense = (documents(ids) & padding(real)).dense(4, 4)
    assert dense.shape == (2, 1, 4, 4)
    for row in range(2):
        row_ids = ids[row].tolist()
        assert torch.equal(dense[row, 0], written_out(4, 4, q_ids=row_ids, k_ids=row_ids, real=real[row].tolist()))
    assert torch.equal((documents(ids) & padding(real[1])).dense(4, 4)[0, 0], dense[0, 0] & real[1])


def test_queries_and_keys_may_have_documents_of_their_own():
    dense = documents(torch.tensor([5, 7]), torch.tensor([7, 7, 5])).dense(2, 3)
    assert dense.tolist() == [[False, False, True], [True, True, False]]


def test_documents_may_be_scattered():
    ids = torch.tensor([3, 1, 3, 2, 1])
    mask = documents(ids)
    assert torch.equal(mask.dense(5, 5), ids[:, None] == ids)
    assert mask.between((1, 5, 5), device=CPU).keys_seen(1, 2) == Span(0, 1, 5)


def test_masks_join_with_boolean_tensors_from_either_side():
    given = torch.tensor([[True, False, True], [False, True, True], [True, True, True]])
    want = given & torch.ones(3, 3, dtype=torch.bool).tril()
    assert torch.equal((causal() & given).dense(3, 3), want)
    assert torch.equal((given & causal()).dense(3, 3), want)
    per_head = torch.stack([given, ~given])
    assert torch.equal((causal() & per_head).dense(3, 3), per_head & torch.ones(3, 3, dtype=torch.bool).tril())
    with pytest.raises(TypeError):
        causal() & "causal"


def test_a_function_of_indices_says_the_same():
    given = torch.randn(3, 2, 5, 7, generator=torch.Generator().manual_seed(0)) > 0
    mask = documents(torch.arange(15).view(3, 5) // 4, torch.arange(21).view(3, 7) // 6) & given
    sight = mask.between((3, 2, 5, 7), device=CPU)
    every = torch.meshgrid(*map(torch.arange, (3, 2, 5, 7)), indexing="ij")
    assert torch.equal(sight.sees(*every), mask.dense(5, 7))


def test_windows_skip_keys_but_not_prefix_tokens():
    sight = window(4).between((1, 102, 102), num_prefix_tokens=2, device=CPU)
    assert sight.keys_seen(50, 60) == Span(2, 47, 60)
    assert sight.keys_seen(0, 3) == Span(0, 0, 3)
    both = window(4, two_sided=True).between((1, 102, 102), num_prefix_tokens=2, device=CPU)
    assert both.keys_seen(50, 60) == Span(2, 47, 63)
    assert both.keys_seen(1, 60) == Span(0, 0, 102)  # a prefix token sees all
    assert causal().between((1, 10, 30), device=CPU).keys_seen(2, 5) == Span(0, 0, 25)


def test_blocks_leave_out_other_documents():
    sight = documents(torch.arange(100) // 10).between((1, 100, 100), device=CPU)
    assert sight.keys_seen(22, 28) == Span(0, 20, 30)
    assert sight.keys_seen(28, 32) == Span(0, 20, 40)


def test_counts_are_those_of_many_blocks():
    n = 3000
    assert n * n > PAIRS_AT_ONCE
    lengths = torch.tensor([700, 1300, 1000])
    ids = torch.repeat_interleave(torch.arange(3), lengths)
    counts = (causal() & documents(ids)).between((1, n, n), device=CPU).count_keys()
    assert torch.equal(counts[0], torch.cat([torch.arange(1, length + 1) for length in lengths.tolist()]))


@pytest.mark.parametrize("queries, keys", [(0, 5), (5, 0), (0, 0)])
def test_there_may_be_no_tokens(queries, keys):
    for mask in (causal(), window(3), AttentionMask(), padding(torch.ones(2, keys, dtype=torch.bool))):
        assert mask.dense(queries, keys).shape[-2:] == (queries, keys)
        assert mask.between((2, 1, queries, keys), device=CPU).count_keys().shape[-1] == queries


@pytest.mark.parametrize(
    "make, error, message",
    [
        (lambda: window(0), ValueError, "size must be positive, got 0"),
        (lambda: window(-3), ValueError, "size must be positive, got -3"),
        (lambda: window(2.5), TypeError, "size must be an integer, got 2.5"),
        (lambda: padding(torch.ones(4)), TypeError, r"mask of padding must be boolean \(True is real\).*torch.float32"),
        (lambda: documents(torch.ones(4)), TypeError, "ids must hold integers, got torch.float32"),
        (lambda: documents(torch.arange(4), torch.ones(4) > 0), TypeError, "k_ids must hold integers, got torch.bool"),
        (lambda: documents(torch.arange(4)).dense(5, 5), ValueError, r"ids of documents must have the shape \(5,\)"),
        (lambda: documents(torch.arange(5)).dense(5, 7), ValueError, r"k_ids of documents must have the shape \(7,\)"),
        (
            lambda: padding(torch.ones(2, 4, dtype=torch.bool)).dense(5, 5, num_prefix_tokens=2),
            ValueError,
            r"mask of padding must have the shape \(2, 5\).*got shape \(2, 4\); num_prefix_tokens is 2",
        ),
        (
            lambda: padding(torch.ones(3, 5, dtype=torch.bool)).between((2, 1, 5, 5), device=CPU),
            ValueError,
            r"mask of padding must have the shape \(2, 5\) of the tokens, got shape \(3, 5\)",
        ),
        (lambda: (causal() & torch.ones(5, 5)).dense(5, 5), TypeError, "mask must be boolean .*got torch.float32"),
        (
            lambda: (causal() & torch.ones(5, 6, dtype=torch.bool)).dense(5, 5),
            ValueError,
            r"mask must fit logits of shape \(1, 5, 5\), got shape \(5, 6\)",
        ),
    ],
)
def test_misuse_is_named(make, error, message):
    with pytest.raises(error, match=message):
        make()
