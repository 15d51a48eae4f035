"""Japanese Vowels: ragged series, scaled, padded and split by speaker."""

import numpy as np
import pytest
import torch

from mmpos.data.series_files import ASSETS
from mmpos.data.vowels import VowelData, load_vowels


@pytest.fixture
def data():
    data = VowelData()
    data.setup()
    return data


def test_parts_share_out_the_speakers(data):
    assert {part: len(rows) for part, rows in data.parts.items()} == {"train": 225, "val": 45, "test": 370}
    assert data.parts["train"].labels.bincount().tolist() == [25] * 9
    assert data.parts["val"].labels.bincount().tolist() == [5] * 9
    series, labels = load_vowels("train")
    raw = {
        tuple(((one - data.mean) / data.std)[0].tolist()): int(label) for one, label in zip(series, labels, strict=True)
    }
    seen = {}
    for part in ("train", "val"):
        for one, label in zip(data.parts[part].series, data.parts[part].labels, strict=True):
            seen[tuple(one[0].tolist())] = int(label)
    assert seen == raw  # every series once, with its own label
    torch.manual_seed(123)
    again = VowelData()
    again.setup()
    assert all(map(torch.equal, again.parts["val"].series, data.parts["val"].series))


def test_series_are_those_of_the_file_scaled_by_training_frames(data):
    arrays = np.load(ASSETS / "japanese_vowels.npz")
    ends = arrays["test_lengths"].cumsum()
    frames = torch.cat(data.parts["train"].series).double()
    torch.testing.assert_close(frames.mean(0), torch.zeros(12).double(), atol=1e-5, rtol=0)
    torch.testing.assert_close(frames.std(0, correction=0), torch.ones(12).double(), atol=1e-5, rtol=0)
    assert len(frames) < arrays["train_lengths"].sum()
    batch = next(iter(data.test_dataloader()))
    assert batch["values"].shape == (370, 29, 12)
    assert torch.equal(batch["label"], torch.from_numpy(arrays["test_speaker"]))
    for row in (0, 1, 199, 369):
        length = arrays["test_lengths"][row]
        own = torch.from_numpy(arrays["test_frames"][ends[row] - length : ends[row]])
        torch.testing.assert_close(batch["values"][row, :length], (own - data.mean) / data.std)


def test_a_batch_is_padded_on_the_right_to_its_longest(data):
    batches = list(data.train_dataloader())
    assert [len(batch["label"]) for batch in batches] == [32] * 7 + [1]
    for batch in batches:
        lengths = batch["real"].sum(1)
        assert batch["real"].dtype == torch.bool
        assert batch["values"].shape == (len(lengths), lengths.max(), 12)
        assert torch.equal(batch["real"], torch.arange(lengths.max())[None].expand(len(lengths), -1) < lengths[:, None])
        assert not batch["values"][~batch["real"]].any()
        assert batch["values"][batch["real"]].all(1).all()
    assert sum(int(batch["real"].sum()) for batch in batches) == sum(map(len, data.parts["train"].series))
    assert batches[0]["label"].unique().numel() > 3  # shuffled


def test_arguments_out_of_range():
    with pytest.raises(ValueError, match=r"val_share \(1.0\) must be more than 0 and less than 1"):
        VowelData(val_share=1.0)
    with pytest.raises(ValueError, match=r"batch_size \(0\) must be at least 1"):
        VowelData(batch_size=0)
