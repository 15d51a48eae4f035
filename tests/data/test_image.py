import pytest
import torch
from lightning.pytorch import seed_everything
from sklearn import datasets

from mmpos.data import Digits
from mmpos.data.image import load_digits, shift_images, split_digits


def test_images_are_the_digits_with_ink_from_minus_one_to_one():
    images, labels = load_digits()
    theirs = datasets.load_digits()
    assert images.shape == (1797, 1, 8, 8)
    assert (images.dtype, labels.dtype) == (torch.float32, torch.int64)
    assert (images.min(), images.max()) == (-1, 1)
    assert (((images[:, 0] + 1) * 8).numpy() == theirs.images).all()
    assert (labels.numpy() == theirs.target).all()


def test_parts_are_disjoint_stratified_and_complete():
    labels = load_digits()[1]
    parts = split_digits(labels)
    assert {part: len(rows) for part, rows in parts.items()} == {"train": 1293, "val": 144, "test": 360}
    assert torch.equal(torch.cat(list(parts.values())).sort().values, torch.arange(1797))
    share = labels.bincount() / 1797
    for rows in parts.values():
        assert ((labels[rows].bincount() - share * len(rows)).abs() < 1).all()


def test_the_split_does_not_depend_on_the_seed():
    splits = []
    for seed in (1, 2):
        seed_everything(seed, verbose=False)
        splits.append(split_digits(load_digits()[1]))
    for part in ("train", "val", "test"):
        assert torch.equal(splits[0][part], splits[1][part])


def test_batches():
    digits = Digits(batch_size=50)
    digits.setup("fit")
    batches = list(digits.train_dataloader())
    assert [len(labels) for _, labels in batches] == [50] * 25 + [43]
    images, labels = batches[0]
    assert (images.shape, images.dtype, labels.dtype) == ((50, 1, 8, 8), torch.float32, torch.int64)
    assert [len(labels) for _, labels in digits.val_dataloader()] == [144]
    assert [len(labels) for _, labels in digits.test_dataloader()] == [360]
    assert not torch.equal(next(iter(digits.train_dataloader()))[1], labels)  # shuffled anew
    (first, _), (second, _) = next(iter(digits.test_dataloader())), next(iter(digits.predict_dataloader()))
    assert torch.equal(first, second)


def test_shifts_move_down_and_to_the_right_and_bring_in_background():
    images = torch.arange(2 * 3 * 4 * 5.0).view(2, 3, 4, 5)
    moved = shift_images(images, torch.tensor([[1, -2], [-1, 0]]), background=-7.0)
    assert torch.equal(moved[0, :, 1:, :-1], images[0, :, :-1, 1:])
    assert torch.equal(moved[1, :, :-2], images[1, :, 2:])
    assert (moved[0, :, 0] == -7).all()
    assert (moved[0, :, :, -1] == -7).all()
    assert (moved[1, :, -2:] == -7).all()


class Mode:
    """As much of a trainer as a data module asks for."""

    def __init__(self, training):
        self.training = training


@pytest.mark.parametrize("max_shift", [0, 1])
@pytest.mark.parametrize("training", [False, True])
def test_only_training_images_are_shifted(training, max_shift):
    digits = Digits(max_shift=max_shift)
    digits.trainer = Mode(training)
    images, labels = load_digits()
    shifted, same = digits.on_after_batch_transfer((images.clone(), labels), 0)
    assert same is labels
    if not (training and max_shift):
        assert torch.equal(shifted, images)
        return
    shifts = [torch.tensor([[y], [x]]).expand(2, 1797) for y in (-1, 0, 1) for x in (-1, 0, 1)]
    moves = [shift_images(images, shift, background=-1.0) for shift in shifts]
    fits = torch.stack([(shifted == moved).flatten(1).all(-1) for moved in moves])
    assert fits.any(0).all()
    assert (fits.float().mean(-1) > 0.08).all()  # each of the nine moves happens about equally often


@pytest.mark.parametrize("argument", ["batch_size", "max_shift"])
def test_arguments_out_of_range_are_refused(argument):
    with pytest.raises(ValueError, match=rf"{argument} \(-1\) must"):
        Digits(**{argument: -1})
