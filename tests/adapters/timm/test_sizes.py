"""Models of timm brought from 224 x 224 to other sizes, with each kind of encoding, their own and ours."""

import pytest
import torch

from mmpos import ALiBi, Axial, ContinuousBias, FactorizedTable, LearnedTable, Mixed, RoPE, Sinusoidal, SwinBias
from mmpos.adapters.timm import add_bias, add_rotary, remove_pos_embed, replace_pos_embed, set_input_size
from mmpos.frequencies import Periods
from mmpos.models import GridPositions
from mmpos.resample import resample_bias_table, resample_pos_embed
from tests.adapters.timm.tiny import FAMILIES, close, create, images, make, out, state

# Of timm's own interpolation of tables.
pytestmark = pytest.mark.filterwarnings("ignore:Using a non-tuple sequence", "ignore:torch.searchsorted")
OLD, NEW = (14, 14), (20, 12)
IMAGE = (320, 192)


def square(family, **changes):
    size = {"pos_embed_grid_size": OLD} if "NaFlex" in family else {"img_size": (224, 224)}
    return make(family, **{**size, **changes})


def swin(**changes):
    """As in Swin, every stage but the last has windows of 7 x 7, which it divides."""
    options = {"img_size": (224, 224), "embed_dim": 24, "depths": (2, 1, 1, 1), "num_heads": (2, 3, 3, 4)}
    return create("swin_tiny_patch4_window7_224", **{**options, "num_classes": 7, **changes})


@pytest.mark.parametrize("family", FAMILIES)
def test_own_encodings_as_timm_resamples_them(family):
    model, x = square(family), images(*IMAGE)
    expected = square(family)
    if "NaFlex" not in family:
        expected.set_input_size(img_size=IMAGE)
    set_input_size(model, *IMAGE)
    if "BEiT" in family:  # whose tables timm resamples in another way
        for name, table in expected.named_parameters():
            if "bias_table" in name:
                old = dict(square(family).named_parameters())[name].detach()
                new = resample_bias_table(old, NEW, old_window=OLD, num_prefix_rows=3)
                assert torch.equal(new[-3:], old[-3:])
                table.data = new
    close(out(model, x), out(expected, x), atol=3e-5)
    assert all(each.requires_grad for each in model.parameters())


@pytest.mark.parametrize("family", ["NaFlexViT", "NaFlexViT, factorized"])
def test_tables_of_naflex_that_preserve_the_aspect_ratio(family):
    model, x = square(family, pos_embed_ar_preserving=True), images(*IMAGE)
    expected = out(model, x)
    set_input_size(model, *IMAGE)
    close(out(model, x), expected)
    assert model.embeds.pos_embed_grid_size == (20, 20)


@pytest.mark.parametrize("prefix", [True, False])
def test_tables_are_resampled_by_mmpos(prefix):
    model = square("ViT", no_embed_class=not prefix)
    model.pos_embed.requires_grad_(False)
    own, keys = model.pos_embed.detach().clone(), list(model.state_dict())
    set_input_size(model, *IMAGE)
    expected = resample_pos_embed(own, NEW, old_size=OLD, num_prefix_tokens=int(prefix))
    assert torch.equal(model.pos_embed, expected)
    assert not model.pos_embed.requires_grad
    assert list(model.state_dict()) == keys


def test_the_same_size_changes_nothing():
    for model in (square("ViT"), square("BEiT"), swin()):
        before = state(model)
        set_input_size(model, 224, 224)
        assert state(model)[::2] == before[::2]


OURS = {
    "learned table": (replace_pos_embed, lambda: LearnedTable(96, OLD)),
    "factorized table": (replace_pos_embed, lambda: FactorizedTable(96, OLD)),
    "sinusoid": (replace_pos_embed, lambda: Sinusoidal(96, axes=2)),
    "RoPE": (add_rotary, lambda: RoPE(32, axes=2, base=100.0, layout="interleaved")),
    "mixed RoPE": (
        add_rotary,
        lambda: RoPE(32, axes=2, base=10.0, spectrum=Mixed(), num_heads=3, layout="interleaved"),
    ),
    "ALiBi": (add_bias, lambda: ALiBi(3, axes=2)),
    "Swin's bias": (add_bias, lambda: SwinBias(3, OLD, prefix=True)),
    "continuous bias": (add_bias, lambda: ContinuousBias(3, OLD)),
}


@pytest.mark.parametrize("family", ["ViT", "DeiT III", "BEiT", "EVA-02", "NaFlexViT"])
@pytest.mark.parametrize("kind", OURS)
def test_each_kind_of_encoding_of_ours(kind, family):
    """As if a model of the new size had been given the encoding for that grid."""
    add, encoding = OURS[kind]
    model, x, given = square(family), images(*IMAGE), encoding()
    add(model, given)
    out(model, images(224, 224))
    set_input_size(model, *IMAGE)
    expected = square(family)
    set_input_size(expected, *IMAGE)
    add(expected, given.resize(*NEW))
    if "pos" in add.__name__ and expected.mmpos_additive.prefix is not None:
        close(model.mmpos_additive.prefix, expected.mmpos_additive.prefix, atol=0)
    close(out(model, x), out(expected, x))
    for each in (model, expected):  # what was put aside has the new size too
        for name in ("mmpos_additive", "mmpos_rotary", "mmpos_bias"):
            if getattr(each, name, None) is not None:
                getattr(each, name).undo()
    close(out(model, x), out(expected, x), atol=0)


def test_dinov3_at_three_sizes():
    """Without any change of the model where it takes any size, and by set_input_size where it does not."""
    rope = RoPE(32, axes=2, spectrum=Axial(series=Periods(1, 100, endpoint=False)))
    positions = GridPositions(normalise="separate")
    fixed, free = square("DINOv3"), square("DINOv3", dynamic_img_size=True)
    own = square("DINOv3", dynamic_img_size=True)
    for model in (fixed, free):
        add_rotary(model, rope, positions=positions)
    for size in ((224, 224), (320, 192), (112, 256)):
        set_input_size(fixed, *size)
        expected = out(own, images(*size))
        for model in (fixed, free):
            close(out(model, images(*size)), expected)
    fixed.mmpos_rotary.undo()
    close(out(fixed, images(112, 256)), out(own, images(112, 256)))


def test_swin():
    model, expected, x = swin(), swin(), images(*IMAGE)
    old = {name: table.detach().clone() for name, table in model.named_parameters() if "bias_table" in name}
    set_input_size(model, *IMAGE)
    expected.set_input_size(img_size=IMAGE)
    for name, table in expected.named_parameters():
        if "bias_table" in name:
            part = expected.get_submodule(name.rpartition(".")[0])
            table.data = resample_bias_table(old[name], part.window_size, old_window=(7, 7))
    assert [stage.blocks[0].window_size for stage in model.layers] == [(10, 6)] * 4
    close(out(model, x), out(expected, x), atol=0)


def test_swin_with_biases_of_ours():
    model, x = swin(), images(*IMAGE)
    biases = [SwinBias(heads, (7, 7)) for heads in (2, 3, 3, 4)]
    add_bias(model, [biases[0], *biases])  # two layers share the first
    set_input_size(model, *IMAGE)
    expected = swin()
    set_input_size(expected, *IMAGE)
    resized = [each.resize(10, 6) for each in biases]
    add_bias(expected, [resized[0], *resized])
    close(out(model, x), out(expected, x), atol=0)
    model.mmpos_bias.undo()
    plain = swin()
    set_input_size(plain, *IMAGE)
    close(out(model, x), out(plain, x), atol=0)


def test_timms_own_call_is_refused_where_it_would_miss_our_bias():
    model = swin()
    add_bias(model, [ALiBi(heads, axes=2) for heads in (2, 2, 3, 3, 4)])
    with pytest.raises(ValueError, match="call set_input_size of mmpos"):
        model.set_input_size(img_size=IMAGE)


def test_swin_v2():
    options = {"img_size": (224, 224), "embed_dim": 24, "depths": (1, 1), "num_heads": (2, 3), "window_size": 7}
    model, expected = (create("swinv2_tiny_window8_256", **options) for _ in range(2))
    set_input_size(model, *IMAGE)
    expected.set_input_size(img_size=IMAGE)
    close(out(model, images(*IMAGE)), out(expected, images(*IMAGE)), atol=0)


def test_a_removed_embedding_comes_back_in_the_new_size():
    model, expected, x = square("ViT"), square("ViT"), images(*IMAGE)
    slot = remove_pos_embed(model)
    set_input_size(model, *IMAGE)
    assert model.pos_embed is None
    slot.undo()
    set_input_size(expected, *IMAGE)
    close(out(model, x), out(expected, x), atol=0)


@pytest.mark.parametrize("height, width, message", [
    (320, 200, r"the image size \(320 x 200\) must be a multiple of the patches \(16 x 16\)"),
    (0, 192, "height must be a positive integer, got 0"),
    (320, 192.0, "width must be a positive integer, got 192.0"),
])  # fmt: skip
def test_sizes_that_are_none_are_refused(height, width, message):
    for family in ("ViT", "NaFlexViT"):
        model = square(family)
        before = state(model)
        with pytest.raises(ValueError, match=message):
            set_input_size(model, height, width)
        assert state(model) == before
    with pytest.raises(ValueError, match="ResNet is none of the models known"):
        set_input_size(create("resnet10t"), 320, 192)
