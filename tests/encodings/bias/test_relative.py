import itertools
import math
import re

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mmpos import attention, grid_coords, packed_coords, sequence_coords, video_coords
from mmpos.encodings.bias.relative import RelativeLogits


def drawn(**arguments):
    """A bias whose tables are large enough to matter."""
    bias = RelativeLogits(**arguments)
    with torch.no_grad():
        for parameter in bias.parameters():
            parameter.normal_()
    return bias


def vectors_of(bias, content):
    """The vectors ``(h, q, d)`` whose inner products with the tables are taken."""
    if bias.rank is None:
        return content.double()
    return torch.einsum("hdc,qc->hqd", bias.token_weight.detach().double(), content.double())


def reference(bias, q_coords, k_coords, content):
    """The definition, one pair at a time in float64, with linear interpolation between rows."""
    weight = bias.weight.detach().double()
    weight = weight.expand(bias.num_heads, -1, -1)
    vectors = vectors_of(bias, content)
    result = torch.zeros(bias.num_heads, len(q_coords), len(k_coords), dtype=torch.float64)
    for (i, q), (j, k) in itertools.product(enumerate(q_coords.tolist()), enumerate(k_coords.tolist())):
        start = 0
        for extent, ahead, here, there in zip(bias.extent, bias.ahead, q, k, strict=True):
            step = here - there
            low = math.floor(step)
            for row, share in ((low, 1 - (step - low)), (low + 1, step - low)):
                if bias.beyond == "zero" and not -ahead <= row <= extent:
                    continue
                table = weight[:, start + min(max(row, -ahead), extent) + ahead]
                result[:, i, j] += share * (vectors[:, i] * table).sum(-1)
            start += extent + ahead + 1
    return bias.scale * result


def close(got, want, tolerance=3e-6):
    assert got.dtype == torch.float32
    assert got.shape == want.shape
    torch.testing.assert_close(got.double(), want, atol=tolerance * want.abs().max().item(), rtol=0)


def counting(extent, ahead=None, beyond="clip"):
    """A table that holds at each difference the difference itself."""
    bias = RelativeLogits(num_heads=2, head_dim=1, extent=extent, ahead=ahead, beyond=beyond)
    with torch.no_grad():
        bias.weight.copy_(torch.arange(-bias.ahead[0], bias.extent[0] + 1.0)[None, :, None])
    return bias


@pytest.mark.parametrize("queries, keys", [(4, 4), (7, 5), (5, 7), (300, 290)])
def test_entry_i_j_is_that_of_i_minus_j_on_both_sides_of_the_diagonal(queries, keys):
    got = counting(extent=300)(sequence_coords(queries), sequence_coords(keys), query=torch.ones(2, queries, 1))
    want = torch.arange(queries)[:, None] - torch.arange(keys)
    assert torch.equal(got, want.expand(2, -1, -1).float())


@pytest.mark.parametrize(
    "extent, ahead, beyond, want",
    [
        (2, None, "clip", [-2, -2, -1, 0, 1, 2, 2]),
        (2, 0, "clip", [0, 0, 0, 0, 1, 2, 2]),
        (1, 2, "clip", [-2, -2, -1, 0, 1, 1, 1]),
        (2, None, "zero", [0, -2, -1, 0, 1, 2, 0]),
        (2, 0, "zero", [0, 0, 0, 0, 1, 2, 0]),
        (3, None, "error", [-3, -2, -1, 0, 1, 2, 3]),
    ],
)
def test_what_lies_beyond_the_table(extent, ahead, beyond, want):
    got = counting(extent, ahead, beyond)(torch.tensor([[3]]), torch.arange(7)[:, None], query=torch.ones(2, 1, 1))
    assert got[1, 0].tolist() == want[::-1]


CONFIGURATIONS = [
    {"extent": 3},
    {"extent": 5, "ahead": 0, "beyond": "zero", "per_head": True, "scale": 1.0},
    {"extent": (2, 4), "beyond": "zero"},
    {"extent": (4, 6), "beyond": "error", "per_head": True},
    {"extent": (3, 2, 5), "ahead": (0, 2, 1)},
    {"extent": 6, "ahead": 2, "rank": 5, "dim": 11},
]


@pytest.mark.parametrize("arguments", CONFIGURATIONS)
@pytest.mark.parametrize("kind", ["integers", "reals"])
def test_every_pair_is_the_definition(arguments, kind):
    bias = drawn(num_heads=3, head_dim=7, **arguments)
    sides = {1: (7,), 2: (3, 5), 3: (2, 3, 2)}[bias.axes]
    cells = torch.tensor(list(itertools.product(*map(range, sides))))
    q_coords, k_coords = cells[torch.randperm(len(cells))][:6], cells
    if kind == "reals":
        q_coords, k_coords = q_coords - 0.3 * torch.rand(q_coords.shape).double(), k_coords.double()
        k_coords = (k_coords - 0.7 * torch.rand(k_coords.shape).double()).clamp(min=0)
        q_coords = q_coords.clamp(min=0)
    content = torch.randn(2, 3, 6, 7) if bias.rank is None else torch.randn(2, 6, 11)
    got = bias(q_coords, k_coords, **{"query" if bias.rank is None else "tokens": content})
    close(got, torch.stack([reference(bias, q_coords, k_coords, row) for row in content]))


def test_far_out_and_long():
    bias = drawn(num_heads=2, head_dim=3, extent=4100)
    q_coords, k_coords = sequence_coords(4, offset=10**12 + 4096), sequence_coords(5, offset=10**12)
    query = torch.randn(2, 4, 3)
    close(bias(q_coords, k_coords, query=query), reference(bias, q_coords, k_coords, query))
    assert torch.equal(bias(q_coords - 10**12, k_coords - 10**12, query=query), bias(q_coords, k_coords, query=query))


def test_coordinates_and_content_are_batched_each_on_their_own():
    bias = drawn(num_heads=3, head_dim=5, extent=4)
    coords, query = torch.randint(9, (2, 6, 1)), torch.randn(2, 3, 6, 5)
    both = bias(coords, coords, query=query)
    assert both.shape == (2, 3, 6, 6)
    for row in range(2):
        want = reference(bias, coords[row], coords[row], query[row])
        close(both[row], want)
        close(bias(coords, coords, query=query[row])[row], want)
        close(bias(coords[row], coords[row], query=query)[row], want)


@pytest.mark.parametrize("arguments", CONFIGURATIONS)
def test_decoding_a_token_is_its_row_of_the_whole(arguments):
    bias = drawn(num_heads=3, head_dim=7, **arguments)
    coords = {1: sequence_coords(6, offset=9), 2: grid_coords(3, 4), 3: video_coords(2, 2, 3)}[bias.axes]
    name = "query" if bias.rank is None else "tokens"
    content = torch.randn(2, 3, len(coords), 7) if bias.rank is None else torch.randn(2, len(coords), 11)
    whole = bias(coords, coords, **{name: content})
    for i in range(len(coords)):
        alone = bias(coords[i, None], coords, **{name: content[..., i, None, :]})
        torch.testing.assert_close(alone, whole[..., i, None, :], atol=3e-6, rtol=0)


def test_packed_documents_have_the_bias_that_they_have_alone():
    bias = drawn(num_heads=3, head_dim=5, extent=3)
    lengths, query = [4, 7, 2], torch.randn(3, 13, 5)
    coords, _ = packed_coords(lengths)
    packed, start = bias(coords, coords, query=query), 0
    for length in lengths:
        part = slice(start, start + length)
        alone = bias(sequence_coords(length), sequence_coords(length), query=query[:, part])
        torch.testing.assert_close(packed[:, part, part], alone, atol=1e-6, rtol=0)
        start += length


@pytest.mark.parametrize("queries, keys", [(7, 5), (5, 7)])
def test_cross_attention_takes_the_coordinates_of_either_side(queries, keys):
    bias = drawn(num_heads=3, head_dim=5, extent=(3, 2))
    q_coords, k_coords = torch.randint(6, (queries, 2)), torch.randint(6, (keys, 2))
    query = torch.randn(3, queries, 5)
    close(bias(q_coords, k_coords, query=query), reference(bias, q_coords, k_coords, query))


def test_in_attention_it_reads_the_queries_before_they_turn():
    bias = drawn(num_heads=4, head_dim=6, extent=(2, 3), per_head=True)
    coords = grid_coords(3, 4)
    q, k, v = torch.randn(2, 4, 12, 6), torch.randn(2, 2, 12, 6), torch.randn(2, 2, 12, 6)
    got = attention(q, k, v, bias=bias, q_coords=coords)
    dense = torch.stack([reference(bias, coords, coords, row) for row in q])
    keys, values = (part.double().repeat_interleave(2, dim=1) for part in (k, v))
    weights = (q.double() @ keys.mT * 6**-0.5 + dense).softmax(-1)
    torch.testing.assert_close(got.double(), weights @ values, atol=3e-6, rtol=0)


class Largest(TorchDispatchMode):
    """Remembers how many entries the largest tensor has that any operation makes."""

    entries = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **kwargs or {})
        if isinstance(result, torch.Tensor):
            held = result.untyped_storage().nbytes() // result.element_size()
            self.entries = max(self.entries, held)
        return result


@pytest.mark.parametrize("queries, keys", [(40, 50), (50, 6)])
def test_no_tensor_has_pairs_times_channels(queries, keys):
    bias, query = drawn(num_heads=3, head_dim=64, extent=7), torch.randn(2, 3, queries, 64)
    with torch.no_grad(), Largest() as largest:
        bias(sequence_coords(queries), sequence_coords(keys), query=query)
    assert largest.entries <= 2 * 3 * queries * max(keys, 64, 15)


@pytest.mark.parametrize("scale, want", [(None, 16**-0.5), (1.0, 1.0), (0.3, 0.3)])
def test_the_scale_is_that_of_logits_unless_given(scale, want):
    bias = RelativeLogits(num_heads=2, head_dim=16, extent=1, scale=scale)
    with torch.no_grad():
        bias.weight.fill_(1.0)
    got = bias(torch.tensor([[0]]), torch.tensor([[1]]), query=torch.ones(2, 1, 16))
    torch.testing.assert_close(got, torch.full((2, 1, 1), 16 * want))


def test_vectors_of_tokens_are_not_scaled_unless_asked():
    assert RelativeLogits(num_heads=2, extent=1, rank=16, dim=4).scale == 1.0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_it_works_in_float32_at_least(dtype):
    bias = drawn(num_heads=3, head_dim=8, extent=4).to(dtype)
    coords, query = sequence_coords(9), torch.randn(3, 9, 8).to(dtype)
    want = reference(bias, coords, coords, query)
    with torch.autocast("cpu", torch.bfloat16):
        autocast = bias(coords, coords, query=query)
    for got in (bias(coords, coords, query=query), autocast):
        close(got, want, tolerance=1e-6 if dtype != torch.float64 else 1e-7)


def test_a_coordinate_that_is_no_number_spoils_no_gradient():
    bias = drawn(num_heads=2, head_dim=3, extent=4)
    coords = torch.tensor([[0.0], [math.nan], [2.5], [math.inf]])
    query = torch.randn(2, 4, 3, requires_grad=True)
    got = bias(coords, coords, query=query)
    lost = torch.tensor([False, True, False, True])
    assert torch.equal(got.isnan(), (lost[:, None] | lost).expand(2, -1, -1))
    got.nan_to_num(0.0).square().sum().backward()
    assert bias.weight.grad.isfinite().all()
    assert query.grad.isfinite().all()
    assert query.grad[:, ~lost].any(-1).all()


GRIDS = [
    (grid_coords(5, 9), grid_coords(5, 9)),
    (grid_coords(4, 6, spacing=2), grid_coords(8, 12)),
    (grid_coords(8, 12), grid_coords(6, 7, spacing=(2, 1.5), origin=-3)),
    (torch.randint(7, (2, 11, 2)), torch.randint(7, (2, 60, 2))),
]


@pytest.mark.parametrize("beyond", ["clip", "zero"])
@pytest.mark.parametrize("q_coords, k_coords", GRIDS)
def test_factors_on_grids_are_the_bias(q_coords, k_coords, beyond):
    bias = drawn(num_heads=3, head_dim=5, extent=(3, 6), ahead=(2, 6), beyond=beyond, per_head=True)
    query = torch.randn(2, 3, q_coords.shape[-2], 5)
    left, right = bias.factors(q_coords, k_coords, query=query)
    assert left.shape[-1] == sum(len(k_coords[..., axis].unique()) for axis in range(2))
    assert right.shape[:-1] == (*k_coords.shape[:-2], 1, k_coords.shape[-2])
    want = bias(q_coords, k_coords, query=query)
    torch.testing.assert_close(left.double() @ right.double().mT, want.double(), atol=1e-6, rtol=1e-6)


def test_there_are_no_factors_where_they_spare_nothing_or_cannot_be_known():
    bias, coords = RelativeLogits(num_heads=3, head_dim=5, extent=(3, 6)), grid_coords(5, 8)
    query = torch.randn(3, 40, 5)
    assert bias.factors(coords, coords, query=query) is not None
    assert bias.factors(coords, coords[:20], query=query) is None  # 11 rows and columns for 20 keys
    assert bias.factors(coords.double(), coords.double().requires_grad_(), query=query) is None
    assert bias.factors(coords.double(), coords.double().index_fill(0, torch.tensor(3), math.nan), query=query) is None
    assert bias.to("meta").factors(coords.to("meta"), coords.to("meta"), query=query.to("meta")) is None
    sequence = RelativeLogits(num_heads=3, head_dim=5, extent=3)
    assert sequence.factors(sequence_coords(40), sequence_coords(40), query=query) is None


def test_gradients_flow_through_factors_as_through_the_bias():
    bias, coords = drawn(num_heads=3, head_dim=5, extent=(3, 6)), grid_coords(5, 8)
    q_coords = coords.double() + 0.25
    slopes = []
    for lowered in (False, True):
        inputs = q_coords.clone().requires_grad_(), torch.ones(3, 40, 5, requires_grad=True), bias.weight
        parts = bias.factors(inputs[0], coords, query=inputs[1]) if lowered else None
        result = bias(inputs[0], coords, query=inputs[1]) if parts is None else parts[0] @ parts[1].mT
        slopes.append(torch.autograd.grad((result * torch.arange(1600.0).view(40, 40).sin()).sum(), inputs))
    for got, want in zip(*slopes, strict=True):
        assert want.any()
        torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)


def test_beyond_the_tables_of_a_grid_is_an_error_that_says_what_to_do():
    bias = RelativeLogits(num_heads=2, head_dim=3, extent=(4, 6), beyond="error")
    coords, query = grid_coords(5, 9), torch.randn(2, 45, 3)
    message = "RelativeLogits holds differences from -6 to 6 on axis 1, got -8 to 8; resize it with bias.resize(5, 9)"
    with pytest.raises(ValueError, match=re.escape(message)):
        bias(coords, coords, query=query)
    with pytest.raises(ValueError, match=re.escape("got -8 to 8")):
        bias.factors(coords, coords, query=query)
    assert bias.resize(5, 9)(coords, coords, query=query).shape == (2, 45, 45)


def test_compiled_pairs_beyond_the_tables_get_nan():
    bias = drawn(num_heads=2, head_dim=3, extent=2, ahead=1, beyond="error")
    coords, query = sequence_coords(5), torch.randn(2, 5, 3)
    got = torch.compile(bias, fullgraph=True, backend="eager")(coords, coords, query=query)
    steps = torch.arange(5)[:, None] - torch.arange(5)
    held = (steps >= -1) & (steps <= 2)
    assert torch.equal(got.isnan(), ~held.expand(2, -1, -1))
    close(got[:, held], reference(bias, coords, coords, query)[:, held])


def test_resizing_keeps_the_middle_and_interpolates_linearly():
    bias = drawn(num_heads=3, head_dim=5, extent=(4, 2), beyond="error", per_head=True)
    new = bias.resize(3, 7)
    assert (new.extent, new.ahead) == ((2, 6), (2, 6))
    assert new.weight.shape == (3, 5 + 13, 5)
    tables = zip(bias.weight.split((9, 5), dim=1), new.weight.split((5, 13), dim=1), strict=True)
    for old, table in tables:
        rows, rows_old = table.shape[1], old.shape[1]
        for row in range(rows):
            place = min(max((row + 0.5) * rows_old / rows - 0.5, 0), rows_old - 1)
            low = math.floor(place)
            share = place - low
            want = old[:, low].double() * (1 - share) + old[:, min(low + 1, rows_old - 1)].double() * share
            torch.testing.assert_close(table[:, row].double(), want, atol=1e-6, rtol=0)
        torch.testing.assert_close(table[:, rows // 2], old[:, rows_old // 2])
    assert torch.equal(bias.resize(5, 3).weight, bias.weight)


def test_resizing_leaves_one_sided_tables_one_sided_and_shares_the_projection():
    bias = RelativeLogits(num_heads=3, extent=4, ahead=0, beyond="error", rank=2, dim=6).eval().bfloat16()
    bias.weight.requires_grad_(False)
    new = bias.resize(9)
    assert (new.extent, new.ahead, new.weight.shape) == ((8,), (0,), (1, 9, 2))
    assert (new.weight.dtype, new.weight.requires_grad, new.training) == (torch.bfloat16, False, False)
    assert new.token_weight is bias.token_weight
    uneven = RelativeLogits(num_heads=3, head_dim=2, extent=(8, 6), ahead=(2, 6), beyond="error").resize(5, 10)
    assert (uneven.extent, uneven.ahead, uneven.weight.shape) == ((4, 9), (1, 9), (1, 6 + 19, 2))


@pytest.mark.parametrize("beyond", ["clip", "zero"])
def test_tables_that_are_tied_to_no_grid_stay_as_they_are(beyond):
    bias = RelativeLogits(num_heads=3, head_dim=4, extent=(4, 5), beyond=beyond)
    assert bias.resize(30, 20) is bias


@pytest.mark.parametrize(
    "size, error, message",
    [
        ((3,), ValueError, r"size must have 2 numbers, as many as axes, got (3,)"),
        ((3, 0), ValueError, "size must be positive, got 0"),
        ((3, 2.5), TypeError, "size must be an integer, got 2.5"),
    ],
)
def test_bad_sizes_are_named(size, error, message):
    with pytest.raises(error, match=re.escape(message)):
        RelativeLogits(num_heads=3, head_dim=4, extent=(4, 5), beyond="error").resize(*size)


def test_tables_of_another_extent_do_not_load_without_a_word():
    bias, other = (RelativeLogits(num_heads=3, head_dim=4, extent=extent) for extent in (4, 5))
    with pytest.raises(RuntimeError, match=re.escape("shape (1, 9, 4), this RelativeLogits (1, 11, 4)")):
        other.load_state_dict(bias.state_dict())


def test_only_projections_decay():
    bias = RelativeLogits(num_heads=3, extent=4, rank=2, dim=6)
    assert set(dict(bias.named_parameters())) == {"weight", "token_weight"}
    assert bias.no_weight_decay() == {"weight"}
    assert bias.needs == {"tokens"}
    assert RelativeLogits(num_heads=3, head_dim=4, extent=4).needs == {"query"}


def test_parameters_start_small():
    bias = RelativeLogits(num_heads=3, extent=400, rank=32, dim=300)
    for parameter in bias.parameters():
        assert parameter.std().item() == pytest.approx(0.02, rel=0.15)


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ({"extent": 3}, ValueError, "head_dim must be given unless rank is"),
        ({"extent": 3, "rank": 4}, ValueError, "dim must be given with rank"),
        ({"extent": 3, "head_dim": 0}, ValueError, "head_dim must be positive, got 0"),
        ({"extent": 3, "head_dim": 4, "num_heads": 0}, ValueError, "num_heads must be positive, got 0"),
        ({"extent": 3, "rank": -1, "dim": 4}, ValueError, "rank must be positive, got -1"),
        ({"extent": -1, "head_dim": 4}, ValueError, "extent must not be negative, got -1"),
        ({"extent": (), "head_dim": 4}, ValueError, "extent must have a number for each axis, got ()"),
        ({"extent": "16", "head_dim": 4}, TypeError, "extent must be an integer or a sequence of them, got '16'"),
        ({"extent": 2.0, "head_dim": 4}, TypeError, "extent must be an integer or a sequence of them, got 2.0"),
        (
            {"extent": (3, 4), "ahead": 2, "head_dim": 4},
            ValueError,
            "ahead must have a number for each of 2 axes, as extent, got 2",
        ),
        ({"extent": 3, "head_dim": 4, "beyond": "drop"}, ValueError, "beyond must be one of clip, zero, error, got"),
    ],
)
def test_bad_arguments_are_named(arguments, error, message):
    with pytest.raises(error, match=re.escape(message)):
        RelativeLogits(**{"num_heads": 3} | arguments)


@pytest.mark.parametrize(
    "content, error, message",
    [
        ({}, ValueError, "RelativeLogits reads query, (..., 3 heads, 5 queries, 4 channels), but got none"),
        (
            {"query": torch.zeros(2, 3, 6, 4)},
            ValueError,
            "query must be (..., 3 heads, 5 queries, 4 channels), got shape (2, 3, 6, 4)",
        ),
        ({"query": torch.zeros(2, 5, 4)}, ValueError, "query must be (..., 3 heads"),
        ({"query": torch.zeros(5, 4)}, ValueError, "query must be (..., 3 heads"),
        ({"query": torch.zeros(3, 5, 4, dtype=torch.int64)}, TypeError, "query must be real floating point, got"),
    ],
)
def test_content_that_does_not_fit_is_named(content, error, message):
    bias, coords = RelativeLogits(num_heads=3, head_dim=4, extent=2), sequence_coords(5)
    with pytest.raises(error, match=re.escape(message)):
        bias(coords, coords, **content)
    on_a_grid, keys = RelativeLogits(num_heads=3, head_dim=4, extent=(2, 2)), grid_coords(4, 4)
    with pytest.raises(error, match=re.escape(message)):
        on_a_grid.factors(keys[:5], keys, **content)


def test_tokens_that_do_not_fit_are_named():
    bias, coords = RelativeLogits(num_heads=3, extent=2, rank=4, dim=10), sequence_coords(5)
    with pytest.raises(ValueError, match=re.escape("reads tokens, (..., 5 queries, 10 channels), but got none")):
        bias(coords, coords)
    with pytest.raises(ValueError, match=re.escape("tokens must be (..., 5 queries, 10 channels), got shape (5, 12)")):
        bias(coords, coords, tokens=torch.zeros(5, 12))
