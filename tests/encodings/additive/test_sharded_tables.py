"""Tables that FSDP and tensor parallelism have cut: loading, resizing and gradients, on one and two processes."""

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch.distributed.tensor as distributed
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.fsdp import fully_shard

from mmpos import LearnedTable, grid_coords
from mmpos.encodings.additive.tables import FactorizedTable
from mmpos.models.blocks import no_weight_decay_names
from mmpos.resample import resample_bias_table, resample_pos_embed, resample_table
from tests import forks

PLACEMENTS = [distributed.Shard(0), distributed.Shard(1), distributed.Replicate()]


@pytest.fixture
def mesh():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def cut(tensor, mesh, placement):
    return distributed.distribute_tensor(tensor, mesh, [placement])


def cut_module(module, mesh, placement):
    for name, parameter in list(module.named_parameters()):
        setattr(module, name, nn.Parameter(cut(parameter.detach(), mesh, placement)))
    return module


def check(got, want, placement):
    assert isinstance(got, distributed.DTensor)
    assert (got.placements, got.dtype) == ((placement,), want.dtype)
    assert torch.equal(got.full_tensor(), want)


CHANGES = {
    "table": ((14, 10, 6), lambda table: resample_table(table, (16, 12))),
    "keep": ((77, 6), lambda table: resample_table(table, (248,), keep=20)),
    "flat": ((141, 6), lambda flat: resample_pos_embed(flat, (9, 12), old_size=(14, 10), num_prefix_tokens=1)),
    "offsets": (
        (3 + 13 * 9, 6),
        lambda table: resample_bias_table(table, (9, 8), old_window=(7, 5), num_prefix_rows=3),
    ),
    "geometric": ((13 * 9, 6), lambda table: resample_bias_table(table, (9, 8), old_window=(7, 5), mode="geometric")),
}


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("name", CHANGES)
def test_a_cut_tensor_is_resampled_whole_and_cut_alike(mesh, name, placement):
    shape, change = CHANGES[name]
    for dtype in (torch.float32, torch.bfloat16):
        table = torch.randn(shape).to(dtype)
        check(change(cut(table, mesh, placement)), change(table), placement)


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("name", CHANGES)
def test_gradients_reach_a_cut_tensor(mesh, name, placement):
    shape, change = CHANGES[name]
    whole = torch.randn(shape).requires_grad_()
    pieces = cut(whole.detach(), mesh, placement).requires_grad_()
    change(whole).square().sum().backward()
    change(pieces).square().sum().backward()
    assert pieces.grad.placements == (placement,)
    torch.testing.assert_close(pieces.grad.full_tensor(), whole.grad, atol=1e-5, rtol=0)


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("kind", [LearnedTable, FactorizedTable])
def test_a_cut_table_is_resized(mesh, kind, placement):
    table = kind(6, (14, 10))
    want = list(table.resize(16, 12).parameters())
    for got, whole in zip(cut_module(table, mesh, placement).resize(16, 12).parameters(), want, strict=True):
        assert isinstance(got, nn.Parameter)
        check(got, whole, placement)


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("meta", [True, False])
@pytest.mark.parametrize("kind", [LearnedTable, FactorizedTable])
def test_a_cut_checkpoint_of_another_grid_is_taken(mesh, kind, meta, placement):
    source = kind(6, (14, 10))
    want = list(source.resize(16, 12).parameters())
    state = cut_module(source, mesh, placement).state_dict()
    if meta:
        with torch.device("meta"):
            table = kind(6, (16, 12), resize_on_load=True)
    else:
        table = cut_module(kind(6, (16, 12), resize_on_load=True), mesh, placement)
    with pytest.warns(UserWarning, match="14 x 10 .* 16 x 12"):
        table.load_state_dict(state, assign=meta)
    for got, whole in zip(table.parameters(), want, strict=True):
        check(got, whole, placement)


def test_a_cut_checkpoint_of_another_grid_is_refused_by_default(mesh):
    state = cut_module(LearnedTable(6, (14, 10)), mesh, distributed.Shard(0)).state_dict()
    with pytest.raises(RuntimeError, match="the checkpoint holds 14 x 10 positions, this LearnedTable 16 x 12"):
        LearnedTable(6, (16, 12)).load_state_dict(state)


def test_other_kinds_of_tensors_are_resampled_as_they_are():
    class Named(torch.Tensor):
        pass

    table = torch.randn(14, 10, 6)
    got = resample_table(table.as_subclass(Named), (16, 12))
    assert torch.equal(got.as_subclass(torch.Tensor), resample_table(table, (16, 12)))


def test_a_cut_tensor_without_memory_gives_shapes(mesh):
    table = cut(torch.empty(14, 10, 6, device="meta"), mesh, distributed.Shard(0))
    got = resample_table(table, (16, 12))
    assert (got.device.type, tuple(got.shape), got.placements) == ("meta", (16, 12, 6), (distributed.Shard(0),))


@pytest.mark.parametrize("kind", [LearnedTable, FactorizedTable])
def test_tables_do_not_decay_behind_a_wrapper(mesh, kind):
    model = nn.Sequential(nn.Linear(3, 3), kind(3, (4, 5)))
    wrapped = nn.parallel.DistributedDataParallel(model)
    names = {f"1.{name}" for name, _ in model[1].named_parameters()}
    assert no_weight_decay_names(model) == names
    assert no_weight_decay_names(wrapped) == {f"module.{name}" for name in names}


def hold_shares(rank, place):
    dist.init_process_group(
        "gloo", store=dist.FileStore(str(place), 2), rank=rank, world_size=2, timeout=timedelta(seconds=60)
    )
    mesh = dist.init_device_mesh("cpu", (2,))
    torch.manual_seed(0)
    table = torch.randn(13, 10, 6)  # 13 rows do not share out evenly
    whole = table.clone().requires_grad_()
    want = resample_table(whole, (17, 12))
    want.square().sum().backward()
    for axis in range(3):
        pieces = distributed.distribute_tensor(table, mesh, [distributed.Shard(axis)]).requires_grad_()
        got = resample_table(pieces, (17, 12))
        got.square().sum().backward()
        assert got.to_local().shape[axis] < want.shape[axis]
        assert torch.equal(got.full_tensor(), want), axis
        torch.testing.assert_close(pieces.grad.full_tensor(), whole.grad, atol=1e-5, rtol=0)

    model = fully_shard(nn.Sequential(LearnedTable(6, (17, 12), resize_on_load=True)))
    with pytest.warns(UserWarning, match="13 x 10 positions of the checkpoint to the 17 x 12"):
        set_model_state_dict(model, {"0.weight": table}, options=StateDictOptions(full_state_dict=True))
    assert torch.equal(model[0].weight.full_tensor(), want)
    smaller = model[0].resize(5, 7).weight
    assert torch.equal(smaller.full_tensor(), resample_table(want, (5, 7)))
    assert torch.equal(model(grid_coords(17, 12)), want.flatten(0, 1))
    dist.destroy_process_group()


def test_two_processes_hold_their_shares(tmp_path):
    forks.together(tmp_path, hold_shares, tmp_path / "store")
