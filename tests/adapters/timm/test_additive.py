"""Position embeddings of timm's models replaced and removed."""

import pytest
import torch

from mmpos import FactorizedTable, LearnedTable, RoPE, Sinusoidal
from mmpos.adapters.timm import add_rotary, remove_pos_embed, replace_pos_embed
from mmpos.models import GridPositions
from mmpos.resample import split_pos_embed
from tests.adapters.timm.tiny import (
    FAMILIES,
    GRID,
    WITH_TABLE,
    close,
    create,
    images,
    make,
    out,
    state,
    swin,
)


def own_table(model):
    """Ours with what the model has for its patches."""
    embeds = getattr(model, "embeds", None)
    if embeds is None:
        prefix = model.pos_embed.shape[1] - GRID[0] * GRID[1]
        table = LearnedTable(96, GRID)
        table.load_state_dict({"weight": split_pos_embed(model.pos_embed.detach(), GRID, num_prefix_tokens=prefix)[1]})
        return table
    if embeds.pos_embed is not None:
        table = LearnedTable(96, GRID)
        table.load_state_dict({"weight": embeds.pos_embed.detach()[0]})
        return table
    table = FactorizedTable(96, GRID)
    rows = {"weight_y": embeds.pos_embed_y.detach()[0], "weight_x": embeds.pos_embed_x.detach()[0]}
    table.load_state_dict(rows)
    return table


@pytest.mark.parametrize("family", WITH_TABLE)
def test_the_same_table_changes_nothing(family):
    model, x = make(family), images()
    before, expected = state(model), out(model, x)
    with replace_pos_embed(model, own_table(model)):
        close(out(model, x), expected)
        assert not any(name in ("pos_embed", "embeds.pos_embed", "embeds.pos_embed_y") for name in model.state_dict())
    assert state(model) == before
    close(out(model, x), expected, atol=0)


@pytest.mark.parametrize("family", WITH_TABLE)
def test_without_an_embedding_only_prefix_tokens_have_rows(family):
    model, x = make(family), images()
    expected, whole = out(model, x), make(family)
    owner = getattr(whole, "embeds", whole)
    with torch.no_grad():  # zeros for the patches are no embedding
        for name in ("pos_embed", "pos_embed_y", "pos_embed_x"):
            table = getattr(owner, name, None)
            if table is not None:
                prefix = table.shape[1] - 15 if table.ndim == 3 and name == "pos_embed" else 0
                table[:, prefix:] = 0
    with remove_pos_embed(model) as slot:
        close(out(model, x), out(whole, x))
        assert (out(model, x) - expected).abs().max() > 1e-3
        rows = 0 if slot.prefix is None else slot.prefix.shape[1]
        assert rows == (1 if family in ("ViT", "parallel", "CLIP", "BEiT with a shared bias", "EVA-02") else 0)
    close(out(model, x), expected, atol=0)


@pytest.mark.parametrize("family", ["ViT", "BEiT with a shared bias", "DINOv3", "EVA-02", "NaFlexViT"])
def test_any_encoding_is_added_to_the_patches(family):
    """By the formula: what the patch embedding gives gains it, and prefix tokens nothing."""
    model, x = make(family), images()
    encoding = Sinusoidal(96, axes=2, base=20.0)
    y, x_ = torch.meshgrid(torch.arange(3.0).double(), torch.arange(5.0).double(), indexing="ij")
    phases = [axis.reshape(-1, 1) * 20.0 ** (-torch.arange(24) / 24) for axis in (y, x_)]
    added = torch.cat([torch.stack([each.sin(), each.cos()], -1).flatten(1) for each in phases], 1).float()
    slot, entered = replace_pos_embed(model, encoding), []
    hook = model.blocks[0].register_forward_pre_hook(lambda _, args: entered.append(args[0]))
    found = out(model, x)
    slot.undo()
    with remove_pos_embed(model) if family != "DINOv3" else torch.no_grad():
        out(model, x)
    hook.remove()
    prefix = model.num_prefix_tokens
    close(entered[0][:, prefix:] - entered[1][:, prefix:], added.expand(2, -1, -1))
    close(entered[0][:, :prefix], entered[1][:, :prefix])
    assert found.isfinite().all()


def test_sizes_that_change():
    model = make("ViT", dynamic_img_size=True)
    replace_pos_embed(model, Sinusoidal(96, axes=2))
    entered = []
    model.blocks[0].register_forward_pre_hook(lambda _, args: entered.append(args[0]))
    for size in ((48, 80), (80, 32)):
        out(model, images(*size))
    assert [each.shape[1] for each in entered] == [16, 11]
    slot = model.mmpos_additive
    slot.undo()
    replace_pos_embed(model, LearnedTable(96, GRID))
    with pytest.raises(ValueError, match=r"LearnedTable holds 3 x 5 positions, got coords up to"):
        model(images(80, 32))


def test_positions_are_those_that_are_asked_for():
    model, x = make("ViT"), images()
    with replace_pos_embed(model, Sinusoidal(96, axes=2)):
        plain = out(model, x)
    with replace_pos_embed(model, Sinusoidal(96, axes=2), positions=GridPositions(normalise="max")):
        assert (out(model, x) - plain).abs().max() > 1e-3


def test_dropout_and_dropped_patches_stay():
    """timm leaves the dropout of embeddings out where there is none; the slot does not."""
    model, own, x = (make("ViT", pos_drop_rate=0.3, patch_drop_rate=0.4).train() for _ in range(2)), None, images()
    model, own = model
    replace_pos_embed(model, own_table(model))
    results = []
    for each in (model, own):
        torch.manual_seed(4)
        results.append(each(x))
    close(*results)


def test_rows_are_trained_where_the_table_was():
    model = make("ViT")
    model.pos_embed.requires_grad_(False)
    assert not replace_pos_embed(model, LearnedTable(96, GRID)).prefix.requires_grad
    model = make("ViT").train()
    slot = replace_pos_embed(model, LearnedTable(96, GRID))
    model(images()).sum().backward()
    assert slot.prefix.grad.any()
    assert slot.encodings[0].weight.grad.any()


def test_with_a_rotation_and_no_embedding_transposed_images_give_transposed_attention():
    """A ViT that is told nothing of position does not see where patches are; with RoPE it does."""
    model, x = make("SigLIP", dynamic_img_size=True), images()
    columns = x.unflatten(3, (5, 16)).flip(3).flatten(3, 4)  # patches in the reverse order
    remove_pos_embed(model)
    close(out(model, columns), out(model, x))
    add_rotary(model, RoPE(32, axes=2, base=3.0))
    assert (out(model, columns) - out(model, x)).abs().max() > 1e-3


BAD = [
    ("ViT", Sinusoidal(64, axes=2), r"dim \(64\) must be the width of the model \(96\)"),
    ("ViT", Sinusoidal(96), r"encoding must have 2 axes \(y, x\), got 1"),
    ("ViT", LearnedTable(96, (3, 4)), r"LearnedTable holds 3 x 4 positions, got coords up to \(2, 4\)"),
    ("DeiT", Sinusoidal(96, axes=2), "VisionTransformerDistilled adds its pos_embed in any case"),
]


@pytest.mark.parametrize("family, encoding, message", BAD, ids=[message[:20] for *_, message in BAD])
def test_what_does_not_fit_is_refused_and_the_model_stays_as_it_was(family, encoding, message):
    model = make(family)
    before = state(model)
    with pytest.raises(ValueError, match=message):
        replace_pos_embed(model, encoding)
    assert state(model) == before


def test_other_refusals():
    with pytest.raises(TypeError, match="encoding must be an AdditiveEncoding"):
        replace_pos_embed(make("ViT"), RoPE(32, axes=2))
    with pytest.raises(ValueError, match="Eva has no position embedding to remove"):
        remove_pos_embed(make("DINOv3"))
    with pytest.raises(ValueError, match="SwinTransformer attends within windows"):
        remove_pos_embed(swin())
    model = make("ViT")
    remove_pos_embed(model)
    for again in (remove_pos_embed, lambda model: replace_pos_embed(model, Sinusoidal(96, axes=2))):
        with pytest.raises(ValueError, match=r"there already: call model.mmpos_additive.undo\(\) first"):
            again(model)
    assert set(FAMILIES) - set(WITH_TABLE) == {"DeiT", "BEiT", "DINOv3", "Sapiens 2"}
    with pytest.raises(ValueError, match="ResNet is none of the models known"):
        remove_pos_embed(create("resnet10t"))
