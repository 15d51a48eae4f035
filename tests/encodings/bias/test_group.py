import itertools
import math

import pytest
import torch
import torch.nn.functional as F

from mmpos import grid_coords, packed_coords
from mmpos.encodings.bias.group import GroupBias

# Variates of unequal length in no order, as Moirai packs them: ids, then patches.
COORDS = torch.tensor([[7, 0], [7, 1], [-2, 0], [7, 2], [40, 0], [-2, 1], [40, 1], [-2, 2], [-2, 3]])


def test_its_own_group_has_one_number_and_all_others_another():
    bias = GroupBias(5, axes=2)
    got = bias(COORDS, COORDS[:7])
    assert (got.dtype, got.shape) == (torch.float32, (5, 9, 7))
    for i, j in itertools.product(range(9), range(7)):
        assert torch.equal(got[:, i, j], bias.weight[int(COORDS[i, 0] == COORDS[j, 0])])


@pytest.mark.parametrize("num_groups", [None, 4])
def test_ids_stand_on_the_axis_that_is_named(num_groups):
    bias = GroupBias(3, axes=3, axis=2, num_groups=num_groups)
    coords = torch.tensor([[90, 5, 0], [91, 5, 3], [90, 6, 3], [-1, -1, 1]])
    alone = GroupBias(3, num_groups=num_groups)
    alone.weight = bias.weight
    assert torch.equal(bias(coords, coords), alone(coords[:, 2:], coords[:, 2:]))
    with pytest.raises(AssertionError):
        torch.testing.assert_close(bias(coords, coords), bias(coords.flip(-1) % 4, coords.flip(-1) % 4))


def test_names_of_groups_do_not_matter():
    bias = GroupBias(5, axes=2)
    renamed = COORDS.clone()
    for old, new in ((7, -2), (-2, 1_000_000), (40, 7)):
        renamed[COORDS[:, 0] == old, 0] = new
    assert torch.equal(bias(renamed, renamed), bias(COORDS, COORDS))


def test_permuting_tokens_permutes_the_bias():
    order = torch.randperm(9)
    for bias in (GroupBias(5, axes=2), GroupBias(5, axes=2, axis=1, num_groups=4)):
        whole = bias(COORDS, COORDS)
        assert torch.equal(bias(COORDS[order], COORDS[order]), whole[:, order][:, :, order])


def test_permuting_variates_permutes_what_attention_gives():
    bias, coords = GroupBias(2, axes=2), grid_coords(3, 4)
    q, k, v = torch.randn(3, 1, 2, 12, 8)
    order = torch.arange(12).view(3, 4)[[2, 0, 1]].flatten()
    want = F.scaled_dot_product_attention(q, k, v, attn_mask=bias(coords, coords))
    # The variates change places and take the ids of where they stand.
    got = F.scaled_dot_product_attention(q[:, :, order], k[:, :, order], v[:, :, order], attn_mask=bias(coords, coords))
    torch.testing.assert_close(got, want[:, :, order], atol=1e-6, rtol=0)


def test_each_ordered_pair_of_groups_has_its_number():
    bias = GroupBias(5, num_groups=3)
    q_ids, k_ids = torch.tensor([[0], [2], [1], [2]]), torch.tensor([[2], [0], [1]])
    got = bias(q_ids, k_ids)
    for i, j in itertools.product(range(4), range(3)):
        assert torch.equal(got[:, i, j], bias.weight[q_ids[i, 0], k_ids[j, 0]])
    assert not torch.equal(got[:, 1, 1], bias(torch.tensor([[0]]), torch.tensor([[2]]))[:, 0, 0])


def test_documents_of_a_pack_are_groups():
    _, document = packed_coords([2, 3])
    bias = GroupBias(4)
    same = bias(document[:, None], document[:, None])[0] == bias.weight[1, 0]
    assert same.tolist() == [[a == b for b in (0, 0, 1, 1, 1)] for a in (0, 0, 1, 1, 1)]


@pytest.mark.parametrize("num_groups", [None, 41])
def test_ids_are_the_same_in_every_dtype(num_groups):
    bias, ids = GroupBias(3, num_groups=num_groups), torch.tensor([[0], [40], [7], [40]])
    want = bias(ids, ids)
    for dtype in (torch.uint8, torch.int16, torch.int32, torch.float32, torch.float64):
        assert torch.equal(bias(ids.to(dtype), ids), want)


def test_any_number_is_a_name():
    bias = GroupBias(3)
    ids = torch.tensor([[-(2**60)], [2**60], [2**60 + 1], [2**60]])
    assert torch.equal(bias(ids, ids)[0] == bias.weight[1, 0], ids == ids.mT)
    ids = torch.tensor([[-0.5], [1e9 + 0.5], [1e9], [-0.5]], dtype=torch.float64)
    assert torch.equal(bias(ids, ids)[0] == bias.weight[1, 0], ids == ids.mT)


def test_a_batch_and_a_query_alone():
    bias = GroupBias(5, axes=2)
    coords = torch.stack([COORDS, COORDS.flip(0)])
    whole = bias(coords, coords)
    assert whole.shape == (2, 5, 9, 9)
    assert torch.equal(whole[1], bias(coords[1], coords[1]))
    assert torch.equal(bias(coords[:, 3:4], coords), whole[:, :, 3:4])


@pytest.mark.parametrize("num_groups", [None, 4])
def test_score_is_one_entry_of_the_bias(num_groups):
    bias = GroupBias(3, axes=2, axis=1, num_groups=num_groups)
    every = torch.vmap(torch.vmap(torch.vmap(bias.score, (None, None, 0)), (None, 0, None)), (0, None, None))
    assert torch.equal(every(torch.arange(3), COORDS, COORDS), bias(COORDS, COORDS))
    assert bias.score(torch.tensor(2), [*COORDS[3]], [*COORDS[1]]) == bias(COORDS, COORDS)[2, 3, 1]
    coords = COORDS.double()
    coords[2, 0], coords[4, 1] = math.nan, math.inf
    got, want = every(torch.arange(3), coords, coords), bias(coords, coords)
    assert torch.equal(got.isnan(), want.isnan())
    assert torch.equal(got.nan_to_num(), want.nan_to_num())


@pytest.mark.parametrize("num_groups", [None, 4])
@pytest.mark.parametrize("axis", [0, 1])
def test_coordinates_that_are_no_numbers_give_nan_for_their_token(num_groups, axis):
    bias, coords = GroupBias(3, axes=2, axis=1, num_groups=num_groups), COORDS.double()
    want = bias(coords, coords)
    coords[2, axis], coords[4, axis] = math.nan, math.inf
    got, bad = bias(coords, coords), [2, 4]
    want[:, bad], want[:, :, bad] = math.nan, math.nan
    torch.testing.assert_close(got, want, atol=0, rtol=0, equal_nan=True)
    got.nansum().backward()
    assert bias.weight.grad.isfinite().all()


@pytest.mark.parametrize("bad", [-1, 4, 3.5])
def test_ids_that_are_no_groups_are_refused(bad):
    bias, right = GroupBias(3, num_groups=4), torch.tensor([[0], [3]])
    wrong = torch.tensor([[0], [bad]])
    low, high = sorted([wrong[0, 0].item(), wrong[1, 0].item()])
    message = rf"^q_coords must have ids from 0 to 3 for num_groups=4, got ids from {low} to {high}$"
    with pytest.raises(ValueError, match=message):
        bias(wrong, right)
    with pytest.raises(ValueError, match=message.replace("q_coords", "k_coords")):
        bias(right, wrong)
    got = torch.compile(bias, fullgraph=True, backend="aot_eager")(wrong, right)
    assert got[:, 1].isnan().all()
    assert got[:, 0].isfinite().all()


def test_gradients_count_pairs():
    bias = GroupBias(2, axes=2)
    bias(COORDS, COORDS).sum().backward()
    own = 3**2 + 4**2 + 2**2
    assert torch.equal(bias.weight.grad, torch.tensor([[81.0 - own] * 2, [float(own)] * 2]))
    bias = GroupBias(2, num_groups=3)
    ids = torch.tensor([[0], [2], [2]])
    bias(ids, ids[:2]).sum().backward()
    want = torch.tensor([[1.0, 0, 1], [0, 0, 0], [2, 0, 2]])
    assert torch.equal(bias.weight.grad, want[..., None].expand(3, 3, 2))


def test_reset_parameters_draws_from_the_standard_normal_distribution():
    bias = GroupBias(64, num_groups=16)
    assert bias.weight.std().item() == pytest.approx(1, rel=0.05)
    first = bias.weight.detach().clone()
    bias.reset_parameters()
    assert not torch.equal(bias.weight, first)


def test_the_state_is_moirais():
    bias, table = GroupBias(6), torch.nn.Embedding(2, 6)
    assert set(bias.state_dict()) == bias.no_weight_decay() == {"weight"}
    bias.load_state_dict(table.state_dict())
    ids = torch.tensor([[3], [3], [5]])
    torch.testing.assert_close(bias(ids, ids).detach(), table((ids == ids.mT).long()).permute(2, 0, 1).detach())


def test_the_bias_is_float32_in_a_model_of_any_dtype():
    for bias in (GroupBias(3, axes=2), GroupBias(3, axes=2, axis=1, num_groups=4)):
        got = bias.bfloat16()(COORDS, COORDS)
        assert got.dtype == torch.float32
        bias.weight.data = bias.weight.data.float()
        assert torch.equal(got, bias(COORDS, COORDS))


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ({"num_heads": 0}, ValueError, "num_heads must be positive, got 0"),
        ({"num_heads": 2, "num_groups": 0}, ValueError, "num_groups must be positive, got 0"),
        ({"num_heads": 2, "axes": 2, "axis": 2}, ValueError, "axis must be from 0 to 1, got 2"),
        ({"num_heads": 2, "axes": 2, "axis": -1}, ValueError, "axis must be from 0 to 1, got -1"),
        ({"num_heads": 2, "axis": "y"}, TypeError, "axis must be an integer, got 'y'"),
    ],
)
def test_bad_arguments_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        GroupBias(**arguments)
