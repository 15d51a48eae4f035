"""Moving digits: what a clip shows, and that its class is in the order of its frames alone."""

import math

import pytest
import torch
from lightning.pytorch import seed_everything

from mmpos.data import MovingDigits
from mmpos.data.image import load_digits, split_digits
from mmpos.data.moving import ClipForm, Orbits, draw_orbits, render_clips

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers")


def same_orbit(label, phase=0.3, radius=0.5, centre=(0.1, -0.05)):
    values = (torch.tensor([phase]), torch.tensor([radius]), torch.tensor([centre]))
    return Orbits(torch.tensor([label]), *values)


def centres(clips):
    """Where the ink of each frame is on average, (x, y) from -1 to 1."""
    ink = clips[:, 0] + 1
    size = ink.shape[-1]
    axis = (torch.arange(size) + 0.5) / size * 2 - 1
    total = ink.sum((-1, -2))
    return torch.stack([(ink.sum(-2) * axis).sum(-1) / total, (ink.sum(-1) * axis).sum(-1) / total], dim=-1)


def test_a_digit_goes_round_as_its_class_says():
    """1 or 3 turns a second, clockwise where y grows downwards; the centre of its ink goes where the digit goes."""
    digit = load_digits()[0][7:8]
    form = ClipForm(frames=5, size=48, fps=7.0)
    for label, turns in enumerate((1, 3, -1, -3)):
        seen = centres(render_clips(digit, same_orbit(label), form))[0]
        angles = [2 * math.pi * (0.3 + turns * frame / 7) for frame in range(5)]
        want = torch.tensor([[0.1 + 0.5 * math.cos(a), -0.05 + 0.5 * math.sin(a)] for a in angles])
        offset = seen - want
        torch.testing.assert_close(offset, offset[:1].expand(5, 2), rtol=0, atol=2e-3)
        assert offset.abs().max() < 0.1


def test_a_digit_that_stands_in_the_middle_is_the_digit():
    digits = load_digits()[0][:3]
    orbits = Orbits(torch.zeros(3, dtype=torch.int64), torch.zeros(3), torch.zeros(3), torch.zeros(3, 2))
    clips = render_clips(digits, orbits, ClipForm(frames=2, size=24, fps=8.0))
    assert clips.shape == (3, 1, 2, 24, 24)
    torch.testing.assert_close(clips[:, :, 1, 8:16, 8:16], digits, rtol=0, atol=1e-5)
    around = clips.clone()
    around[..., 8:16, 8:16] = -1
    assert (around == -1).all()


def test_the_frames_of_all_classes_are_the_same_and_only_their_order_differs():
    digit = load_digits()[0][:1]
    clips = [render_clips(digit, same_orbit(label), ClipForm())[0, 0] for label in range(4)]
    orders = set()
    for clip in clips:
        distances = (clip[:, None] - clips[0][None]).abs().amax((-1, -2))
        order = distances.argmin(1)
        assert distances.amin(1).max() < 1e-4
        assert sorted(order.tolist()) == list(range(8))
        orders.add(tuple(order.tolist()))
    assert orders == {tuple(turns * frame % 8 for frame in range(8)) for turns in (1, 3, -1, -3)}


def test_twice_the_rate_shows_the_same_motion():
    digits, orbits = load_digits()[0][:4], draw_orbits(4, torch.Generator().manual_seed(1))
    slow = render_clips(digits, orbits, ClipForm(frames=5, size=18, fps=6.0))
    fast = render_clips(digits, orbits, ClipForm(frames=9, size=18, fps=12.0))
    torch.testing.assert_close(fast[:, :, ::2], slow, rtol=0, atol=1e-5)
    fine = render_clips(digits, orbits, ClipForm(frames=5, size=36, fps=6.0))
    small = torch.nn.functional.avg_pool2d(fine.flatten(0, 2), 2).view_as(slow)
    assert (small - slow).abs().mean() < 0.03


def test_orbits_lie_within_the_frame_and_classes_are_equally_many():
    orbits = draw_orbits(1001)
    assert orbits.labels.bincount().tolist() == [251, 250, 250, 250]
    reach = orbits.centre.abs().amax(-1) + orbits.radius + 1 / 3
    assert reach.max() <= 1 + 1e-6
    assert 0.55 <= orbits.radius.min() < 0.56 < 0.64 < orbits.radius.max() <= 0.65
    assert orbits.phase.max() - orbits.phase.min() > 0.9


def test_batches():
    data = MovingDigits(frames=4, size=12, fps=5.0, batch_size=50, clips_per_digit=2)
    data.setup("fit")
    assert len(data.train_dataloader()) == math.ceil(2 * 1293 / 50)
    clips, labels, fps = next(iter(data.train_dataloader()))
    assert (clips.shape, clips.dtype, labels.dtype, fps) == ((50, 1, 4, 12, 12), torch.float32, torch.int64, 5.0)
    assert (clips.min(), clips.max() <= 1) == (-1, True)
    assert sum(len(labels) for _, labels, _ in data.val_dataloader()) == 144
    assert sum(len(labels) for _, labels, _ in data.test_dataloader()) == 360
    clips, labels, fps = next(iter(data.evaluation_loader("test", ClipForm(6, 18, 10.0), limit=8)))
    assert (clips.shape, labels.bincount().tolist(), fps) == ((8, 1, 6, 18, 18), [2, 2, 2, 2], 10.0)


def test_parts_have_the_digits_of_their_own():
    data = MovingDigits()
    data.setup()
    digits, labels = load_digits()
    for part, rows in split_digits(labels).items():
        assert torch.equal(data.parts[part][0], digits[rows])


def test_what_is_evaluated_is_the_same_whatever_the_seed_and_training_is_the_seed_s():
    seen = []
    for seed in (1, 2, 1):
        seed_everything(seed, verbose=False)
        data = MovingDigits(size=12, batch_size=16)
        data.setup()
        seen.append([next(iter(loader)) for loader in (data.train_dataloader(), data.val_dataloader())])
    (train, val), (other_train, other_val), (again_train, _) = seen
    assert torch.equal(train[0], again_train[0])
    assert not torch.equal(train[0], other_train[0])
    assert torch.equal(val[0], other_val[0])
    assert torch.equal(val[1], other_val[1])


def test_shuffled_frames_are_the_same_frames_in_the_same_wrong_order():
    data = MovingDigits(size=12, batch_size=30)
    data.setup()
    clips, labels, _ = next(iter(data.evaluation_loader("test")))
    shuffled, same, _ = next(iter(data.evaluation_loader("test", shuffled=True)))
    assert torch.equal(labels, same)
    assert torch.equal(next(iter(data.evaluation_loader("test", shuffled=True)))[0], shuffled)
    equal = (shuffled[:, 0, :, None] == clips[:, 0, None]).all((-1, -2))
    assert (equal.sum(1) == 1).all()  # a permutation of each clip's frames
    assert len({tuple(order) for order in equal.int().argmax(2).tolist()}) > 25


@pytest.mark.parametrize("argument", ["frames", "size", "fps", "batch_size", "clips_per_digit"])
def test_arguments_out_of_range_are_refused(argument):
    with pytest.raises(ValueError, match=rf"{argument} \(0\) must be positive"):
        MovingDigits(**{argument: 0})
