"""Resizing against timm and transformers: whole tables, non-square grids.

Where not told otherwise they take the old grid for a square and one row for a class token; we are always told. What
else differs is said at each test.
"""

import math

import pytest
import torch
from torch import nn

from mmpos import LearnedTable, grid_coords
from mmpos.encodings.additive.tables import FactorizedTable
from mmpos.resample import resample_bias_table, resample_pos_embed, resample_table

GRIDS = [((14, 10), (16, 12)), ((14, 14), (7, 9)), ((6, 11), (11, 6)), ((3, 8), (24, 1)), ((7, 5), (7, 5))]


@pytest.fixture
def layers():
    return pytest.importorskip("timm.layers", reason="needs timm")


def table_of(size, dtype=torch.float32):
    table = LearnedTable(6, size=size)
    nn.init.normal_(table.weight)
    return table.to(dtype)


# timm: the same bits


@pytest.mark.parametrize("mode", ["bicubic", "bilinear"])
@pytest.mark.parametrize("antialias, align_corners", [(True, False), (False, False), (False, True)])
@pytest.mark.parametrize("old, new", GRIDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_timm_resampling(layers, old, new, mode, antialias, align_corners, dtype):
    table, prefix = table_of(old, dtype), torch.randn(1, 2, 6).to(dtype)
    flat = torch.cat([prefix, table.weight.detach().flatten(0, 1)[None]], dim=1)
    theirs = layers.resample_abs_pos_embed(
        flat,
        list(new),
        list(old),
        num_prefix_tokens=2,
        interpolation=mode,
        antialias=antialias,
        align_corners=align_corners,
    )
    options = {"mode": mode, "antialias": antialias, "align_corners": align_corners}
    assert torch.equal(table.resize(*new, **options).weight.flatten(0, 1), theirs[0, 2:])
    assert torch.equal(resample_pos_embed(flat, new, old_size=old, num_prefix_tokens=2, **options), theirs)


@pytest.mark.parametrize("old, new", [((14, 14), (7, 9)), ((14, 14), (14, 14)), ((14, 14), (28, 7))])
def test_timm_resampling_by_default(layers, old, new):
    flat = torch.randn(1, 1 + math.prod(old), 6)
    ours = resample_pos_embed(flat, new, old_size=old, num_prefix_tokens=1)
    # timm takes as many cells for the same grid only if that is square, so 14 x 14 to 28 x 7 is resampled by both.
    assert torch.equal(ours, layers.resample_abs_pos_embed(flat, list(new)))


@pytest.mark.parametrize("mode", ["bicubic", "bilinear"])
@pytest.mark.parametrize("antialias", [True, False])
@pytest.mark.parametrize("old, new", GRIDS)
def test_timm_resampling_of_channels_last(layers, old, new, mode, antialias):
    table = table_of(old)
    theirs = layers.resample_abs_pos_embed_nhwc(
        table.weight.detach()[None], list(new), interpolation=mode, antialias=antialias
    )
    assert torch.equal(table.resize(*new, mode=mode, antialias=antialias).weight, theirs[0])


WINDOWS = [((7, 7), (12, 12)), ((14, 10), (16, 12)), ((14, 14), (24, 20)), ((14, 10), (14, 12)), ((12, 9), (7, 5))]


def bias_table(window, prefix, dtype=torch.float32):
    return torch.randn(math.prod(2 * side - 1 for side in window) + prefix, 6).to(dtype)


@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence", "ignore:torch.searchsorted")
@pytest.mark.parametrize("prefix", [0, 3])
@pytest.mark.parametrize("old, new", WINDOWS)
def test_timm_geometric_offsets(layers, old, new, prefix):
    table = bias_table(old, prefix)
    shape = (math.prod(2 * side - 1 for side in new) + prefix, 6)
    theirs = layers.resize_rel_pos_bias_table(table, new, shape, old_window_size=old)
    ours = resample_bias_table(table, new, old_window=old, num_prefix_rows=prefix, mode="geometric")
    # timm reads off in float32 from places rounded to it, which lie up to 30 from the centre.
    torch.testing.assert_close(ours, theirs, atol=5e-6, rtol=0)
    assert torch.equal(ours[len(ours) - prefix :], theirs[len(theirs) - prefix :])


@pytest.mark.parametrize("prefix", [0, 3])
@pytest.mark.parametrize("new", [(12, 12), (9, 16), (5, 4)])
def test_timm_simple_offsets(layers, new, prefix):
    from timm.layers.pos_embed_rel import resize_rel_pos_bias_table_simple

    table = bias_table((7, 7), prefix)
    theirs = resize_rel_pos_bias_table_simple(table, new, (math.prod(2 * side - 1 for side in new) + prefix, 6))
    assert torch.equal(resample_bias_table(table, new, old_window=(7, 7), num_prefix_rows=prefix), theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("old, new", [(7, 12), (9, 5)])
def test_timm_levit_offsets(layers, old, new, dtype):
    from timm.layers.pos_embed_rel import resize_rel_pos_bias_table_levit

    table = bias_table((old, old), 0, dtype)
    theirs = resize_rel_pos_bias_table_levit(table, ((2 * new - 1) ** 2, 6))
    assert torch.equal(resample_bias_table(table, (new, new), old_window=(old, old), antialias=True), theirs)


@pytest.mark.parametrize("grid", [(14, 10), (20, 9), (7, 12)])
def test_timm_naflex_factorized(grid):
    naflexvit = pytest.importorskip("timm.models.naflexvit", reason="needs timm")
    theirs = naflexvit.NaFlexEmbeds(
        patch_size=2, embed_dim=6, class_token=False, pos_embed="factorized", pos_embed_grid_size=(14, 10)
    )
    ours = FactorizedTable(6, size=(14, 10))
    with torch.no_grad():
        ours.weight_y.copy_(theirs.pos_embed_y.normal_()[0])
        ours.weight_x.copy_(theirs.pos_embed_x.normal_()[0])
    want = torch.zeros(1, math.prod(grid), 6)
    with torch.no_grad():
        theirs._apply_factorized_pos_embed(want, list(grid))
    table = ours.resize(*grid, mode="bilinear", antialias=False)
    torch.testing.assert_close(table(grid_coords(*grid)), want[0], atol=1e-6, rtol=0)


# transformers: always a class token of one row, a square old grid, no antialiasing in ViT and DINOv2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "name, antialias",
    [
        ("vit.modeling_vit.ViT", False),
        ("dinov2.modeling_dinov2.Dinov2", False),
        ("dinov2_with_registers.modeling_dinov2_with_registers.Dinov2WithRegisters", True),
    ],
)
@pytest.mark.parametrize("grid", [(14, 10), (5, 7), (8, 8), (16, 4)])
def test_transformers_interpolation(name, antialias, grid, dtype):
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    model, _, kind = name.rpartition(".")
    module = pytest.importorskip(f"transformers.models.{model}", reason="needs transformers")
    config = getattr(transformers, f"{kind}Config")(hidden_size=6, image_size=16, patch_size=2)
    theirs = getattr(module, f"{kind}Embeddings")(config).to(dtype)
    flat = theirs.position_embeddings.detach().normal_()
    want = theirs.interpolate_pos_encoding(torch.zeros(1, 1 + math.prod(grid), 6), 2 * grid[0], 2 * grid[1])
    ours = resample_pos_embed(flat, grid, old_size=(8, 8), num_prefix_tokens=1, antialias=antialias)
    if kind == "ViT" or dtype == torch.float32:
        assert torch.equal(ours, want)
    # DINOv2 computes in float32 even in a float64 model.
    torch.testing.assert_close(ours, want, atol=5e-6, rtol=0)


@pytest.mark.parametrize("grid", [(14, 10), (5, 7), (8, 8), (16, 4)])
def test_transformers_siglip2(grid):
    siglip2 = pytest.importorskip("transformers.models.siglip2.modeling_siglip2", reason="needs transformers")
    table = torch.randn(8, 8, 6)
    theirs = siglip2.Siglip2VisionEmbeddings.resize_positional_embeddings(
        table, torch.tensor([grid]), max_length=math.prod(grid) + 3
    )
    ours = resample_table(table, grid, mode="bilinear", antialias=True)
    torch.testing.assert_close(ours.flatten(0, 1), theirs[0, : math.prod(grid)], atol=2e-6, rtol=0)


@pytest.mark.parametrize("grid", [(14, 10), (5, 7), (8, 8), (16, 4), (1, 9)])
@pytest.mark.parametrize("mode, align_corners", [("bilinear", True), ("bilinear", False), ("bicubic", False)])
def test_transformers_qwen3_vl_and_others(grid, mode, align_corners):
    vision_utils = pytest.importorskip("transformers.vision_utils", reason="needs transformers")
    table = torch.randn(8, 8, 6, dtype=torch.float64)
    index, weight = vision_utils.get_vision_interpolation_indices_and_weights(
        torch.tensor([[1, *grid]]), 8, mode=mode, align_corners=align_corners
    )
    theirs = (table.flatten(0, 1)[index] * weight[..., None]).sum(1)
    ours = resample_table(table, grid, mode=mode, antialias=False, align_corners=align_corners)
    # Their weights are float32, of places up to 7 rounded to it.
    torch.testing.assert_close(ours.flatten(0, 1), theirs, atol=5e-6, rtol=0)
    if (mode, align_corners) == ("bilinear", True):  # as a gather at the same places, which a table does itself
        learned = LearnedTable(6, size=(8, 8)).double()
        with torch.no_grad():
            learned.weight.copy_(table)
        spacing = [7 / max(side - 1, 1) for side in grid]
        torch.testing.assert_close(learned(grid_coords(*grid, spacing=spacing)), ours.flatten(0, 1), atol=1e-12, rtol=0)
