"""Attention biases in timm's models: their own exchanged for ours, and ours where they have none."""

import pytest
import torch

from mmpos import ALiBi, ContinuousBias, LearnedTable, RelativeLogits, SwinBias, T5Bias, grid_coords
from mmpos.adapters.timm import add_bias
from mmpos.models import GridPositions
from tests.adapters.timm.tiny import FAMILIES, GRID, close, create, images, make, out, state, swin


def beit_biases(model):
    """Ours with the tables of a BEiT, or the one that its layers share."""
    parts = [block.attn for block in model.blocks] if model.rel_pos_bias is None else [model.rel_pos_bias]
    biases = [SwinBias(3, GRID, prefix=True) for _ in parts]
    for bias, part in zip(biases, parts, strict=True):
        bias.load_state_dict({"weight": part.relative_position_bias_table.detach()})
    return biases if len(biases) > 1 else biases[0]


def swin_biases(model):
    attentions = [block.attn for stage in model.layers for block in stage.blocks]
    biases = [SwinBias(each.num_heads, each.window_size) for each in attentions]
    for bias, each in zip(biases, attentions, strict=True):
        bias.load_state_dict({"weight": each.relative_position_bias_table.detach()})
    return biases


@pytest.mark.parametrize("family", ["BEiT", "BEiT with a shared bias"])
def test_beits_bias_is_exchanged_for_the_same(family):
    model, x = make(family), images()
    with torch.no_grad():
        for name, table in model.named_parameters():
            if "bias_table" in name:
                table.normal_()
    before, expected, biases = state(model), out(model, x), beit_biases(model)
    with add_bias(model, biases):
        close(out(model, x), expected)
        assert not any("relative_position" in name for name, _ in model.named_parameters())
    assert state(model) == before
    with add_bias(model, SwinBias(3, GRID, prefix=True)):
        assert (out(model, x) - expected).abs().max() > 1e-2


@pytest.mark.parametrize("fused", [True, False])
def test_swins_bias_is_exchanged_for_the_same(fused):
    model, x = swin(), images(64, 96)
    with torch.no_grad():
        for stage in model.layers:
            for block in stage.blocks:
                block.attn.fused_attn = fused
                block.attn.relative_position_bias_table.normal_()
    before, expected = state(model), out(model, x)
    assert any(any(block.shift_size) for stage in model.layers for block in stage.blocks)
    slot = add_bias(model, swin_biases(model))
    close(out(model, x), expected)
    model.train()(x).sum().backward()
    assert all(bias.weight.grad.any() for bias in slot.encodings)
    slot.undo()
    assert state(model.eval()) == before
    with add_bias(model, [None, ALiBi(2, axes=2), ContinuousBias(3, (4, 6)), None]):
        assert (out(model, x) - expected).abs().max() > 1e-2
    close(out(model, x), expected, atol=0)


def test_a_layer_of_swin_without_a_bias_has_a_table_of_zeros():
    model, zeros, x = swin(), swin(), images(64, 96)
    add_bias(model, [None, None, ALiBi(3, axes=2), None])
    alibi, cells = ALiBi(3, axes=2), grid_coords(4, 6)
    with torch.no_grad():
        for stage in zeros.layers:
            for block in stage.blocks:
                block.attn.relative_position_bias_table.zero_()
        attention = zeros.layers[1].blocks[0].attn
        attention.relative_position_bias_table[attention.relative_position_index.flatten()] = (
            alibi(cells, cells).movedim(0, -1).flatten(0, 1)
        )
    close(out(model, x), out(zeros, x))


def mask_of(bias, prefix, grid=GRID):
    """The bias as a mask for all tokens, in the order of the formula."""
    n = grid[0] * grid[1]
    coords = grid_coords(*grid)
    full = torch.zeros(1, 3, prefix + n, prefix + n)
    full[..., prefix:, prefix:] = bias(coords, coords).detach()
    rows = bias.prefix_bias()
    if rows is not None:
        full[:, :, :prefix, prefix:] = rows[0, :, None, None].detach()
        full[:, :, prefix:, :prefix] = rows[1, :, None, None].detach()
        full[:, :, :prefix, :prefix] = rows[2, :, None, None].detach()
    return full


def swin_bias():
    bias = SwinBias(3, GRID, prefix=True)
    with torch.no_grad():
        for weight in bias.parameters():
            weight.normal_()
    return bias


@pytest.mark.parametrize("make_bias", [lambda: ALiBi(3, axes=2), swin_bias], ids=["ALiBi", "SwinBias"])
@pytest.mark.parametrize(
    "family", ["ViT", "ViT with registers", "DeiT III", "CLIP", "SigLIP", "DINOv2", "EVA-02", "DINOv3"]
)
def test_a_bias_is_the_mask_that_timm_could_be_given(family, make_bias):
    model, x, bias = make(family), images(), make_bias()
    mask = mask_of(bias, model.num_prefix_tokens)
    before = state(model)
    with torch.no_grad():
        expected = model(x, attn_mask=mask)
    with add_bias(model, bias):
        close(out(model, x), expected)
        hidden = torch.rand(1, 1, *mask.shape[-2:]) > 0.3
        least = torch.finfo(torch.float32).min
        with torch.no_grad():
            close(model(x, attn_mask=hidden), model(x, attn_mask=torch.zeros(1).masked_fill(~hidden, least)))
            both, causal = model(x, attn_mask=hidden), model(x, is_causal=True)
    with torch.no_grad():
        close(both, model(x, attn_mask=mask.masked_fill(~hidden, -torch.inf)))
        future = torch.ones(mask.shape[-2:]).triu(1).bool()
        close(causal, model(x, attn_mask=mask.masked_fill(future, -torch.inf)))
    assert state(model) == before


def test_naflex_takes_a_bias_in_batches_with_padding():
    model, x = make("NaFlexViT"), images()
    add_bias(model, ALiBi(3, axes=2))
    expected = out(model, x)
    cut = x.unfold(2, 16, 16).unfold(3, 16, 16).permute(0, 2, 3, 4, 5, 1).reshape(2, 15, -1)
    patches = torch.cat([cut, torch.zeros(2, 4, 768)], 1)
    coords = torch.cat([grid_coords(*GRID).expand(2, -1, -1), torch.zeros(2, 4, 2).long()], 1)
    valid = (torch.arange(19) < 15).expand(2, -1)
    for dtype, atol in ((torch.float32, 1e-5), (torch.bfloat16, 0.5)):
        batch = {"patches": patches.to(dtype), "patch_coord": coords, "patch_valid": valid}
        found = out(model.to(dtype), batch)
        close(found.float(), expected, atol=atol)


def test_patches_that_are_kept_and_gradients():
    model, x, bias = make("ViT", patch_drop_rate=0.4).train(), images(), swin_bias()
    add_bias(model, bias)
    shapes = []
    hook = model.blocks[0].attn.register_forward_pre_hook(
        lambda _, args, kwargs: shapes.append(kwargs["attn_mask"]), with_kwargs=True
    )
    model(x).sum().backward()
    hook.remove()
    assert shapes[0].shape == (2, 3, 10, 10)
    assert not torch.equal(shapes[0][0], shapes[0][1])
    whole = mask_of(bias, 1)[0]
    assert set(shapes[0].flatten().tolist()) <= set(whole.flatten().tolist())
    assert bias.weight.grad.any()
    assert bias.prefix_weight.grad.any()


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_takes_one_and_gives_it_back(family):
    model, x = make(family), images()
    before, expected = state(model), out(model, x)
    with add_bias(model, T5Bias(3, axes=2)):
        assert (out(model, x) - expected).abs().max() > 1e-4
    assert state(model) == before
    close(out(model, x), expected, atol=0)


def test_positions_are_those_that_are_asked_for():
    model, x = make("ViT"), images()
    with add_bias(model, ALiBi(3, axes=2)):
        near = out(model, x)
    with add_bias(model, ALiBi(3, axes=2), positions=GridPositions(trained=(30, 50))):
        far = out(model, x)
    assert (near - far).abs().max() > 1e-3
    with add_bias(model, swin_bias(), positions=GridPositions(trained=(30, 50))):  # a table takes cells
        assert out(model, x).isfinite().all()


def test_half_precision():
    model, x = make("ViT").bfloat16(), images().bfloat16()
    add_bias(model, ALiBi(3, axes=2))
    assert out(model, x).dtype == torch.bfloat16
    model, x = make("BEiT"), images()
    add_bias(model, ALiBi(3, axes=2))
    expected = out(model, x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        close(out(model, x).float(), expected, atol=0.3)


BAD = [
    (ALiBi(2, axes=2), "ALiBi has 2 heads, but blocks.0.attn has 3"),
    (ALiBi(3), r"bias must have 2 axes \(y, x\), got 1"),
    (SwinBias(3, (3, 4)), r"SwinBias holds the offsets within 3 x 4 tokens, got coords that lie up to 2 x 4 apart"),
    (
        RelativeLogits(3, 32, extent=(3, 5)),
        "RelativeLogits reads query, but blocks.0.attn takes a bias of coordinates only",
    ),
    ([ALiBi(3, axes=2)] * 2, "bias has 2 entries, but the model has 3 layers"),
]


@pytest.mark.parametrize("bias, message", BAD, ids=[message[:14] for _, message in BAD])
def test_what_does_not_fit_is_refused_and_the_model_stays_as_it_was(bias, message):
    model = make("ViT")
    before = state(model)
    with pytest.raises(ValueError, match=message):
        add_bias(model, bias)
    assert state(model) == before


def test_other_refusals():
    model, alibi = make("ViT"), ALiBi(3, axes=2)
    with pytest.raises(TypeError, match="bias must be made of AttentionBias"):
        add_bias(model, LearnedTable(96, (3, 5)))
    add_bias(model, alibi)
    before = state(model)
    with pytest.raises(ValueError, match=r"there already: call model.mmpos_bias.undo\(\) first"):
        add_bias(model, alibi)
    assert state(model) == before
    model = swin()
    before = state(model)
    with pytest.raises(ValueError, match=r"ALiBi has 2 heads, but layers.1.blocks.0.attn has 3"):
        add_bias(model, ALiBi(2, axes=2))
    with pytest.raises(ValueError, match="positions must be"):
        add_bias(model, [ALiBi(heads, axes=2) for heads in (2, 2, 3, 3)], positions=GridPositions(trained=(8, 8)))
    assert state(model) == before
    options = {"img_size": (64, 96), "window_size": (4, 6), "embed_dim": 24, "depths": (1, 1), "num_heads": (2, 3)}
    with pytest.raises(ValueError, match=r"layers.0.blocks.0 of SwinTransformerV2 attends within windows"):
        add_bias(create("swinv2_tiny_window8_256", **options), alibi)
    blocks = create("vit_tiny_patch16_224", img_size=(48, 80), embed_dim=96, depth=1, num_heads=3)
    attention = blocks.blocks[0].attn
    attention.__class__ = type("Other", (type(attention),), {})
    with pytest.raises(
        ValueError, match=r"blocks.0 is a Block with Other, whose queries and keys cannot be reached; known: Attention"
    ):
        add_bias(blocks, alibi)
