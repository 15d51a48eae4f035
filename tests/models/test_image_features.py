"""What the ViT offers besides logits: dropped patches, prefix tokens, features, other sizes, checkpointing."""

import pytest
import torch

from mmpos import LearnedTable, grid_coords
from mmpos.models import GridPositions, VisionTransformer
from mmpos.scaling import NTK, PositionInterpolation, YaRN

ALL = {
    "additive": {"name": "LearnedTable"},
    "rotary": {"name": "RoPE", "axes": 2, "base": 100.0},
    "bias": {"name": "ALiBi", "axes": 2},
}
ROPE = {"rotary": ALL["rotary"]}


def make(**options):
    """3 x 5 patches of 4 x 2 pixels."""
    sizes = {"image_size": (12, 10), "patch_size": (4, 2), "in_chans": 3, "num_classes": 7}
    return VisionTransformer(**sizes, dim=32, depth=3, num_heads=2, **options).eval()


def images(*shape):
    return torch.randn(*(shape or (4, 3, 12, 10)))


def test_kept_patches_keep_their_own_positions():
    vit, x = make(**ALL, class_token=True, reg_tokens=2), images()
    everything = torch.stack([torch.randperm(15) for _ in range(4)])
    torch.testing.assert_close(vit(x, keep=everything), vit(x), rtol=1e-4, atol=1e-5)
    # What is dropped is not seen at all: other pixels there change nothing.
    keep = everything[:, :6]
    patches = x.unfold(2, 4, 4).unfold(3, 2, 2).flatten(2, 3).clone()
    for row, dropped in enumerate(everything[:, 6:]):
        patches[row, :, dropped] = 9.0
    other = patches.unflatten(2, (3, 5)).transpose(3, 4).reshape_as(x)
    assert not torch.equal(vit(other), vit(x))
    torch.testing.assert_close(vit(other, keep=keep), vit(x, keep=keep), rtol=1e-4, atol=1e-5)
    # Each row may keep others, as if it were alone.
    alone = torch.cat([vit(x[row : row + 1], keep=keep[row : row + 1]) for row in range(4)])
    torch.testing.assert_close(vit(x, keep=keep), alone, rtol=1e-4, atol=1e-5)


def test_patches_are_dropped_in_training_only():
    vit, x = make(**ALL, patch_drop=0.6), images()
    assert torch.equal(vit(x), vit(x))
    assert vit.forward_features(x).shape == (4, 15, 32)
    vit.train()
    assert vit.forward_features(x).shape == (4, 6, 32)
    assert not torch.equal(vit(x), vit(x))


@pytest.mark.parametrize("keep", [torch.tensor([[15]] * 4), torch.tensor([[-1]] * 4)])
def test_patches_that_are_not_there_cannot_be_kept(keep):
    with pytest.raises(ValueError, match="keep must be numbers from 0 to 14"):
        make()(images(), keep=keep)
    with pytest.raises(ValueError, match=r"keep must be int64 of shape \(4, kept\), got"):
        make()(images(), keep=keep.float())


def test_prefix_tokens_are_not_averaged():
    vit, x = make(**ALL, class_token=True, reg_tokens=2, pool="avg"), images()
    tokens = vit.forward_features(x)
    assert tokens.shape == (4, 18, 32)
    torch.testing.assert_close(vit(x), vit.head(tokens[:, 3:].mean(1)))
    token = make(**ALL, class_token=True, reg_tokens=2)
    torch.testing.assert_close(token(x), token.head(token.forward_features(x)[:, 0]))
    with pytest.raises(ValueError, match="pool must be 'avg', or 'token' where there is a class_token, got 'token'"):
        make(pool="token")


def test_maps_behind_blocks():
    vit, x = make(**ALL, class_token=True), images()
    first, last = vit.intermediates(x, [0, -1])
    assert first.shape == last.shape == (4, 32, 3, 5)
    tokens = vit.forward_features(x)[:, 1:]
    torch.testing.assert_close(vit.norm(last.flatten(2).mT), tokens)
    with pytest.raises(ValueError, match="layers must be from -3 to 2, got"):
        vit.intermediates(x, [3])


def test_checkpointing_changes_memory_and_nothing_else():
    vit, x = make(**ALL).train(), images()
    vit(x).square().sum().backward()
    want = {name: parameter.grad.clone() for name, parameter in vit.named_parameters()}
    vit.zero_grad()
    vit.set_grad_checkpointing()
    vit(x).square().sum().backward()
    for name, parameter in vit.named_parameters():
        torch.testing.assert_close(parameter.grad, want[name])


@pytest.mark.parametrize(
    "how, scaling", [("interpolate", PositionInterpolation(2.0)), ("ntk", NTK(2.0)), ("yarn", YaRN(2.0, 3))]
)
def test_a_scaling_at_another_size_is_that_of_the_ratio_of_the_sides(how, scaling):
    vit = make(**ROPE)
    taller = vit.at_size((24, 10), how)
    assert taller.encodings.rotary[0].scaling == [scaling, None]
    assert taller.blocks[0].attn.qkv.weight is vit.blocks[0].attn.qkv.weight
    assert vit.encodings.rotary[0].scaling is None


def test_rescaled_coordinates_have_the_range_of_the_trained_grid():
    vit, x = make(**ROPE), images(2, 3, 24, 20)
    rescaled = vit.at_size((24, 20), "rescale")
    torch.testing.assert_close(rescaled(x), vit.at_size((24, 20), "interpolate")(x), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(rescaled(x), vit.at_size((24, 20))(x))
    torch.testing.assert_close(vit.at_size((24, 20))(x), vit(x))


def test_a_learned_table_is_resized_for_another_size():
    vit, x = make(additive=ALL["additive"]), images(2, 3, 24, 20)
    with pytest.raises(ValueError, match="resize"):
        vit(x)
    larger = vit.at_size((24, 20))
    assert isinstance(larger.encodings.additive, LearnedTable)
    assert torch.equal(larger.encodings.additive.weight, vit.encodings.additive.resize(6, 10).weight)
    assert larger(x).shape == (2, 7)


def test_a_table_is_read_by_cells_however_coordinates_are_made():
    vit, x = make(additive=ALL["additive"]), images(2, 3, 24, 20)
    assert torch.equal(vit.at_size((24, 20), "rescale")(x), vit.at_size((24, 20))(x))
    moved = make(additive=ALL["additive"], positions={"shift": 5.0, "normalise": "max"}).train()
    assert moved(images()).isfinite().all()


def test_kept_patches_keep_what_is_added_to_their_queries_and_keys():
    vit = make(additive=ALL["additive"], additive_to="queries_keys", class_token=True).eval()
    with torch.no_grad():
        vit.encodings.additive.weight.normal_()
    x, keep = images(), torch.tensor([[0, 3, 7, 14], [1, 2, 8, 9], [4, 5, 6, 7], [0, 1, 13, 14]])
    every = torch.arange(15).expand(4, -1)
    torch.testing.assert_close(vit(x, keep=every), vit(x))
    want = torch.cat([vit(x[row : row + 1], keep=keep[row : row + 1]) for row in range(4)])
    torch.testing.assert_close(vit(x, keep=keep), want)
    moved = make(additive=ALL["additive"], class_token=True).eval()
    moved.load_state_dict(vit.state_dict())
    assert not torch.allclose(moved(x, keep=keep), want)  # added to tokens it is another model


def test_grouped_heads_and_other_norms_of_the_blocks():
    rotary = {"name": "RoPE", "axes": 2, "spectrum": {"name": "Mixed"}}
    vit = make(rotary=rotary, block={"num_kv_heads": 1, "norm_layer": torch.nn.RMSNorm, "drop_path": 0.25})
    assert vit.encodings.rotary[0].freqs.shape == (1, 2, 8)
    assert isinstance(vit.blocks[0].norm1, torch.nn.RMSNorm)
    assert vit.blocks[0].drop_path.drop_prob == 0.25
    assert vit(images()).shape == (4, 7)


def test_sizes_and_ways_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"image_size \(13 x 10\) must be a multiple of patch_size \(4 x 2\)"):
        make().at_size((13, 10))
    with pytest.raises(ValueError, match="how='ntk' scales a rotary encoding, but the rotary slot has none"):
        make(additive=ALL["additive"]).at_size((24, 10), "ntk")
    with pytest.raises(ValueError, match="how must be one of extend, rescale, interpolate, ntk, yarn, got 'zoom'"):
        make(**ROPE).at_size((24, 10), "zoom")
    with pytest.raises(TypeError, match="block has no argument 'qk_nrm'; did you mean 'qk_norm'"):
        make(block={"qk_nrm": True})
    with pytest.raises(TypeError, match="positions has no argument 'shft'; did you mean 'shift'"):
        make(positions={"shft": 1.0})


@pytest.mark.parametrize("option", [{"shift": 2.0}, {"jitter": 1.5}, {"rescale": 1.5}])
def test_coordinates_vary_in_training_only(option):
    positions = GridPositions(**option)
    still = positions.coords(3, 5)
    assert torch.equal(still, grid_coords(3, 5))
    moved = positions.coords(3, 5, training=True)
    assert not torch.equal(moved, still.double())
    if "shift" in option:  # all patches by the same, at most 2
        offset = moved - still
        assert torch.allclose(offset, offset[:1].expand_as(offset))
        assert offset.abs().max() <= 2
    else:
        ratio = (moved[1:] / still[1:])[still[1:] > 0]
        assert (ratio >= 1 / 1.5).all()
        assert (ratio <= 1.5).all()
        rows, columns = moved[-1] / still[-1]
        assert torch.isclose(rows, columns) == ("rescale" in option)
    vit, x = make(**ROPE, positions=option), images()
    assert torch.equal(vit(x), make_like(vit)(x))
    vit.train()
    assert not torch.equal(vit(x), vit(x))


def make_like(vit):
    """The same weights without variation."""
    other = make(**ROPE)
    other.load_state_dict(vit.state_dict())
    return other


def test_normalised_coordinates_do_not_depend_on_the_size():
    positions = GridPositions(normalise="separate")
    assert positions.coords(2, 4)[:, 0].unique().tolist() == [-0.5, 0.5]
    assert positions.coords(2, 4)[:4, 1].tolist() == [-0.75, -0.25, 0.25, 0.75]
