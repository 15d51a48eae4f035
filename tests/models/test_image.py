import pytest
import timm
import torch

from mmpos.models import VisionTransformer

SLOTS = {
    "none": {},
    "sinusoidal": {"additive": {"name": "Sinusoidal", "axes": 2}},
    "learned": {"additive": {"name": "LearnedTable"}},
    "rope": {"rotary": {"name": "RoPE", "axes": 2, "base": 100.0}},
    "mixed": {"rotary": {"name": "RoPE", "axes": 2, "spectrum": {"name": "Mixed"}}},
    "alibi": {"bias": {"name": "ALiBi", "axes": 2}},
}
# 3 x 5 patches of 4 x 2 pixels
SMALL = {
    "image_size": (12, 10), "patch_size": (4, 2), "in_chans": 3, "num_classes": 7,
    "dim": 32, "depth": 2, "num_heads": 2,
}  # fmt: skip


@pytest.mark.parametrize("class_token", [False, True])
@pytest.mark.parametrize("slots", SLOTS.values(), ids=SLOTS)
def test_images_give_logits_and_gradients_reach_every_parameter(slots, class_token):
    vit = VisionTransformer(**SMALL, **slots, class_token=class_token)
    logits = vit(torch.randn(6, 3, 12, 10))
    assert logits.shape == (6, 7)
    logits.square().sum().backward()
    assert [name for name, parameter in vit.named_parameters() if parameter.grad is None] == []


@pytest.mark.parametrize("class_token", [False, True])
@pytest.mark.parametrize("slots", SLOTS.values(), ids=SLOTS)
def test_a_batch_equals_its_images_one_by_one(slots, class_token):
    vit, images = VisionTransformer(**SMALL, **slots, class_token=class_token), torch.randn(6, 3, 12, 10)
    alone = torch.cat([vit(image[None]) for image in images])
    torch.testing.assert_close(vit(images), alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", [name for name in SLOTS if name != "learned"])
def test_other_sizes_work_as_far_as_the_encoding_reaches(name):
    vit = VisionTransformer(**SMALL, **SLOTS[name])
    for height, width in [(4, 2), (8, 26), (20, 6)]:
        assert vit(torch.randn(2, 3, height, width)).shape == (2, 7)


def test_a_learned_table_has_the_grid_of_the_image_and_says_where_it_ends():
    vit = VisionTransformer(**SMALL, **SLOTS["learned"])
    assert vit.encodings.additive.weight.shape == (3, 5, 32)
    assert vit(torch.randn(2, 3, 8, 6)).shape == (2, 7)
    with pytest.raises(ValueError, match=r"holds 3 x 5 positions.*resize\(5, 5\)"):
        vit(torch.randn(2, 3, 20, 6))


@pytest.mark.parametrize("name", SLOTS)
def test_only_without_an_encoding_the_order_of_patches_is_unseen(name):
    vit, images = VisionTransformer(**SMALL, **SLOTS[name]).eval(), torch.randn(2, 3, 12, 10)
    swapped = torch.cat([images[..., 4:8, :], images[..., :4, :], images[..., 8:, :]], dim=-2)
    difference = (vit(swapped) - vit(images)).abs().max()
    assert difference < 1e-5 if name == "none" else difference > 1e-4


def test_rows_and_columns_are_told_apart():
    """A transposed image gives what a model with transposed patches gives only if coordinates are transposed too."""
    slots = {"rotary": SLOTS["rope"]["rotary"], "bias": SLOTS["alibi"]["bias"]}
    vit, images = VisionTransformer(**SMALL, **slots), torch.randn(2, 3, 12, 10)
    other = VisionTransformer(**{**SMALL, "image_size": (10, 12), "patch_size": (2, 4)}, **slots)
    weights = vit.state_dict()
    weights["patch_embed.proj.weight"] = weights["patch_embed.proj.weight"].mT
    other.load_state_dict(weights)
    assert (other(images.mT) - vit(images)).abs().max() > 1e-4
    for block in other.blocks:  # exchange what the two axes turn: pairs 0-3 and 4-7 of the 8 pairs (i, i + 8)
        qkv = block.attn.qkv
        swap = torch.arange(16).unflatten(0, (2, 2, 4)).flip(1).flatten()
        rows = torch.arange(96).unflatten(0, (3, 2, 16))
        rows[:2] = rows[:2][..., swap]
        qkv.load_state_dict({"weight": qkv.weight[rows.flatten()], "bias": qkv.bias[rows.flatten()]})
    torch.testing.assert_close(other(images.mT), vit(images), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("class_token", [False, True])
def test_weights_of_timm_load_and_give_the_same(class_token):
    theirs = timm.models.VisionTransformer(
        img_size=(12, 10), patch_size=(4, 2), in_chans=3, num_classes=7, embed_dim=32, depth=2, num_heads=2,
        class_token=class_token, global_pool="token" if class_token else "avg", no_embed_class=True, fc_norm=False,
    )  # fmt: skip
    ours = VisionTransformer(**SMALL, **SLOTS["learned"], class_token=class_token)
    weights = theirs.state_dict()
    weights["encodings.additive.weight"] = torch.nn.init.normal_(weights.pop("pos_embed")).view(3, 5, 32)
    ours.load_state_dict(weights)
    images = torch.randn(2, 3, 12, 10)
    torch.testing.assert_close(ours(images), theirs(images), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("slots", SLOTS.values(), ids=SLOTS)
def test_half_precision_works(slots):
    vit = VisionTransformer(**SMALL, **slots, class_token=True).bfloat16()
    logits = vit(torch.randn(2, 3, 12, 10, dtype=torch.bfloat16))
    assert logits.dtype == torch.bfloat16
    assert logits.isfinite().all()


def test_what_does_not_decay_is_named_from_the_root():
    slots = {**SLOTS["learned"], **SLOTS["mixed"]}
    vit = VisionTransformer(**SMALL, **slots, class_token=True)
    names = {"cls_token", "encodings.additive.weight", "encodings.rotary.0.freqs", "encodings.rotary.1.freqs"}
    assert vit.no_weight_decay() == names
    assert names <= {name for name, _ in vit.named_parameters()}
    assert VisionTransformer(**SMALL).no_weight_decay() == set()


@pytest.mark.parametrize(
    "sizes, message",
    [
        ({"image_size": (12, 9)}, r"image_size \(12 x 9\) must be a multiple of patch_size \(4 x 2\)"),
        ({"image_size": 10}, r"image_size \(10 x 10\) must be a multiple of patch_size \(4 x 2\)"),
        ({"image_size": (12, 10, 3)}, r"image_size must be a positive integer or \(height, width\), got \(12, 10, 3\)"),
        ({"image_size": 0}, r"image_size must be a positive integer or \(height, width\), got 0"),
        ({"patch_size": (4, 2.0)}, r"patch_size must be a positive integer or \(height, width\), got \(4, 2.0\)"),
        ({"num_heads": 3}, r"dim \(32\) must be a multiple of num_heads \(3\)"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(sizes, message):
    with pytest.raises(ValueError, match=message):
        VisionTransformer(**{**SMALL, **sizes})


@pytest.mark.parametrize(
    "shape, message",
    [
        ((2, 3, 12, 11), r"the image size \(12 x 11\) must be a multiple of patch_size \(4 x 2\)"),
        ((2, 3, 10, 12), r"the image size \(10 x 12\) must be a multiple of patch_size \(4 x 2\)"),
        ((2, 1, 12, 10), r"images must be \(b, 3, height, width\), got shape \(2, 1, 12, 10\)"),
        ((3, 12, 10), r"images must be \(b, 3, height, width\), got shape \(3, 12, 10\)"),
    ],
)
def test_images_that_do_not_fit_are_refused(shape, message):
    with pytest.raises(ValueError, match=message):
        VisionTransformer(**SMALL)(torch.randn(shape))


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"dim": 0}, ValueError, "dim must be positive, got 0"),
        ({"dim": 64.0}, TypeError, "dim must be an integer, got 64.0"),
        ({"depth": -1}, ValueError, "depth must not be negative, got -1"),
        ({"num_heads": 0}, ValueError, "num_heads must be positive, got 0"),
        ({"drop_path": 1.0}, ValueError, "drop_path must be at least 0 and less than 1, got 1.0"),
        ({"in_chans": 0}, ValueError, "in_chans must be positive, got 0"),
        ({"num_classes": -1}, ValueError, "num_classes must not be negative, got -1"),
        ({"reg_tokens": -1}, ValueError, "reg_tokens must not be negative, got -1"),
    ],
)
def test_sizes_that_are_none(options, error, message):
    with pytest.raises(error, match=message):
        VisionTransformer(**options)


def test_a_model_needs_a_patch():
    with pytest.raises(ValueError, match=r"keep must name at least one token of each sample, got shape \(2, 0\)"):
        VisionTransformer()(torch.randn(2, 1, 8, 8), keep=torch.zeros(2, 0, dtype=torch.int64))


@pytest.mark.parametrize("how", ["rescale", "interpolate", "yarn"])
def test_another_size_after_another_is_that_size_at_once(how):
    torch.manual_seed(0)
    vit = VisionTransformer(rotary={"name": "RoPE", "axes": 2, "base": 100.0}).eval()
    images = torch.randn(2, 1, 12, 20)
    once, twice = vit.at_size((12, 20), how), vit.at_size(32, how).at_size((12, 20), how)
    torch.testing.assert_close(twice(images), once(images), rtol=0, atol=0)
