import pytest
import torch
from torch import nn

from mmpos import LearnedTable


def table_of(size, dtype=torch.float32):
    table = LearnedTable(6, size=size)
    nn.init.normal_(table.weight)
    return table.to(dtype)


@pytest.mark.parametrize("mode", ["bicubic", "bilinear"])
@pytest.mark.parametrize("antialias", [True, False])
@pytest.mark.parametrize(
    "old, new", [((14, 10), (16, 12)), ((14, 14), (7, 9)), ((6, 11), (11, 6)), ((3, 8), (24, 1)), ((7, 5), (7, 5))]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_timm_resampling(old, new, mode, antialias, dtype):
    layers = pytest.importorskip("timm.layers", reason="needs timm")
    table, prefix = table_of(old, dtype), torch.randn(1, 2, 6).to(dtype)
    theirs = layers.resample_abs_pos_embed(
        torch.cat([prefix, table.weight.detach().flatten(0, 1)[None]], dim=1),
        list(new),
        list(old),
        num_prefix_tokens=2,
        interpolation=mode,
        antialias=antialias,
    )
    ours = table.resize(*new, mode=mode, antialias=antialias).weight.flatten(0, 1)
    assert torch.equal(ours, theirs[0, 2:])


def test_timm_resampling_by_default():
    layers = pytest.importorskip("timm.layers", reason="needs timm")
    table = table_of((14, 10))
    theirs = layers.resample_abs_pos_embed_nhwc(table.weight.detach()[None], [16, 12])
    assert torch.equal(table.resize(16, 12).weight, theirs[0])
