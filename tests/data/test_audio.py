"""Log-mel frames against their formula and transformers, their seconds, and folders of sound files."""

import logging
import math

import numpy as np
import pytest
import torch

from mmpos.data import audio
from mmpos.data.audio import AudioFolder
from mmpos.data.sound import SILENCE, log_mel, mel_filters, read_sound


@pytest.mark.parametrize(
    "bands, bins, rate, low, high",
    [
        (40, 257, 16000, 20.0, 8000.0), (23, 513, 22050, 0.0, None), (80, 201, 16000, 0.0, 8000.0),
        (8, 65, 2000, 50.0, 1000.0),
    ],
)  # fmt: skip
def test_filters_are_those_of_transformers(bands, bins, rate, low, high):
    audio_utils = pytest.importorskip("transformers.audio_utils", reason="transformers is not installed")
    want = audio_utils.mel_filter_bank(bins, bands, low, high or rate / 2, rate, norm=None, mel_scale="htk")
    got = mel_filters(bands, bins, rate, low=low, high=high)
    torch.testing.assert_close(got.double(), torch.from_numpy(want), atol=1e-6, rtol=0)


def by_hand(wave, rate, width, step, frame, bands, low, high):
    """Log energies of one frame, in float64 from the definitions of window, spectrum and triangles."""
    size = 2 ** math.ceil(math.log2(width))
    window = [0.5 - 0.5 * math.cos(2 * math.pi * i / width) for i in range(width)]
    middle, values = frame * step, [0.0] * size
    for i in range(width):
        place = middle - size // 2 + (size - width) // 2 + i
        values[(size - width) // 2 + i] = window[i] * (wave[place] if 0 <= place < len(wave) else 0.0)
    energies = np.abs(np.fft.rfft(values)) ** 2
    edges = [2595 * math.log10(1 + edge / 700) for edge in (low, high)]
    corners = [
        700 * (10 ** ((edges[0] + (edges[1] - edges[0]) * i / (bands + 1)) / 2595) - 1) for i in range(bands + 2)
    ]
    out = []
    for left, top, right in zip(corners, corners[1:], corners[2:], strict=False):
        total = 0.0
        for place, energy in enumerate(energies):
            freq = place * rate / size
            if left < freq <= top:
                total += energy * (freq - left) / (top - left)
            elif top < freq < right:
                total += energy * (right - freq) / (right - top)
        out.append(math.log(max(total, SILENCE)))
    return torch.tensor(out)


@pytest.mark.parametrize("rate, window, hop", [(8000, 0.02, 0.01), (11025, 0.025, 0.007)])
def test_frames_are_those_of_the_definition(rate, window, hop):
    wave = torch.randn(rate // 4, generator=torch.Generator().manual_seed(1))
    got, seconds = log_mel(wave, rate, bands=6, window=window, hop=hop, low=100.0, high=3000.0)
    width, step = round(window * rate), round(hop * rate)
    assert got.shape == (1 + len(wave) // step, 6)
    for frame in (0, 1, 9, len(got) - 1):
        want = by_hand(wave.double().tolist(), rate, width, step, frame, 6, 100.0, 3000.0)
        torch.testing.assert_close(got[frame].double(), want.double(), atol=1e-3, rtol=0)
        assert seconds[frame].item() == pytest.approx(frame * step / rate, abs=1e-12)


@pytest.mark.parametrize("rate", [8000, 16000, 22050, 44100])
@pytest.mark.parametrize("hop", [0.01, 0.025])
def test_an_event_is_at_its_second_at_any_rate_and_hop(rate, hop):
    wave = torch.zeros(2 * rate)
    wave[round(1.3 * rate)] = 1.0
    energies, seconds = log_mel(wave, rate, hop=hop, window=0.03, high=4000.0)
    assert abs(seconds[energies.sum(1).argmax()].item() - 1.3) <= hop / 2 + 1e-3
    assert energies.shape[1] == 40


def test_a_tone_is_in_its_band_whatever_the_rate():
    bands = set()
    for rate in (16000, 22050, 48000):
        wave = torch.sin(2 * math.pi * 1000 * torch.arange(rate) / rate)
        bands.add(int(log_mel(wave, rate)[0][50].argmax()))
    assert len(bands) == 1
    silent = log_mel(torch.sin(torch.arange(8000.0)), 8000)[0]
    assert torch.equal(silent[:, -3:], torch.full_like(silent[:, -3:], math.log(SILENCE)))  # 8 kHz reach 4 kHz only


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"bands": 0}, r"bands \(0\), bins \(257\) and rate \(16000\) must be"),
        ({"hop": 0.0}, "hop must be positive and finite, got 0.0"),
        ({"hop": math.inf}, "hop must be positive and finite, got inf"),
        ({"high": math.inf}, r"low \(20\) must be at least 0 and below high \(inf\)"),
        ({"window": math.inf}, "window must be positive and finite, got inf"),
        ({"low": 500.0, "high": 400.0}, r"low \(500\) must be at least 0 and below high \(400\)"),
    ],
)
def test_numbers_out_of_range(arguments, message):
    with pytest.raises(ValueError, match=message):
        log_mel(torch.zeros(1000), 16000, **arguments)
    with pytest.raises(ValueError, match=message.split(",")[0].split(" must")[0].split(" and")[0]):
        AudioFolder(**arguments)
    for seconds in (0.0, math.inf, math.nan):
        with pytest.raises(ValueError, match=r"seconds \(.*\) must be positive and finite"):
            AudioFolder(seconds=seconds)


def test_no_samples():
    with pytest.raises(ValueError, match=r"wave must be samples \(n,\), got shape \(0,\)"):
        log_mel(torch.zeros(0), 8000)
    with pytest.raises(TypeError, match=r"wave must be floating point, from -1 to 1, got torch\.int16"):
        log_mel(torch.zeros(100).short(), 8000)


def test_samples_of_any_width_on_any_device_and_under_autocast():
    wave = torch.sin(torch.arange(4000.0))
    want = log_mel(wave, 8000)[0]
    torch.testing.assert_close(log_mel(wave.double(), 8000)[0], want)
    assert log_mel(wave.to("meta"), 8000)[0].shape == want.shape
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(log_mel(wave, 8000)[0], want)


@pytest.fixture
def soundfile():
    return pytest.importorskip("soundfile", reason="soundfile is not installed")


def write(soundfile, path, pitch, seconds=0.5, rate=8000, channels=1, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    wave = 0.5 * np.sin(2 * np.pi * pitch * np.arange(round(seconds * rate)) / rate)
    soundfile.write(path, np.stack([wave] * channels, axis=1), rate, **options)


@pytest.fixture
def root(tmp_path, soundfile):
    for name, pitch in (("high", 1500), ("low", 300)):
        for number in range(12):
            suffix, rate = (".wav", 8000) if number % 2 else (".flac", 22050)
            write(soundfile, tmp_path / name / f"{number}{suffix}", pitch, 0.3 + 0.02 * number, rate, 1 + number % 3)
    return tmp_path


def folder(root, **options):
    return AudioFolder(str(root), bands=10, high=4000.0, **options)


@pytest.mark.parametrize("suffix", [".wav", ".flac"])
def test_files_are_read_as_they_were_written(tmp_path, soundfile, suffix):
    left, right = (torch.randn(500, generator=torch.Generator().manual_seed(seed)) * 0.2 for seed in (0, 1))
    soundfile.write(tmp_path / f"a{suffix}", torch.stack([left, right], 1).numpy(), 11025)
    wave, rate = read_sound(tmp_path / f"a{suffix}")
    assert rate == 11025
    torch.testing.assert_close(wave, (left + right) / 2, atol=2**-14, rtol=0)


def test_a_folder_has_its_parts_and_its_classes(root):
    data = folder(root)
    data.setup()
    assert data.classes == ("high", "low")
    assert {part: len(sounds) for part, sounds in data.parts.items()} == {"train": 20, "test": 2, "val": 2}
    again = folder(root)
    torch.manual_seed(77)
    again.setup()
    for part, sounds in data.parts.items():
        assert all(map(torch.equal, sounds.frames, again.parts[part].frames))
    batch = next(iter(data.train_dataloader()))
    lengths = batch["real"].sum(1)
    assert batch["values"].shape == (20, lengths.max(), 40)
    assert not batch["values"][~batch["real"]].any()
    assert batch["label"].bincount().tolist() == [10, 10]
    bands = torch.cat(data.parts["train"].frames).view(-1, 10)
    assert bands.mean(0).abs().max() < 0.5  # but for the silence behind the end


def test_tokens_lie_at_the_second_in_their_middle(root, soundfile):
    write(soundfile, root / "test" / "low" / "a.wav", 300, 0.5, rate=22050)
    for name in ("low", "high"):
        (root / "train").mkdir(exist_ok=True)
        (root / name).rename(root / "train" / name)
    data = folder(root, hop=0.0101, patch=3)
    data.setup()
    (batch,) = data.test_dataloader()
    step = round(0.0101 * 22050) / 22050
    want = (torch.arange(batch["times"].shape[1]) * 3 + 1).double() * step * 1e9
    torch.testing.assert_close(batch["times"][0].double(), want, atol=1, rtol=0)
    wave, rate = read_sound(root / "test" / "low" / "a.wav")
    energies, _ = log_mel(wave, rate, bands=10, hop=0.0101, high=4000.0)
    frames = batch["values"].view(-1, 10) * data.std + data.mean
    torch.testing.assert_close(frames[: len(energies)], energies, atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(frames[len(energies) :], torch.full_like(frames[len(energies) :], math.log(SILENCE)))


def test_bad_files_are_named_counted_and_left_out(root, caplog, monkeypatch):
    (root / "low" / "text.wav").write_text("no sound")
    (root / "high" / "empty.flac").write_bytes(b"")
    whole = (root / "low" / "0.flac").read_bytes()
    (root / "low" / "cut.flac").write_bytes(whole[:30])
    (root / "low" / "gone.wav").write_bytes(whole)
    read = audio.read_sound

    def read_and_lose(path):
        (root / "low" / "gone.wav").unlink(missing_ok=True)
        return read(path)

    monkeypatch.setattr(audio, "read_sound", read_and_lose)
    data = folder(root)
    with caplog.at_level(logging.WARNING):
        data.setup()
    assert {path.name for path in data.skipped} == {"text.wav", "empty.flac", "cut.flac", "gone.wav"}
    assert "4 of 28 sound files are left out" in caplog.text
    assert all(path.name in caplog.text for path in data.skipped)
    assert sum(len(sounds) for sounds in data.parts.values()) == 24


def test_a_sound_of_one_frame_has_its_token_where_others_have_their_first(root, soundfile):
    write(soundfile, root / "low" / "short.wav", 300, 0.002)
    data = folder(root)
    data.setup()
    parts = data.parts.values()
    seconds = [second for sounds in parts for second in sounds.seconds]
    (short,) = [second for second in seconds if len(second) == 1]
    assert short.item() == pytest.approx(1.5 * 0.01)
    assert all(second[0].item() == pytest.approx(1.5 * 0.01, abs=1e-4) for second in seconds)


@pytest.mark.parametrize("count", [1, 2])
def test_too_few_files_to_set_some_aside(tmp_path, soundfile, count):
    for number in range(count):
        write(soundfile, tmp_path / "low" / f"{number}.wav", 300)
    part = "test" if count == 1 else "val"
    with pytest.raises(ValueError, match=f"has too few sound files to set some aside for {part}"):
        folder(tmp_path).setup()


def test_folders_that_cannot_be_used(tmp_path, root):
    with pytest.raises(FileNotFoundError, match=r"root \(.*nowhere\) is not a folder"):
        folder(tmp_path / "nowhere").setup()
    (root / "dog").mkdir()
    (root / "dog" / "1.wav").write_text("x")
    with pytest.raises(FileNotFoundError, match="has no sound files to train on of dog"):
        folder(root).setup()
    (tmp_path / "bare" / "cat").mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match="has no sound files in folders of classes, such as"):
        folder(tmp_path / "bare").setup()
    with pytest.raises(ValueError, match=r"patch \(0\) must be at least 1"):
        folder(root, patch=0)
