import errno
import math
import os
import resource
import signal
import time
from pathlib import Path

import pytest
import torch
from torch.utils.data import _utils as loading

import mmpos.data.image
from mmpos.cli import main
from mmpos.data import ImageFolder, loaders
from mmpos.data.text import Windows
from mmpos.errors import explain
from mmpos.training.faults import FiniteTraining, NotFiniteError, newest_checkpoint
from tests.image_files import write_folder
from tests.test_cli import BASE, IMAGE, QUICK, ROOT, SMALL, fail, in_a_folder_of_its_own, run

__all__ = ["in_a_folder_of_its_own"]

FIT = ["fit", "--config", IMAGE["rope"], *QUICK, *SMALL]
FOLDER = Path("runs/image/rope")
DROPOUT = ["--model.drop_path", 0.2, "--model.block", "{attn_drop: 0.1, proj_drop: 0.1}"]


def load(path):
    return torch.load(path, weights_only=True)


def progress(checkpoint):
    loop = checkpoint["loops"]["fit_loop"]
    return loop["epoch_progress"], loop["epoch_loop.batch_progress"]


def test_a_run_goes_on_from_any_checkpoint_to_the_same_end(capsys):
    each = ["--last.every_n_train_steps", 1, "--last.save_top_k", -1, "--last.filename", "{step}"]
    few = ["--data.batch_size", 16, "--trainer.max_epochs", 2, "--trainer.limit_train_batches", 3]
    run(capsys, *FIT, *DROPOUT, *few, *each, "--last.dirpath", "whole")
    whole = {int(path.stem[5:]): load(path) for path in Path("whole").iterdir()}
    assert sorted(whole) == [1, 2, 3, 4, 5, 6]
    source = "whole"
    for step in (2, 3, 4):  # within an epoch, at its end, and in a run that has gone on twice itself
        path = f"{source}/step={step}.ckpt"
        source = f"from_{step}"
        run(capsys, *FIT, *DROPOUT, *few, *each, "--last.dirpath", source, "--ckpt_path", path)
        for path in Path(source).iterdir():
            found, expected = load(path), whole[int(path.stem[5:])]
            assert progress(found) == progress(expected)
            for name, weight in expected["state_dict"].items():
                assert torch.equal(found["state_dict"][name], weight), (step, path, name)
        assert Path(source, "step=6.ckpt").is_file()


def test_an_interruption_waits_for_the_end_of_the_step(capsys, monkeypatch):
    """A signal amid a step, when some weights are changed and others not; a second Ctrl-C does not wait."""
    few = [*DROPOUT, "--data.batch_size", 16, "--trainer.max_epochs", 1, "--trainer.limit_train_batches", 5]
    run(capsys, *FIT, *few, "--last.dirpath", "whole")
    step, steps, signals = torch.optim.AdamW.step, [], []

    def interrupted_step(self, closure=None):
        loss = step(self, closure)
        steps.append(loss)
        if len(steps) == 2:
            for number in signals:
                signal.raise_signal(number)
        return loss

    monkeypatch.setattr(torch.optim.AdamW, "step", interrupted_step)
    for folder, signals in {"term": [signal.SIGTERM], "once": [signal.SIGINT], "twice": [signal.SIGINT] * 2}.items():
        with pytest.raises(SystemExit) as end:
            main([*map(str, (*FIT, *few, "--last.dirpath", folder))], base_config=BASE)
        steps.clear()
        assert end.value.code == 128 + signals[0]
    assert not Path("twice/last.ckpt").exists()
    monkeypatch.setattr(torch.optim.AdamW, "step", step)
    expected = load("whole/last.ckpt")
    for folder in ("term", "once"):
        assert load(f"{folder}/last.ckpt")["global_step"] == 2
        run(capsys, *FIT, *few, "--last.dirpath", f"{folder}_on", "--ckpt_path", f"{folder}/last.ckpt")
        found = load(f"{folder}_on/last.ckpt")
        assert found["global_step"] == expected["global_step"] == 5
        assert all(torch.equal(found["state_dict"][name], weight) for name, weight in expected["state_dict"].items())


def test_a_full_disk_leaves_the_checkpoint_that_was_there(capsys):
    run(capsys, *FIT, "--last.dirpath", "kept")
    path = Path("kept/last.ckpt").absolute()
    before = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, hard))  # as a disk that is full amid a file
    try:
        message = fail(*FIT, "--last.dirpath", "kept", "--seed_everything", 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert message == f"error: the checkpoint {path} cannot be written: File too large; those before it are whole"
    assert path.read_bytes() == before
    assert os.listdir("kept") == ["last.ckpt"]
    run(capsys, *FIT, "--ckpt_path", path, "--trainer.max_epochs", 2)
    full = OSError(errno.ENOSPC, "No space left on device", "runs/metrics.csv")
    assert explain(full).startswith("No space left on device: runs/metrics.csv; checkpoints are whole")


def test_a_folder_that_cannot_be_written_is_named():
    Path("file").write_text("")
    assert path_in(fail(*FIT, "--trainer.default_root_dir", "file/runs")) == "file/runs"
    assert path_in(fail(*FIT, "--trainer.default_root_dir", "/proc/runs")) == "/proc/runs"


def path_in(message):
    """The path that a message quotes, from the working directory on."""
    path = message.split("'")[1]
    return os.path.relpath(path) if path.startswith(os.getcwd()) else path


def test_last_is_the_newest_checkpoint_of_the_config(capsys):
    assert fail(*FIT, "--ckpt_path", "last") == f"error: ckpt_path last: no run in {FOLDER} has such a checkpoint yet"
    for version in ("version_2", "version_10", "version_9"):
        (FOLDER / version / "checkpoints").mkdir(parents=True)
        (FOLDER / version / "checkpoints/best.ckpt").write_text("")
    (FOLDER / "version_11/checkpoints").mkdir(parents=True)
    (FOLDER / "version_11/checkpoints/.best.ckpt.partial").write_text("")
    (FOLDER / "version_mine/checkpoints").mkdir(parents=True)
    (FOLDER / "version_mine/checkpoints/best.ckpt").write_text("")
    assert newest_checkpoint(FOLDER, "best") == FOLDER / "version_10/checkpoints/best.ckpt"


def test_a_loss_that_is_no_number_ends_the_run_and_names_the_batch(capsys, monkeypatch):
    images, labels = mmpos.data.image.load_digits()
    images[7] = math.nan
    monkeypatch.setattr(mmpos.data.image, "load_digits", lambda: (images, labels))
    often = ["--data.max_shift", 0, "--data.batch_size", 64, "--last.every_n_train_steps", 1]
    message = fail(*FIT, *often)
    assert message.endswith(": 64 of 4096 numbers of part 0 of the batch are not finite; no step was taken with it")
    assert message.startswith("error: the loss is nan in batch ")
    done = int(message.split()[7])
    saved = load(FOLDER / "version_0/checkpoints/last.ckpt")
    assert saved["global_step"] == done > 0
    assert all(weight.isfinite().all() for weight in saved["state_dict"].values())
    monkeypatch.undo()
    monkeypatch.setenv("COLUMNS", "200")
    message = fail(*FIT, *often, "--model.lr", 1e30)
    assert "all numbers of the batch are finite, so a lower model.lr may help" in message


class Trained(torch.nn.Linear):
    global_step = 3


def test_weights_that_are_no_numbers_are_not_saved():
    module = Trained(2, 3)
    FiniteTraining().on_save_checkpoint(module, module, {})
    with torch.no_grad():
        module.bias[1] = torch.inf
    with pytest.raises(NotFiniteError, match="bias is not finite after step 3; no checkpoint is written"):
        FiniteTraining().on_save_checkpoint(module, module, {})


def test_missing_values_of_a_series_are_no_fault(capsys):
    rows = [
        f"2024-01-{1 + hour // 24:02} {hour % 24:02}:00,{'' if hour % 5 or hour < 60 else hour % 24}"
        for hour in range(240)
    ]
    Path("mine.csv").write_text("\n".join(["when,load", *rows]))
    series = [*QUICK, "--config", ROOT / "configs/series/time_rope.yaml", "--data.source", "mine.csv"]
    sizes = [
        "--data.input_length",
        16,
        "--data.horizon",
        4,
        "--data.batch_size",
        1,
    ]  # the first targets are all missing
    one = [f"--trainer.limit_{part}_batches=1" for part in ("val", "test")]
    run(capsys, "fit", *series, *sizes, "--trainer.limit_train_batches", 20, *one)


def test_a_picture_that_vanishes_is_named(tmp_path, capsys, monkeypatch):
    write_folder(tmp_path / "pictures")
    first = ImageFolder.train_dataloader

    def vanish(self):
        for path in self.parts["train"].paths:
            path.unlink(missing_ok=True)
        return first(self)

    monkeypatch.setattr(ImageFolder, "train_dataloader", vanish)
    fit = ["fit", "--config", ROOT / "configs/fashion/rope.yaml", *QUICK, "--data", "ImageFolder", *SMALL]
    own = ["--data.root", tmp_path / "pictures", "--model.num_classes", 3, "--model.in_chans", 3]
    message = fail(*fit, *own, "--data.num_workers", 1)
    assert message.startswith(f"error: {tmp_path / 'pictures'}")
    assert "No such file" in message


GONE = {
    "a table of series": ("series/calendar", ["--data.source", "none/x.csv"], "source has none/x.csv"),
    "sounds": ("audio/rope", ["--data.root", "none"], "root (none) is not a folder"),
    "clips": ("video/rope", ["--data", "VideoFolder", "--data.root", "none"], "root (none) is not a folder"),
    "texts": ("text/rope", ["--data.files", "[none/a.txt]"], "files has none/a.txt, which does not exist"),
    "images": ("fashion/rope", ["--data.root", "none"], "root (none) does not have FashionMNIST"),
}


@pytest.mark.parametrize("kind", GONE)
def test_data_that_is_gone_is_named(kind):
    config, where, message = GONE[kind]
    assert fail("fit", "--config", ROOT / f"configs/{config}.yaml", *QUICK, *where).startswith(f"error: {message}")


WAYS = {
    "killed": (
        lambda: os.kill(os.getpid(), signal.SIGKILL),
        "a process that loads data died",
    ),
    "ended": (lambda: os._exit(3), "a process that loads data died"),
    "stuck": (lambda: time.sleep(60), "the processes that load data sent nothing for 1.0 s; "),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_process_that_loads_data_and_is_gone_ends_the_run(way, tmp_path, monkeypatch):
    go, expected = WAYS[way]
    parent, take = os.getpid(), Windows.__getitems__

    def fault(self, rows):
        if os.getpid() != parent and 5 in rows:
            go()
        return take(self, rows)

    monkeypatch.setattr(Windows, "__getitems__", fault)
    monkeypatch.setattr(loaders, "PATIENCE", 1.0)
    monkeypatch.setattr(loading, "MP_STATUS_CHECK_INTERVAL", 0.2)
    text = ["fit", "--config", ROOT / "configs/text/rope.yaml", *QUICK, *SMALL, "--data.batch_size", 4]
    own = ["--data.files", f"[{ROOT / 'README.md'}]", "--data.cache", tmp_path, "--data.num_workers", 1]
    begin = time.monotonic()
    message = fail(*text, *own)
    assert message.startswith(f"error: {expected}")
    assert message.endswith("checkpoints are whole: --ckpt_path last")
    assert time.monotonic() - begin < 20
