"""The video transformer: tubelets, times in a stated unit, joint and factorised attention, other sizes and rates."""

import numpy as np
import pytest
import torch

from mmpos import video_coords
from mmpos.models import VideoTransformer
from mmpos.scaling import NTK, PositionInterpolation, YaRN

ROPE = {"rotary": {"name": "RoPE", "axes": 3, "base": 100.0}}
SLOTS = {
    "none": {},
    "sinusoidal": {"additive": {"name": "Sinusoidal", "axes": 3}},
    "learned": {"additive": {"name": "LearnedTable"}},
    "rope": ROPE,
    "mixed": {"rotary": {"name": "RoPE", "axes": 3, "spectrum": {"name": "Mixed"}}},
    "alibi": {"bias": {"name": "ALiBi", "axes": 3}},
}
ALL = {**SLOTS["learned"], **SLOTS["rope"], **SLOTS["alibi"]}
ATTENTION = ["joint", "factorised"]


def make(**options):
    """2 x 3 x 5 tubelets of 3 frames of 4 x 2 pixels."""
    sizes = {"clip_size": (6, 12, 10), "tubelet_size": (3, 4, 2), "in_chans": 2, "num_classes": 7}
    return VideoTransformer(**{**sizes, "dim": 36, "depth": 2, "num_heads": 3, "fps": 6.0, **options}).eval()


def clips(*shape):
    return torch.randn(*(shape or (4, 2, 6, 12, 10)))


@pytest.mark.parametrize("attention", ATTENTION)
@pytest.mark.parametrize("slots", SLOTS.values(), ids=SLOTS)
def test_clips_give_logits_and_gradients_reach_every_parameter(slots, attention):
    vit = make(**slots, attention=attention)
    logits = vit(clips())
    assert logits.shape == (4, 7)
    logits.square().sum().backward()
    assert [name for name, parameter in vit.named_parameters() if parameter.grad is None] == []


@pytest.mark.parametrize("attention", ATTENTION)
def test_a_batch_equals_its_clips_one_by_one_each_at_its_own_rate(attention):
    vit, x, fps = make(**ALL, attention=attention), clips(), torch.tensor([6.0, 29.97, 6.0, 2.5])
    alone = torch.cat([vit(x[row : row + 1], fps[row].item()) for row in range(4)])
    torch.testing.assert_close(vit(x, fps), alone, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(vit(x, fps), vit(x))


@pytest.mark.parametrize("attention", ATTENTION)
@pytest.mark.parametrize("name", SLOTS)
def test_only_without_an_encoding_the_order_of_frames_is_unseen(name, attention):
    vit, x = make(**SLOTS[name], attention=attention, tubelet_size=(1, 4, 2)), clips()
    backwards = vit(x.flip(2))
    if name in ("none", "alibi"):  # a symmetric bias sees how far, not which way
        torch.testing.assert_close(backwards, vit(x), rtol=1e-4, atol=1e-5)
    else:
        assert (backwards - vit(x)).abs().max() > 1e-4
    shuffled = vit(x[:, :, [3, 0, 5, 1, 4, 2]])
    assert torch.allclose(shuffled, vit(x), rtol=1e-4, atol=1e-5) == (name == "none")


def test_without_pairs_for_time_its_order_is_unseen_and_that_of_places_is_not():
    space = {"rotary": {"name": "RoPE", "axes": 3, "spectrum": {"name": "Axial", "channels": [0, 6, 6]}}}
    vit, x = make(**space, tubelet_size=(1, 4, 2)), clips()
    torch.testing.assert_close(vit(x[:, :, [3, 0, 5, 1, 4, 2]]), vit(x), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(vit(x.flip(3)), vit(x), rtol=1e-4, atol=1e-5)


def test_tubelets_are_what_a_convolution_over_three_axes_sees():
    """Weights of models with ``Conv3d`` load by flattening them."""
    vit, x = make(), clips()
    weight = vit.tubelet_embed.weight.view(36, 2, 3, 4, 2)
    seen = []
    vit.encodings.add = lambda tokens, *_, **__: seen.append(tokens) or tokens
    vit(x)
    want = torch.nn.functional.conv3d(x, weight, vit.tubelet_embed.bias, stride=(3, 4, 2)).flatten(2).mT
    torch.testing.assert_close(seen[0], want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "time, fps, times",
    [
        ("tubelets", None, [0, 1]),  # whole numbers stay whole
        ("tubelets", 6, [0, 1]),
        ("tubelets", 24.0, [0.0, 0.25]),
        ("tubelets", torch.tensor([2, 12]), [[0, 3.0], [0, 0.5]]),
        ("seconds", None, [0, 0.5]),
        ("seconds", 24, [0, 0.125]),
        ("seconds", torch.tensor([2.0, 12.0]), [[0, 1.5], [0, 0.25]]),
    ],
)
def test_times_of_tubelets(time, fps, times):
    """Tubelets of 3 frames; the model is made for 6 frames per second."""
    vit, seen = make(time=time), []
    vit.encodings.forward = lambda coords, **_: seen.append(coords) or [None, None]
    with pytest.raises(AttributeError):  # the encodings are missing
        vit(clips(2, 2, 6, 12, 10), fps)
    times = torch.tensor(times)
    times = times.double() if times.is_floating_point() else times
    want = video_coords(2, 3, 5).to(times.dtype).expand(*times.shape[:-1], -1, -1).clone()
    want[..., 0] = times.repeat_interleave(15, dim=-1)
    assert torch.equal(seen[0], want)
    assert seen[0].dtype == want.dtype


@pytest.mark.parametrize("attention", ATTENTION)
@pytest.mark.parametrize("time", ["tubelets", "seconds"])
def test_a_rate_is_a_scaling_of_time(time, attention):
    """At half the rate a rotation with half the frequencies of time gives the same."""
    vit, x = make(**ROPE, time=time, attention=attention), clips()
    slower = make(**ROPE, time=time, attention=attention)
    slower.load_state_dict(vit.state_dict())
    rope = slower.encodings.rotary[0]
    slower.encodings.rotary[0] = rope.with_scaling([PositionInterpolation(0.5), None, None])
    torch.testing.assert_close(vit(x, 3.0), slower(x, 6.0), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(vit(x, 3.0), vit(x, 6.0), rtol=1e-4, atol=1e-5)


def test_factorised_attention_is_joint_attention_with_a_mask():
    """Blocks of even number see one frame, the others one place: as joint attention that is forbidden the rest."""
    vit, x = make(**{**ALL, "bias": {"name": "ALiBi", "axes": 3}}, attention="factorised", depth=4), clips()
    coords = video_coords(2, 3, 5)
    frame, place = coords[:, 0], coords[:, 1] * 5 + coords[:, 2]
    masks = [(same[:, None] == same)[None] for same in (frame, place)]
    tubelets = x.unfold(2, 3, 3).unfold(3, 4, 4).unfold(4, 2, 2).movedim(1, 4).flatten(4).flatten(1, 3)
    tokens = vit.encodings.add(vit.tubelet_embed(tubelets), coords)
    for number, (block, encodings) in enumerate(zip(vit.blocks, vit.encodings(coords), strict=True)):
        tokens = block(tokens, encodings, coords=coords, mask=masks[number % 2])
    torch.testing.assert_close(vit.forward_features(x), vit.norm(tokens), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("fps", [None, torch.tensor([3.0, 6.0, 8.0, 24.0])])
def test_kept_tubelets_keep_their_own_positions(fps):
    vit, x = make(**ALL), clips()
    everything = torch.stack([torch.randperm(30) for _ in range(4)])
    torch.testing.assert_close(vit(x, fps, keep=everything), vit(x, fps), rtol=1e-4, atol=1e-5)
    keep = everything[:, :7]
    rates = [None] * 4 if fps is None else [rate.item() for rate in fps]
    alone = torch.cat([vit(x[row : row + 1], rates[row], keep=keep[row : row + 1]) for row in range(4)])
    torch.testing.assert_close(vit(x, fps, keep=keep), alone, rtol=1e-4, atol=1e-5)
    dropped = torch.ones(4, 30, dtype=torch.bool).scatter(1, keep, False).view(4, 1, 2, 3, 5)
    pixels = dropped.repeat_interleave(3, 2).repeat_interleave(4, 3).repeat_interleave(2, 4)
    torch.testing.assert_close(vit(x.masked_fill(pixels, 9.0), fps, keep=keep), alone, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="keep must be numbers from 0 to 29"):
        vit(x, keep=torch.full((4, 2), 30))
    with pytest.raises(ValueError, match="keep needs attention='joint'"):
        make(attention="factorised")(x, keep=keep)


@pytest.mark.parametrize(
    "how, scaling", [("interpolate", PositionInterpolation), ("ntk", NTK), ("yarn", lambda ratio: YaRN(ratio, 2))]
)
def test_a_scaling_is_that_of_the_ratio_of_the_sides_on_the_axes_it_is_for(how, scaling):
    vit = make(**ROPE)
    for axes, ratios in (("all", (3, None, 2)), ("time", (3, None, None)), ("space", (None, None, 2))):
        larger = vit.at_size((18, 12, 20), how, axes=axes)
        want = [ratio and scaling(float(ratio)) for ratio in ratios]
        if how == "yarn" and ratios[2]:
            want[2] = YaRN(2.0, 5)
        assert larger.encodings.rotary[0].scaling == want
    assert vit.encodings.rotary[0].scaling is None
    assert larger.blocks[0].attn.qkv.weight is vit.blocks[0].attn.qkv.weight


@pytest.mark.parametrize("axes", ["all", "time", "space"])
@pytest.mark.parametrize("attention", ATTENTION)
def test_rescaled_coordinates_are_interpolated_ones(attention, axes):
    vit, x = make(**ROPE, attention=attention), clips(2, 2, 18, 12, 20)
    rescaled = vit.at_size((18, 12, 20), "rescale", axes=axes)(x)
    torch.testing.assert_close(rescaled, vit.at_size((18, 12, 20), "interpolate", axes=axes)(x), rtol=1e-4, atol=1e-5)
    others = {other for other in ("all", "time", "space") if other != axes}
    for other in others:
        assert not torch.allclose(rescaled, vit.at_size((18, 12, 20), "rescale", axes=other)(x), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(rescaled, vit(x), rtol=1e-4, atol=1e-5)


def test_a_rate_that_is_known_is_as_good_as_rescaled_time():
    vit, x = make(**ROPE), clips(2, 2, 12, 12, 10)
    finer = vit.at_size((12, 12, 10), "rescale", axes="time")
    torch.testing.assert_close(finer(x), vit(x, fps=12.0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("attention", ATTENTION)
def test_a_learned_table_is_resized_for_another_size_and_reads_cells_at_any_rate(attention):
    vit, x = make(additive={"name": "LearnedTable"}, attention=attention), clips(2, 2, 12, 12, 10)
    with pytest.raises(ValueError, match="resize"):
        vit(x)
    longer = vit.at_size((12, 12, 10))
    assert torch.equal(longer.encodings.additive.weight, vit.encodings.additive.resize(4, 3, 5).weight)
    assert torch.equal(longer(x, 12.0), longer(x))


@pytest.mark.parametrize("attention", ATTENTION)
def test_half_precision_and_other_sizes_work(attention):
    vit = make(**ROPE, attention=attention).bfloat16()
    logits = vit(clips(2, 2, 3, 8, 14).bfloat16(), 25)
    assert (logits.dtype, logits.shape) == (torch.bfloat16, (2, 7))
    assert logits.isfinite().all()


def test_coordinates_of_places_vary_in_training_only():
    vit, x = make(**ROPE, positions={"jitter": 2.0}), clips()
    assert torch.equal(vit(x), vit(x))
    assert not torch.equal(vit.train()(x), vit(x))


def test_what_does_not_decay_is_named_from_the_root():
    vit = make(**SLOTS["learned"], **SLOTS["mixed"])
    names = {"encodings.additive.weight", "encodings.rotary.0.freqs", "encodings.rotary.1.freqs"}
    assert vit.no_weight_decay() == names
    assert names <= {name for name, _ in vit.named_parameters()}


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"clip_size": (7, 12, 10)}, ValueError, r"clip_size \(7 x 12 x 10\) must be a multiple of tubelet_size \(3 x"),
        ({"clip_size": (12, 10)}, ValueError, r"clip_size must be three positive integers \(frames, height, width\)"),
        ({"clip_size": 8}, ValueError, r"clip_size must be three positive integers .* got 8"),
        ({"tubelet_size": (0, 4, 2)}, ValueError, r"tubelet_size must be three positive integers .* got \(0, 4, 2\)"),
        ({"clip_size": (6, True, 10)}, ValueError, r"clip_size must be three positive integers .* got \(6, True, 10\)"),
        ({"in_chans": 0}, ValueError, "in_chans must be positive, got 0"),
        ({"dim": 0}, ValueError, "dim must be positive, got 0"),
        ({"depth": -1}, ValueError, "depth must not be negative, got -1"),
        ({"num_classes": -1}, ValueError, "num_classes must not be negative, got -1"),
        ({"drop_path": 1.5}, ValueError, r"drop_path must be at least 0 and less than 1, got 1\.5"),
        ({"fps": torch.ones(2)}, TypeError, r"fps must be one number, got a tensor of shape \(2,\)"),
        ({"fps": 0}, ValueError, "fps must be positive and finite, got 0"),
        ({"fps": "8"}, TypeError, "fps must be a number or a tensor, got '8'"),
        ({"time": "frames"}, ValueError, "time must be 'tubelets' or 'seconds', got 'frames'"),
        ({"attention": "axial"}, ValueError, "attention must be 'joint' or 'factorised', got 'axial'"),
        (
            {"attention": "factorised", "additive_to": "queries_keys"},
            ValueError,
            "additive_to='queries_keys' needs attention='joint'",
        ),
        ({"num_heads": 5}, ValueError, r"dim \(36\) must be a multiple of num_heads \(5\)"),
        ({"block": {"qk_nrm": True}}, TypeError, "block has no argument 'qk_nrm'; did you mean 'qk_norm'"),
        ({"positions": {"shft": 1.0}}, TypeError, "positions has no argument 'shft'; did you mean 'shift'"),
    ],
)
def test_what_does_not_fit_is_refused(options, error, message):
    with pytest.raises(error, match=message):
        make(**options)


@pytest.mark.parametrize(
    "shape, fps, error, message",
    [
        ((2, 2, 7, 12, 10), None, ValueError, r"the clip size \(7 x 12 x 10\) must be a multiple of tubelet_size"),
        ((2, 1, 6, 12, 10), None, ValueError, r"clips must be \(b, 2, frames, height, width\), got shape \(2, 1,"),
        ((2, 2, 12, 10), None, ValueError, r"clips must be \(b, 2, frames, height, width\), got shape \(2, 2, 12, 10"),
        ((2, 2, 6, 12, 10), -1.0, ValueError, "fps must be positive and finite, got -1.0"),
        ((2, 2, 6, 12, 10), float("nan"), ValueError, "fps must be positive and finite, got nan"),
        ((2, 2, 6, 12, 10), torch.tensor([4.0, 0.0]), ValueError, "fps must be positive and finite, got 0"),
        ((2, 2, 6, 12, 10), torch.ones(3), ValueError, r"one for each of 2 clips, got shape \(3,\)"),
        ((2, 2, 6, 12, 10), torch.ones(2).half(), TypeError, "fps must be integers, float32 or float64, got torch.fl"),
    ],
)
def test_clips_and_rates_that_do_not_fit_are_refused(shape, fps, error, message):
    with pytest.raises(error, match=message):
        make(**ROPE)(clips(*shape), fps)


def test_clips_of_bytes_and_clips_of_which_nothing_is_kept_are_refused():
    vit = make(**ROPE)
    with pytest.raises(TypeError, match=r"clips must be floating point, got torch\.uint8"):
        vit(clips().byte())
    with pytest.raises(ValueError, match=r"keep must name at least one token of each sample, got shape \(4, 0\)"):
        vit(clips(), keep=torch.zeros(4, 0).long())


@pytest.mark.parametrize("attention", ATTENTION)
def test_sizes_of_numpy_and_clips_of_one_tubelet_or_none(attention):
    vit = make(**ROPE, attention=attention, clip_size=tuple(np.array([6, 12, 10])))
    assert vit.at_size(tuple(np.array([6, 16, 10]))).grid == (2, 4, 5)
    assert vit(clips(2, 2, 3, 4, 2), torch.tensor([6.0, 7.5])).shape == (2, 7)
    none = vit(clips(0, 2, 6, 12, 10), torch.zeros(0))
    assert none.shape == (0, 7)
    none.sum().backward()
    assert all(parameter.grad is not None and not parameter.grad.any() for parameter in vit.parameters())


@pytest.mark.parametrize("how", ["rescale", "interpolate", "ntk", "yarn"])
def test_a_model_at_another_size_goes_by_the_size_that_it_was_made_for(how):
    vit, x = make(**ROPE), clips(2, 2, 18, 12, 20)
    twice = vit.at_size((12, 12, 20), how).at_size((18, 12, 20), how)
    torch.testing.assert_close(twice(x), vit.at_size((18, 12, 20), how)(x), rtol=1e-4, atol=1e-5)
    there = vit.at_size((12, 24, 20), how).at_size((6, 12, 10), how)
    assert torch.equal(there(x[:, :, :6, :, :10]), vit(x[:, :, :6, :, :10]))


@pytest.mark.parametrize("attention", ATTENTION)
def test_compiled_autocast_and_meta(attention):
    vit, x, fps = make(**ROPE, attention=attention, depth=1), clips(), torch.tensor([6.0, 29.97, 6.0, 2.5])
    want = vit(x, fps)
    torch.testing.assert_close(torch.compile(vit, backend="eager", fullgraph=True)(x, fps), want)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(vit(x, fps).float(), want, rtol=0, atol=0.05)
    with torch.device("meta"):
        meta = make(**ROPE, attention=attention)
    assert meta(x.to("meta"), torch.ones(4, device="meta")).shape == (4, 7)


def test_sizes_and_ways_that_do_not_fit_are_refused():
    vit = make(**ROPE)
    with pytest.raises(ValueError, match=r"clip_size \(6 x 13 x 10\) must be a multiple of tubelet_size \(3 x 4 x 2\)"):
        vit.at_size((6, 13, 10))
    with pytest.raises(ValueError, match="how must be one of extend, rescale, interpolate, ntk, yarn, got 'zoom'"):
        vit.at_size((12, 12, 10), "zoom")
    with pytest.raises(ValueError, match="axes must be one of all, time, space, got 't'"):
        vit.at_size((12, 12, 10), "ntk", axes="t")
    with pytest.raises(ValueError, match="how='ntk' scales a rotary encoding, but the rotary slot has none"):
        make().at_size((12, 12, 10), "ntk")
