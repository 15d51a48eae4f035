"""Vision models of transformers, tiny and random: DINOv3's rotation and Swin v2's bias."""

import copy
import math

import pytest
import torch

pytest.importorskip("transformers", reason="needs transformers")

from transformers import DINOv3ViTConfig, DINOv3ViTModel, Swinv2Config, Swinv2ForImageClassification, Swinv2Model

from mmpos import ALiBi, Axial, ContinuousBias, Mixed, Periods, RoPE, SwinBias, grid_coords, normalise
from mmpos.adapters.transformers import (
    bias_from_model,
    describe,
    extend_context,
    remove_rope,
    replace_bias,
    replace_rope,
    restore_bias,
    restore_rope,
    rope_from_config,
)
from mmpos.scaling import NTK, PositionInterpolation
from mmpos.spectra import Learned

SIZES = [(56, 42), (28, 84), (70, 63)]
SPECTRUM = Axial(series=Periods(1, 50, endpoint=False))
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning")


def sharpen(model):
    """Weights sharp enough for attention to depend on positions."""
    torch.manual_seed(1)
    with torch.no_grad():
        for each in model.parameters():
            each.copy_(torch.randn_like(each) * (0.2 if each.ndim > 1 else 0.1) + (each.ndim == 1))
    return model.eval()


def dinov3(**changes):
    sizes = {"hidden_size": 48, "num_attention_heads": 3, "num_hidden_layers": 2, "intermediate_size": 40}
    settings = {"patch_size": 7, "image_size": 56, "num_register_tokens": 2, "rope_theta": 50.0, **sizes, **changes}
    return sharpen(DINOv3ViTModel(DINOv3ViTConfig(**settings)))


def swin(**changes):
    settings = {"image_size": 32, "patch_size": 2, "embed_dim": 12, "depths": [2, 2], "num_heads": [2, 3]}
    return sharpen(Swinv2Model(Swinv2Config(**{**settings, "window_size": 4, **changes})))


@torch.no_grad()
def tokens(model, image):
    return model(pixel_values=image).last_hidden_state


def close(one, other, atol=1e-5):
    torch.testing.assert_close(one, other, atol=atol, rtol=1e-5)


# DINOv3's rotation


@pytest.mark.parametrize("size", SIZES)
def test_dinov3_computes_what_it_did(size):
    model, image = dinov3(), torch.randn(2, 3, *size)
    before, keys = tokens(model, image), list(model.state_dict())
    rope = rope_from_config(model.config)
    assert (rope.head_dim, rope.axes, rope.spectrum) == (16, 2, SPECTRUM)
    replace_rope(model, rope)
    close(tokens(model, image), before)
    assert list(model.state_dict()) == keys
    assert model.config.rope_theta == 50.0


def test_dinov3_turns_exactly_in_bfloat16():
    model, (rows, columns) = dinov3(), (11, 6)
    image = torch.randn(1, 3, 7 * rows, 7 * columns, dtype=torch.bfloat16)
    own = copy.deepcopy(model).bfloat16().rope_embeddings(image)
    replace_rope(model, rope_from_config(model.config))
    ours = model.bfloat16().rope_embeddings(image)
    coords = normalise(grid_coords(rows, columns), (rows, columns))
    freqs = 2 * math.pi / 50 ** (torch.arange(4, dtype=torch.float64) / 4)
    angles = torch.cat([coords[:, :1] * freqs, coords[:, 1:] * freqs] * 2, dim=-1)
    for part, theirs, exact in zip(ours, own, (angles.cos(), angles.sin()), strict=True):
        assert (part - exact).abs().max() < 2**-9 + 1e-7
        assert (theirs - exact).abs().max() > 1.5 * 2**-9  # its frequencies were rounded with the model
    assert tokens(model, image).isfinite().all()


def test_dinov3_with_another_base_is_a_config_with_that():
    model, image = dinov3(), torch.randn(2, 3, 56, 42)
    before = tokens(model, image)
    replace_rope(model, RoPE(16, axes=2, spectrum=Axial(series=Periods(1, 9, endpoint=False))))
    assert model.config.rope_theta == 9.0
    plain = dinov3(rope_theta=9.0)
    close(tokens(model, image), tokens(plain, image))
    assert (tokens(model, image) - before).abs().max() > 1e-2
    restore_rope(model)
    assert model.config.rope_theta == 50.0
    assert torch.equal(tokens(model, image), before)


def test_dinov3_without_rotation_does_not_see_where_patches_are():
    model, image = dinov3(), torch.randn(1, 3, 28, 21)
    order = torch.randperm(12)
    patches = image.unfold(2, 7, 7).unfold(3, 7, 7).flatten(2, 3)  # (b, c, n, 7, 7)
    moved = patches[:, :, order].unflatten(2, (4, 3)).permute(0, 1, 2, 4, 3, 5).reshape(1, 3, 28, 21)
    assert (tokens(model, moved)[:, 3:] - tokens(model, image)[:, 3:][:, order]).abs().max() > 1e-2
    remove_rope(model)
    close(tokens(model, moved)[:, 3:], tokens(model, image)[:, 3:][:, order])
    assert [row.rotates for row in describe(model).layers] == [False] * 2
    restore_rope(model)


def test_dinov3_varies_coordinates_in_training_as_its_config_says():
    changes = {"pos_embed_shift": 0.3, "pos_embed_jitter": 1.5, "pos_embed_rescale": 2.0}
    model, image = dinov3(**changes), torch.zeros(1, 3, 56, 42)
    replace_rope(model, rope_from_config(model.config))
    cos, _ = model.rope_embeddings(image)
    assert torch.equal(model.rope_embeddings(image)[0], cos)
    module = model.train().rope_embeddings
    drawn = torch.stack([module._coords(image) for _ in range(200)])
    slopes = (drawn[:, -1] - drawn[:, 0]) / (normalise(grid_coords(8, 6), (8, 6))[[0, -1]].diff(dim=0))
    assert 1 / 3 < slopes.min() < 0.6
    assert 1.7 < slopes.max() < 3
    assert 0.2 < (drawn.mean(1) / slopes).abs().max() <= 0.3 + 1e-9
    model.config.pos_embed_shift = model.config.pos_embed_jitter = None
    rows, columns = (module._coords(image)[-1] / normalise(grid_coords(8, 6), (8, 6))[-1]).tolist()
    assert rows == pytest.approx(columns)
    assert rows != pytest.approx(1)
    model.config.pos_embed_rescale = None
    assert torch.equal(module(image)[0], cos)


def test_dinov3_learns_a_rotation_of_its_own():
    model, image = dinov3(), torch.randn(2, 3, 56, 42)
    replace_rope(model, RoPE(16, axes=2, spectrum=Learned(SPECTRUM)), write_config=False)
    model(pixel_values=image).last_hidden_state.square().mean().backward()
    assert model.rope_embeddings.rope_of("all").freqs.grad.abs().max() > 0
    assert "rope_embeddings.ropes.all.freqs" in model.state_dict()


def test_tables_of_dinov3():
    model = dinov3()
    table = describe(model)
    rows = [(row.rotates, row.base, row.width, row.head_dim, row.layout) for row in table.layers]
    assert rows == [(True, 50.0, 16, 16, "half")] * 2
    assert not table.problems
    assert describe(copy.deepcopy(model).bfloat16()).problems[0].startswith("frequencies were rounded")
    odd = copy.deepcopy(model)
    odd.rope_embeddings.inv_freq *= 1.1
    assert describe(odd).problems == ("the model does not turn as its config says",)
    replace_rope(model, RoPE(16, axes=2, base=30.0), write_config=False)
    assert [row.base for row in describe(model).layers] == [30.0] * 2


@pytest.mark.parametrize(
    "rope, match",
    [
        (RoPE(8, axes=2, spectrum=SPECTRUM), r"head_dim \(8\) must be that of the model's heads \(16\)"),
        (RoPE(16), r"axes \(1\) must be that of the model's positions \(2\)"),
        (RoPE(16, axes=2, spectrum=SPECTRUM, layout="interleaved"), "convert_layout"),
        (RoPE(16, axes=2, spectrum=Mixed(), num_heads=3), "alike"),
        (RoPE(16, axes=2), "cannot express"),
        (RoPE(16, axes=2, spectrum=SPECTRUM, scaling=PositionInterpolation(2.0)), "cannot express"),
        (RoPE(16, axes=2, spectrum=Axial(series=Periods(2, 50, endpoint=False))), "cannot express"),
    ],
)
def test_a_rotation_that_does_not_fit(rope, match):
    model = dinov3()
    before = model.config.to_dict(), type(model.rope_embeddings)
    with pytest.raises(ValueError, match=match):
        replace_rope(model, rope)
    assert (model.config.to_dict(), type(model.rope_embeddings)) == before


def test_what_else_dinov3_refuses():
    model = dinov3()
    with pytest.raises(ValueError, match="no length"):
        extend_context(model, NTK(2.0))
    with pytest.raises(ValueError, match="no attention bias of a known family"):
        replace_bias(model, ALiBi(3, axes=2))
    remove_rope(model)
    with pytest.raises(ValueError, match="already"):
        replace_rope(model, rope_from_config(model.config))


# Swin v2's bias


@pytest.mark.parametrize("trained", [[0, 0], [6, 6]])
def test_swin_computes_what_it_did(trained):
    model = swin(pretrained_window_sizes=trained)
    found = bias_from_model(model)
    assert [type(each) for each in found] == [ContinuousBias] * 4
    assert [each.num_heads for each in found] == [2, 2, 3, 3]
    for size in ((32, 32), (24, 40)):
        image = torch.randn(2, 3, *size)
        before = tokens(model, image)
        replace_bias(model, found)
        close(tokens(model, image), before)
        restore_bias(model)
        assert torch.equal(tokens(model, image), before)


def test_attention_of_swin_by_hand():
    model, image = swin(window_size=5, image_size=40), torch.randn(2, 3, 40, 40)  # with a mask of shifted windows
    shape = [(each.num_heads, each.window) for each in bias_from_model(model)]
    assert shape == [(2, (5, 5))] * 2 + [(3, (5, 5))] * 2
    alibi = ALiBi(2, axes=2, slopes=[0.4, 1.5])
    replace_bias(model, [None, alibi, None, SwinBias(3, (5, 5))])
    layer = model.encoder.layers[0].blocks[1]
    attention, seen = layer.attention.self, []
    attention.register_forward_hook(lambda module, args, output: seen.append(args[:2]))
    with torch.no_grad():
        found = model(pixel_values=image, output_attentions=True)
        layer(torch.randn(2, 400, 12), (20, 20), output_attentions=True)
        (hidden, mask), _ = seen
        weights = attention(hidden, mask, True)[1]
    assert found.last_hidden_state.isfinite().all()
    q, k = (part(hidden).view(-1, 25, 2, 6).transpose(1, 2).double() for part in (attention.query, attention.key))
    q, k = (part / part.norm(dim=-1, keepdim=True) for part in (q, k))
    scale = attention.logit_scale.double().clamp(max=math.log(100)).exp()
    cells = torch.cartesian_prod(torch.arange(5.0), torch.arange(5.0)).double()
    steps = (cells[:, None] - cells[None]).abs().sum(-1)
    expected = q @ k.mT * scale - torch.tensor([0.4, 1.5]).double()[:, None, None] * steps
    expected = expected.masked_fill(mask.repeat(2, 1, 1)[:, None] < 0, -torch.inf).softmax(-1)
    close(weights.double(), expected)
    assert mask.min() < 0


def test_swin_learns_a_bias_of_its_own():
    model = Swinv2ForImageClassification(swin().config)
    sharpen(model)
    image = torch.randn(2, 3, 32, 32)
    keys = set(model.state_dict())
    replace_bias(model, [SwinBias(heads, (4, 4)) for heads in (2, 2, 3, 3)])
    left = {name for name in model.state_dict() if "mmpos_bias" not in name}
    assert left == {name for name in keys if "continuous_position_bias_mlp" not in name}
    assert "swinv2.encoder.mmpos_bias.biases.3.weight" in model.state_dict()
    gradients = []
    for checkpointing in (False, True):
        if checkpointing:
            model.gradient_checkpointing_enable()
        model.train().zero_grad()
        for module in model.modules():
            module.drop_prob = 0.0
        model(pixel_values=image).logits.square().mean().backward()
        slot = model.swinv2.encoder.mmpos_bias
        gradients.append([each.weight.grad.clone() for each in slot.biases])
    for plain, checkpointed in zip(*gradients, strict=True):
        assert plain.isfinite().all()
        assert plain.abs().max() > 0
        close(plain, checkpointed)
    other = copy.deepcopy(model.eval())
    with torch.no_grad():
        slot.biases[0].weight += torch.randn_like(slot.biases[0].weight)
        before = other(pixel_values=image).logits
        assert (model(pixel_values=image).logits - before).abs().max() > 1e-3
        other.load_state_dict(model.state_dict())
        assert torch.equal(other(pixel_values=image).logits, model(pixel_values=image).logits)
        assert model.bfloat16()(pixel_values=image.bfloat16()).logits.isfinite().all()
    restore_bias(model)
    assert set(model.state_dict()) == keys
    assert {each.dtype for each in model.parameters()} == {torch.bfloat16}
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_tables_of_swin():
    model = swin()
    rows = describe(model).layers
    assert [(row.bias, row.head_dim) for row in rows] == [("ContinuousBias", 6)] * 2 + [("ContinuousBias", 8)] * 2
    replace_bias(model, [None, ALiBi(2, axes=2), None, None])
    assert [row.bias for row in describe(model).layers] == [None, "ALiBi", None, None]


@pytest.mark.parametrize(
    "bias, match",
    [
        (ALiBi(2, axes=2), r"num_heads \(2\) of ALiBi must be that of layer 2 of the model \(3\)"),
        (ALiBi(2), r"axes \(1\) of ALiBi"),
        ([ALiBi(2, axes=2)] * 2, "2 entries, but the model has 4 biases"),
        ([SwinBias(2, (3, 4)), None, None, None], r"SwinBias"),
    ],
)
def test_a_bias_that_does_not_fit(bias, match):
    model = swin()
    keys = list(model.state_dict())
    with pytest.raises(ValueError, match=match):
        replace_bias(model, bias)
    assert list(model.state_dict()) == keys
