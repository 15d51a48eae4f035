"""Rotary encodings in timm's models: the rotation that they would have themselves, for every family."""

import math

import pytest
import torch

from mmpos import Axial, Mixed, RoPE, Rotation, create_encoding
from mmpos.adapters.timm import add_rotary
from mmpos.encodings import RotaryEncoding
from mmpos.frequencies import Periods
from mmpos.models import GridPositions
from tests.adapters.timm.tiny import FAMILIES, GRID, close, create, images, make, out, state, swin

ROPE = {"img_size": (48, 80), "embed_dim": 96, "depth": 3, "num_heads": 3, "num_classes": 7}


def twin(eva, **changes):
    """A ViT with the weights of an Eva model, but for its rotation."""
    options = {"init_values": 1e-5, "pos_embed": "none", "class_token": eva.cls_token is not None}
    registers = 0 if eva.reg_token is None else eva.reg_token.shape[1]
    options |= {"reg_tokens": registers, "global_pool": eva.global_pool, "fc_norm": False, **ROPE, **changes}
    vit = create("vit_small_patch16_224", **options)
    weights = {name: value for name, value in eva.state_dict().items() if not name.startswith("rope")}
    for number in (1, 2):
        weights = {name.replace(f"gamma_{number}", f"ls{number}.gamma"): value for name, value in weights.items()}
    vit.load_state_dict(weights)
    return vit


def mixed_ropes(eva):
    """Ours with the frequencies of timm's mixed rotation, whose first row is for columns."""
    ropes = [RoPE(32, axes=2, base=10.0, spectrum=Mixed(), layout="interleaved", num_heads=3) for _ in range(3)]
    for layer, rope in enumerate(ropes):
        with torch.no_grad():
            rope.freqs.copy_(eva.rope.freqs[:, layer].flip(0).movedim(0, 1))
    return ropes


def axial(**changes):
    order = Axial(order=(1, 0))
    return RoPE(32, **{"axes": 2, "base": 100.0, "layout": "interleaved", "spectrum": order, **changes})


def test_a_plain_vit_with_our_axial_rope_is_the_rope_vit_of_timm():
    eva = create("vit_small_patch16_rope_224", **ROPE)
    vit, x = twin(eva), images()
    assert (out(vit, x) - out(eva, x)).abs().max() > 0.1
    slot = add_rotary(vit, axial())
    close(out(vit, x), out(eva, x))
    expected = eva.forward_intermediates(x, intermediates_only=True)
    for ours, theirs in zip(vit.forward_intermediates(x, intermediates_only=True), expected, strict=True):
        close(ours, theirs)
    slot.undo()
    close(out(vit, x), out(twin(eva), x), atol=0)


def test_a_plain_vit_with_our_mixed_rope_is_the_mixed_rope_vit_of_timm():
    eva = create("vit_small_patch16_rope_mixed_224", **ROPE)
    vit, x = twin(eva), images()
    add_rotary(vit, mixed_ropes(eva))
    close(out(vit, x), out(eva, x))
    eva.train(), vit.train()
    for model in (eva, vit):
        model(x).square().sum().backward()
    for layer, rope in enumerate(vit.mmpos_rotary.encodings):
        close(rope.freqs.grad, eva.rope.freqs.grad[:, layer].flip(0).movedim(0, 1), atol=2e-4)
    assert {f"mmpos_rotary.encodings.{layer}.freqs" for layer in range(3)} | {"cls_token"} <= vit.no_weight_decay()


@pytest.mark.parametrize("registers", [0, 2])
def test_registers_and_grouped_heads(registers):
    rope = RoPE(32, axes=2, spectrum=Axial(series=Periods(1, 100, endpoint=False)))
    options = {"attn_type": "rope", "qkv_fused": False, "num_kv_heads": 1, "num_reg_tokens": registers}
    eva, x = create("vit_small_patch16_dinov3", **{**ROPE, **options}), images()
    expected = out(eva, x)
    with add_rotary(eva, rope, positions=GridPositions(normalise="separate")):
        close(out(eva, x), expected)
        assert eva.rope is None
    assert eva.rope is not None


OWN = {
    "EVA-02": (axial(base=10000.0, spectrum=None), GridPositions(trained=(16, 16))),
    "DINOv3": (
        RoPE(32, axes=2, spectrum=Axial(series=Periods(1, 100, endpoint=False))),
        GridPositions(normalise="separate"),
    ),
}
OWN["Sapiens 2"] = OWN["DINOv3"]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("family", OWN)
def test_the_rotation_of_a_model_is_exchanged_for_the_same(family, dynamic):
    model, x = make(family, dynamic_img_size=dynamic), images()
    rope, positions = OWN[family]
    keys, expected = list(model.state_dict()), out(model, x)
    add_rotary(model, rope, positions=positions)
    close(out(model, x), expected)
    assert list(model.state_dict()) == keys
    if dynamic:
        other = make(family, dynamic_img_size=True)
        close(out(model, images(96, 64)), out(other, images(96, 64)))


def test_the_mixed_rotation_of_a_model_is_exchanged_for_the_same():
    model, x = make("mixed RoPE"), images()
    expected, before = out(model, x), state(model)
    with add_rotary(model, mixed_ropes(model)):
        assert model.rope is None
        close(out(model, x), expected)
    assert state(model) == before


@pytest.mark.parametrize("family", FAMILIES)
def test_a_rotation_that_turns_nothing_changes_nothing_and_another_does_until_it_is_undone(family):
    model, x = make(family), images()
    before, expected, layout = (
        state(model),
        out(model, x),
        "half" if family in ("DINOv3", "Sapiens 2") else "interleaved",
    )
    own = getattr(model, "rope", None) is not None
    with add_rotary(model, RoPE(32, axes=2, base=1.5, layout=layout)):
        assert (out(model, x) - expected).abs().max() > 1e-3
        assert model(x).shape == (2, 7)
        if not own:
            still = list(dict(model.named_parameters()))
            assert still == list(before[2])
    close(out(model, x), expected, atol=0)
    assert state(model) == before
    if not own:
        with add_rotary(model, Still(32, layout)):
            close(out(model, x), expected)


class Still(RotaryEncoding):
    axes = 2

    def __init__(self, head_dim, layout):
        super().__init__()
        self.head_dim, self.layout = head_dim, layout

    def forward(self, coords, *, length=None):
        cos = torch.ones(*coords.shape[:-2], 1, coords.shape[-2], self.head_dim // 2)
        return Rotation(cos, torch.zeros_like(cos), self.layout)


class Recorder(Still):
    """Keeps the coordinates that it is given, of which prefix tokens have 0."""

    prefix = 0

    def forward(self, coords, *, length=None):
        self.seen = coords[..., self.prefix :, :]
        assert not coords[..., : self.prefix, :].any()
        return super().forward(coords)


@pytest.mark.parametrize("family", ["ViT with registers", "BEiT", "EVA-02", "NaFlexViT"])
def test_coordinates_are_those_of_this_image(family):
    model = make(family, **({} if family in ("BEiT", "NaFlexViT") else {"dynamic_img_size": True}))
    recorder = Recorder(32, "interleaved")
    add_rotary(model, recorder)
    recorder.prefix = model.num_prefix_tokens
    out(model, images())
    y, x = torch.meshgrid(torch.arange(GRID[0]), torch.arange(GRID[1]), indexing="ij")
    assert torch.equal(recorder.seen, torch.stack([y, x], -1).reshape(-1, 2))
    if family != "BEiT":
        out(model, images(80, 32))
        assert recorder.seen.shape == (10, 2)
        assert recorder.seen[-1].tolist() == [4, 1]


@pytest.mark.parametrize("family", ["ViT", "ViT with registers", "DINOv3", "NaFlexViT"])
def test_patches_that_are_kept_keep_their_coordinates(family):
    model, x = make(family, patch_drop_rate=0.4).train(), images(batch=3)
    model.patch_drop.ordered = False
    before = state(model)
    recorder = Recorder(32, "half" if family == "DINOv3" else "interleaved")
    tokens = []
    slot = add_rotary(model, recorder)
    recorder.prefix = model.num_prefix_tokens
    hooks = [
        model.patch_drop.register_forward_pre_hook(lambda _, args: tokens.append(args[0])),
        model.norm_pre.register_forward_pre_hook(lambda _, args: tokens.append(args[0])),
    ]
    model(x)
    whole, kept = (each[:, model.num_prefix_tokens :] for each in tokens)
    assert kept.shape[1] == 9
    numbers = recorder.seen[..., 0] * GRID[1] + recorder.seen[..., 1]
    assert len({tuple(row) for row in numbers.tolist()}) == 3
    assert torch.equal(whole.take_along_dim(numbers[..., None], dim=1), kept)
    for hook in hooks:
        hook.remove()
    slot.undo()
    assert state(model) == before


def test_patch_drop_as_in_timm():
    eva = create("vit_small_patch16_rope_224", **ROPE, patch_drop_rate=0.4)
    vit, x = twin(eva, patch_drop_rate=0.4), images()
    add_rotary(vit, axial())
    results = []
    for model in (eva.train(), vit.train()):
        torch.manual_seed(11)
        results.append(model(x))
    close(*results)


@pytest.mark.parametrize("patch_drop", [0.0, 0.5])
@pytest.mark.parametrize("family", ["ViT", "BEiT", "DINOv3"])
def test_gradient_checkpointing_with_two_images_before_the_backward_pass(family, patch_drop):
    """The blocks of the first are computed again when another grid, of as many patches, has been seen."""
    options = {} if family == "BEiT" else {"dynamic_img_size": True, "patch_drop_rate": patch_drop}
    model = make(family, **options).train()
    ropes = [RoPE(32, axes=2, base=10.0, spectrum=Mixed(), num_heads=3) for _ in range(3)]
    if family != "DINOv3":
        ropes = [RoPE(32, axes=2, base=10.0, spectrum=Mixed(), num_heads=3, layout="interleaved") for _ in range(3)]
    add_rotary(model, ropes)
    first, second = images(), images(*((48, 80) if family == "BEiT" else (80, 48)))
    gradients = []
    for checkpointed in (False, True):
        model.set_grad_checkpointing(checkpointed)
        model.zero_grad()
        torch.manual_seed(2)
        one, other = model(first), model(second)
        (one.square().sum() + (3 * other).sin().sum()).backward()
        gradients.append({name: each.grad for name, each in model.named_parameters() if each.grad is not None})
    assert any("freqs" in name for name in gradients[0])
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        close(gradients[1][name], gradient)


def test_naflex_batches_with_a_grid_for_each_image():
    model = make("NaFlexViT", pos_embed="none")
    add_rotary(model, axial())
    sizes = [(3, 5), (4, 2)]
    length = max(rows * columns for rows, columns in sizes)
    patches, coords, valid = (
        torch.zeros(2, length, 768),
        torch.zeros(2, length, 2).long(),
        torch.zeros(2, length).bool(),
    )
    alone = []
    for row, (rows, columns) in enumerate(sizes):
        image = images(16 * rows, 16 * columns, batch=1)
        alone.append(out(model, image)[0])
        cut = image.unfold(2, 16, 16).unfold(3, 16, 16).permute(0, 2, 3, 4, 5, 1).reshape(rows * columns, -1)
        patches[row, : rows * columns] = cut
        y, x = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
        coords[row, : rows * columns] = torch.stack([y, x], -1).reshape(-1, 2)
        valid[row, : rows * columns] = True
    batch = {"patches": patches, "patch_coord": coords, "patch_valid": valid}
    close(out(model, batch), torch.stack(alone))
    model.mmpos_rotary.undo()
    positions = GridPositions(normalise="max")
    add_rotary(model, axial(base=3.0), positions=positions)
    alone = [out(model, images(16 * rows, 16 * columns, batch=1))[0] for rows, columns in sizes]
    close(out(model, batch), torch.stack(alone))


def test_layers_may_differ_or_stand_still():
    model, x, rope = make("ViT"), images(), RoPE(32, axes=2)
    expected = []
    for layers in ([rope, None, None], [None, rope, rope], rope, [rope] * 3):
        with add_rotary(model, layers):
            expected.append(out(model, x))
    assert (expected[0] - expected[1]).abs().max() > 1e-3
    close(expected[2], expected[3], atol=0)


def test_half_precision_and_autocast():
    model, x = make("ViT"), images()
    add_rotary(model, RoPE(32, axes=2))
    expected = out(model, x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        close(out(model, x).float(), expected, atol=0.3)
    assert out(model.bfloat16(), x.bfloat16()).dtype == torch.bfloat16


def bad():
    rope = RoPE(32, axes=2)
    vit = {"img_size": (48, 80), "embed_dim": 96, "depth": 2, "num_heads": 3}
    yield (
        "vit_tiny_patch16_224",
        vit,
        RoPE(16, axes=2),
        r"head_dim \(16\) must be that of the heads of blocks.0.attn \(32\)",
    )
    yield "vit_tiny_patch16_224", vit, RoPE(32), r"rope must have 2 axes \(y, x\), got 1"
    yield "vit_tiny_patch16_224", vit, [rope] * 3, "rope has 3 entries, but the model has 2 layers"
    yield "vit_tiny_patch16_224", vit, [None] * 2, "rope has an encoding for no layer"
    yield (
        *("vit_tiny_patch16_224", vit),
        RoPE(32, axes=2, spectrum=Mixed(), num_heads=2),
        "the encoding has 2 heads, which must divide the 3 of blocks.0.attn",
    )
    yield (
        "vit_small_patch16_dinov3",
        vit,
        RoPE(32, axes=2, layout="interleaved"),
        "layout is 'interleaved', but blocks.0",
    )
    yield (
        "vit_tiny_patch16_224",
        {**vit, "attn_layer": "diff"},
        rope,
        "blocks.0 is a Block with DiffAttention, whose quer",
    )
    yield "resnet10t", {}, rope, "ResNet is none of the models known"


@pytest.mark.parametrize("name, options, rope, message", list(bad()))
def test_what_does_not_fit_is_refused_and_the_model_stays_as_it_was(name, options, rope, message):
    model = create(name, **options)
    before = state(model)
    with pytest.raises(ValueError, match=message):
        add_rotary(model, rope)
    assert state(model) == before


def test_other_refusals():
    model = make("ViT")
    with pytest.raises(
        TypeError, match="rope must be made of RotaryEncoding, one for all layers or one for each, got 3"
    ):
        add_rotary(model, 3)
    with pytest.raises(ValueError, match=r"layers.0.blocks.0 of SwinTransformer attends within windows"):
        add_rotary(swin(), RoPE(12, axes=2))
    slot = add_rotary(model, RoPE(32, axes=2))
    before = state(model)
    with pytest.raises(ValueError, match=r"an encoding of ours there already: call model.mmpos_rotary.undo\(\) first"):
        add_rotary(model, RoPE(32, axes=2))
    assert state(model) == before
    slot.undo()
    with pytest.raises(ValueError, match="this RotarySlot is not in the model any more"):
        slot.undo()


def test_an_error_within_a_with_statement_undoes_it_too():
    model = make("ViT")
    before = state(model)
    with pytest.raises(RuntimeError, match="stop"), add_rotary(model, RoPE(32, axes=2)):
        raise RuntimeError("stop")
    assert state(model) == before


def test_a_preset_fits():
    model, x = make("DINOv3"), images()
    expected = out(model, x)
    rope = create_encoding("dinov3", head_dim=32)
    with add_rotary(model, rope, positions=GridPositions(normalise="separate")):
        close(out(model, x), expected)
    assert math.isfinite(expected.sum())
