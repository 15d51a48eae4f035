import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mmpos import grid_coords, sequence_coords
from mmpos.encodings.bias.erpe import ERPE


def bias_of(size, num_heads=3, **options):
    bias = ERPE(num_heads, size, **options)
    nn.init.normal_(bias.weight)
    return bias


def test_it_starts_at_zero_and_is_added_behind_the_softmax():
    bias, coords = ERPE(8, 12), sequence_coords(12)
    assert bias.after_softmax
    assert not bias(coords, coords).any()
    bias = bias_of(12)
    bias.reset_parameters()
    assert not bias.weight.any()


def test_the_published_formula():
    # ConvTran: output_i = sum_j (softmax_j(q_i . k_j scale) + w[i - j + L - 1]) v_j, one table for each head.
    length, bias = 300, bias_of(300)
    q, k, v = torch.randn(3, 2, 3, length, 5, dtype=torch.float64)
    weights = (q @ k.mT * 15**-0.5).softmax(-1)
    coords = sequence_coords(length, offset=4100)
    got = (weights + bias(coords, coords)) @ v
    want = torch.zeros_like(got)
    table = bias.weight.detach().double()
    for i in range(length):
        own = torch.stack([table[i - j + length - 1] for j in range(length)], dim=-1)
        want[:, :, i] = torch.einsum("bhj,bhjd->bhd", weights[:, :, i] + own, v)
    torch.testing.assert_close(got, want, atol=1e-12, rtol=0)
    sums = (weights + bias(coords, coords)).sum(-1)
    assert not torch.allclose(sums, torch.ones_like(sums), atol=0.1)


def test_each_offset_has_its_own_number_on_two_axes():
    bias, coords = bias_of((3, 4)), grid_coords(3, 4)
    got = bias(coords, coords)
    for i, q in enumerate(coords.tolist()):
        for j, k in enumerate(coords.tolist()):
            assert torch.equal(got[:, i, j], bias.weight[q[0] - k[0] + 2, q[1] - k[1] + 3])


def test_between_whole_offsets_entries_are_interpolated():
    bias, times = bias_of(6), torch.tensor([[0.25], [5.0], [1.75]], dtype=torch.float64)
    got = bias(times, sequence_coords(6))
    table = bias.weight.detach().double()
    for i, time in enumerate(times[:, 0].tolist()):
        for j in range(6):
            low, share = divmod(time - j + 5, 1)
            high = min(int(low) + 1, 10)
            want = (1 - share) * table[int(low)] + share * table[high]
            torch.testing.assert_close(got[:, i, j].double(), want, atol=1e-6, rtol=0)


def test_a_query_alone_has_the_row_that_it_has_among_others():
    bias, coords = bias_of(9), torch.stack([sequence_coords(9), sequence_coords(9).flip(0)])
    whole = bias(coords, coords)
    assert whole.shape == (2, 3, 9, 9)
    assert torch.equal(bias(coords[:, 4:5], coords), whole[:, :, 4:5])
    assert torch.equal(bias(coords[1], coords[1]), whole[1])


def test_score_is_one_entry_of_the_bias():
    bias, coords = bias_of(7), sequence_coords(7)
    every = torch.vmap(torch.vmap(torch.vmap(bias.score, (None, None, 0)), (None, 0, None)), (0, None, None))
    assert torch.equal(every(torch.arange(3), coords, coords), bias(coords, coords))
    assert every(torch.arange(3), coords + 7, coords)[:, 0, 0].isnan().all()


def test_beyond_the_table_is_an_error_that_says_how_to_resize():
    bias, coords = bias_of(8), sequence_coords(11)
    message = r"^ERPE holds the offsets within 8 tokens, got coords that lie up to 10 apart; .* bias.resize\(11\)$"
    with pytest.raises(ValueError, match=message):
        bias(coords, coords)
    assert bias.resize(11)(coords, coords).isfinite().all()
    got = torch.compile(bias, fullgraph=True, backend="aot_eager")(coords, coords)
    far = (coords[:, None] - coords[None])[..., 0].abs() > 7
    assert torch.equal(got.isnan(), far.expand(3, 11, 11))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_coordinates_that_are_no_numbers_give_nan_for_their_token(bad):
    coords = torch.tensor([[0.0], [bad], [2.0]])
    got = bias_of(3)(coords, coords)
    assert torch.equal(got.isnan(), (coords.isfinite() & coords.isfinite().mT).logical_not().expand(3, 3, 3))


def test_gradients_count_the_pairs_of_each_offset():
    bias, coords = bias_of(5), sequence_coords(5)
    bias(coords, coords).sum().backward()
    want = torch.tensor([1, 2, 3, 4, 5, 4, 3, 2, 1.0])
    assert torch.equal(bias.weight.grad, want[:, None].expand(9, 3))


@pytest.mark.parametrize("old, new", [(9, 14), (12, 7)])
def test_resize_stretches_the_table(old, new):
    bias = bias_of(old)
    resized = bias.resize(new)
    rows = bias.weight.detach().T[None, :, None]
    want = F.interpolate(rows, (1, 2 * new - 1), mode="bicubic", align_corners=False)[0, :, 0].T
    torch.testing.assert_close(resized.weight.detach(), want, atol=1e-6, rtol=0)
    assert (resized.size, resized.weight.requires_grad) == ((new,), True)
    same = bias.resize(old)
    assert torch.equal(same.weight, bias.weight)
    assert same.weight.data_ptr() != bias.weight.data_ptr()


def test_a_table_of_another_size_is_explained_or_resized_on_loading():
    source, bias = bias_of(9), bias_of(14)
    assert set(bias.state_dict()) == bias.no_weight_decay() == {"weight"}
    message = r"weight of the checkpoint holds the offsets within 9 tokens, this ERPE those within 14; .*resize\(14\)"
    with pytest.raises(RuntimeError, match=message):
        bias.load_state_dict(source.state_dict())
    bias = bias_of(14, resize_on_load=True)
    with pytest.warns(UserWarning, match="ERPE resized a table of 9 tokens to 14 on loading"):
        bias.load_state_dict(source.state_dict())
    assert torch.equal(bias.weight, source.resize(14).weight)
    assert bias.resize(3).resize_on_load


def test_the_bias_is_float32_in_a_model_of_any_dtype():
    bias, coords = bias_of(9), sequence_coords(9)
    rounded = bias_of(9)
    rounded.weight.data.copy_(bias.weight.bfloat16())
    got = bias.bfloat16()(coords, coords)
    assert got.dtype == torch.float32
    assert torch.equal(got, rounded(coords, coords))


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ({"num_heads": 0, "size": 7}, ValueError, "num_heads must be positive, got 0"),
        ({"num_heads": 2, "size": (2, 3, 4, 5)}, ValueError, r"size must have one to three axes, got \(2, 3, 4, 5\)"),
        ({"num_heads": 2, "size": -1}, ValueError, "size must be positive, got -1"),
        ({"num_heads": 2, "size": True}, TypeError, "size must be an integer, got True"),
    ],
)
def test_bad_arguments_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        ERPE(**arguments)


def test_other_axes_name_the_call_that_takes_them():
    with pytest.raises(ValueError, match=r"q_coords must have 1 axis \(t\), .* use ERPE\(size=\(y, x\)\)"):
        bias_of(7)(grid_coords(2, 3), sequence_coords(7))
