import csv
import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml

import mmpos
from mmpos.cli import automatic_precision, main, run_name
from tests import forks
from tests.image_files import FASHION, NO_FASHION

ROOT = Path(__file__).parents[1]
BASE = ROOT / "configs" / "base.yaml"
CONFIGS = sorted(path for path in (ROOT / "configs").glob("*/*.yaml") if path.parent.name not in ("compare", "trainer"))
IMAGE = {path.stem: str(path) for path in CONFIGS if path.parent.name == "image"}
SMALL = ["--model.dim", "16", "--model.depth", "1", "--model.num_heads", "2", "--data.batch_size", "640"]
BATCHES = ["--data.batch_size", "8"]  # 162 in an epoch
QUICK = ["--trainer.max_epochs", "1", "--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false"]


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("MMPOS_DEBUG", raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = dict(mmpos.factory.ENCODINGS)
    yield
    mmpos.factory.ENCODINGS.clear()
    mmpos.factory.ENCODINGS.update(before)


def run(capsys, *args):
    """Output of a command, and the table at its end."""
    main([str(arg) for arg in args], base_config=BASE)
    out = capsys.readouterr().out
    rows = (line.split("  ") for line in out.splitlines())
    rows = ([cell.strip() for cell in row if cell.strip()] for row in rows)
    return {row[0]: row[1] for row in rows if len(row) == 2}


def read_metrics(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def fail(*args):
    """The message of a command that must fail with a status and without a traceback."""
    with pytest.raises(SystemExit) as exit:
        main([str(arg) for arg in args], base_config=BASE)
    assert isinstance(exit.value.code, str)  # printed to stderr, with the status 1
    message, hint = exit.value.code.splitlines()
    assert hint == "(MMPOS_DEBUG=1 shows the traceback)"
    return message


def write_tones(root, pitches, count=4):
    """Files of half a second in a folder for each class."""
    soundfile = pytest.importorskip("soundfile", reason="soundfile is not installed")
    for name, pitch in pitches.items():
        (root / name).mkdir(parents=True)
        for number in range(count):
            wave = torch.sin(torch.arange(4000) * (2 * torch.pi * pitch / 8000))
            soundfile.write(root / name / f"{number}.wav", wave.numpy(), 8000)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_config_takes_a_step(path, capsys):
    few = []
    if path.parent.name == "fashion":
        few = ["--data.limit", 200]
        if not FASHION.is_dir():
            pytest.skip(NO_FASHION)
    if path.parent.name == "audio":
        write_tones(Path("sounds"), pitches={"high": 900, "low": 300})
        few = ["--data.root", "sounds", "--model.num_classes", 2]
    if path.parent.name in ("multimodal", "sound"):
        few = ["--data.num_questions", 64, "--data.limit", 10, "--data.batch_size", 8, "--data.num_workers", 0]
    one = [f"--trainer.limit_{part}_batches=1" for part in ("train", "val", "test")]
    rows = run(capsys, "fit", "--config", path, *QUICK, *one, *few)
    folder = Path("runs", path.parent.name, path.stem, "version_0")
    assert rows["checkpoint"] == str(folder / "checkpoints" / "best.ckpt")
    assert rows["metrics"] == str(folder / "metrics.csv")
    assert rows["config"] == str(folder / "config.yaml")
    assert torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)["global_step"] == 1


@pytest.mark.parametrize("folder", sorted({path.parent.name for path in CONFIGS}))
def test_the_configs_of_a_folder_differ_in_positions_only(folder):
    slots = {
        "additive",
        "rotary",
        "bias",
        "scale",
        "positions",
        "layers",
        "length",
        "times",
        "rule",
        "pos_embed",
        "attention",
    }
    configs = {path.stem: yaml.safe_load(path.read_text()) for path in CONFIGS if path.parent.name == folder}
    assert "none" in configs
    assert len(configs) > 2
    kept = []
    for config in configs.values():
        arguments = config["model"].get("init_args", {})
        config["model"]["init_args"] = {name: value for name, value in arguments.items() if name not in slots}
        kept.append(config)
    assert all(config == kept[0] for config in kept)


def test_a_test_gives_the_number_of_the_fit_again_from_either_config(capsys):
    fitted = run(capsys, "fit", "--config", IMAGE["rope"], *QUICK, *SMALL, "--trainer.max_epochs", 2)
    assert float(fitted["test accuracy"].removesuffix("%")) > 0
    assert int(fitted["parameters"].replace(",", "")) > 1000
    last = ["--ckpt_path", fitted["checkpoint"]]
    tested = run(capsys, "test", "--config", fitted["config"], *last)
    again = run(capsys, "test", "--config", IMAGE["rope"], *QUICK, *SMALL, *last)
    for name in ("test accuracy", "test loss", "parameters", "checkpoint", "metrics", "config"):
        assert fitted[name] == tested[name] == again[name]
    assert [path.name for path in Path("runs/image/rope").iterdir()] == ["version_0"]
    rows = read_metrics(fitted["metrics"])
    assert [row["val_accuracy"] != "" for row in rows].count(True) == 2
    assert f"{float(rows[-1]['test_accuracy']):.2%}" == fitted["test accuracy"]


def test_the_best_checkpoint_is_tested_and_runs_do_not_overwrite_each_other(capsys):
    for version in (0, 1):
        args = ["fit", "--config", IMAGE["rope"], *QUICK, *SMALL, "--trainer.max_epochs", 4, "--model.lr", 0.05]
        fitted = run(capsys, *args)
        folder = Path("runs/image/rope", f"version_{version}")
        assert fitted["config"] == str(folder / "config.yaml")
    scores = [float(row["val_score"]) for row in read_metrics(fitted["metrics"]) if row["val_score"]]
    assert len(set(scores)) == 4
    best = torch.load(fitted["checkpoint"], weights_only=True)
    assert best["epoch"] == scores.index(max(scores))
    assert torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)["epoch"] == 3


def test_the_same_seed_gives_the_same_run_and_another_another(capsys):
    fits = [
        run(capsys, "fit", "--config", IMAGE["rope"], *QUICK, *SMALL, "--seed_everything", seed) for seed in (3, 3, 4)
    ]
    assert fits[0]["test loss"] == fits[1]["test loss"] != fits[2]["test loss"]


def test_the_resolved_config_is_saved_with_what_flags_set(capsys):
    flags = ["--model.rotary.base", "1e3", "--model.lr", "1e-4", "--data.max_shift", "0", "--run", "mine/own"]
    run(capsys, "fit", "--config", IMAGE["rope"], *QUICK, *SMALL, *flags)
    config = yaml.safe_load(Path("runs/mine/own/version_0/config.yaml").read_text())
    model = config["model"]["init_args"]
    assert model["rotary"] == {"name": "RoPE", "axes": 2, "base": 1000.0}
    assert (model["lr"], model["dim"], model["weight_decay"]) == (1e-4, 16, 0.05)
    assert config["data"]["init_args"] == {"batch_size": 640, "max_shift": 0}
    assert (config["seed_everything"], config["trainer"]["precision"], config["run"]) == (0, None, "mine/own")


def test_exponents_in_yaml_are_numbers(capsys):
    Path("mine.yaml").write_text(
        "model:\n  class_path: ImageClassifier\n  init_args:\n    lr: 1e-3\n"
        "    rotary: {name: RoPE, axes: 2, base: 1e4}\ndata: Digits\n"
    )
    fitted = run(capsys, "fit", "--config", "mine.yaml", *QUICK, *SMALL)
    hparams = torch.load(fitted["checkpoint"], weights_only=True)["hyper_parameters"]
    assert (hparams["lr"], hparams["rotary"]["base"]) == (1e-3, 1e4)


def test_a_run_goes_on_from_its_last_checkpoint(capsys):
    fitted = run(capsys, "fit", "--config", IMAGE["rope"], *QUICK, *SMALL)
    last = fitted["checkpoint"].replace("best", "last")
    more = ["--trainer.max_epochs", 3, "--ckpt_path", last]
    fitted = run(capsys, "fit", "--config", IMAGE["rope"], *QUICK, *SMALL, *more)
    assert "version_1" in fitted["checkpoint"]
    epochs = [row["epoch"] for row in read_metrics(fitted["metrics"]) if row["val_score"]]
    assert epochs == ["1", "2"]


def test_predictions_are_saved_beside_the_checkpoint(capsys):
    fitted = run(capsys, "fit", "--config", IMAGE["none"], *QUICK, *SMALL)
    run(capsys, "predict", "--config", fitted["config"], "--ckpt_path", fitted["checkpoint"])
    (probabilities,) = torch.load("runs/image/none/version_0/predictions.pt", weights_only=True)
    assert probabilities.shape == (360, 10)
    torch.testing.assert_close(probabilities.sum(-1), torch.ones(360))


ENCODING = """
import mmpos

class Constant(mmpos.AdditiveEncoding):
    def __init__(self, dim, value):
        super().__init__()
        self.dim, self.axes, self.value = dim, 2, value

    def forward(self, coords, *, length=None):
        return coords.new_full((*coords.shape[:-1], self.dim), self.value).float()

mmpos.register_encoding("{name}", Constant)
"""


@pytest.mark.parametrize("form", ["two flags", "one flag", "config"])
def test_modules_of_the_user_are_imported_first(form, capsys):
    mine, other = f"mine_{form.replace(' ', '_')}", f"other_{form.replace(' ', '_')}"
    for name in (mine, other):
        Path(f"{name}.py").write_text(ENCODING.format(name=name))
    flags = {
        "two flags": ["--imports", mine, "--imports", other],
        "one flag": [f"--imports={mine},{other}"],
        "config": ["--config", "imports.yaml"],
    }[form]
    Path("imports.yaml").write_text(f"imports: [{mine}, {other}]\n")
    spec = f"{{name: {other}, value: 2}}"
    fitted = run(capsys, "fit", *flags, "--config", IMAGE["none"], *QUICK, *SMALL, "--model.additive", spec)
    assert yaml.safe_load(Path(fitted["config"]).read_text())["imports"] == [mine, other]
    hparams = torch.load(fitted["checkpoint"], weights_only=True)["hyper_parameters"]
    assert hparams["additive"] == {"name": other, "value": 2}


def test_a_series_in_a_file_is_forecast_into_a_file(tmp_path, capsys):
    config = ROOT / "configs" / "series" / "calendar_time_rope.yaml"
    series = [*QUICK, "--config", config, "--data.source", "mine.csv", "--data.input_length", 20, "--data.horizon", 10]
    hours = [f"2024-03-{day:02}T{hour:02}:00:00" for day in range(1, 11) for hour in range(24)]
    Path("mine.csv").write_text("when,load\n" + "".join(f"{hour},{place % 24}\n" for place, hour in enumerate(hours)))
    fitted = run(capsys, "fit", *series, "--trainer.limit_train_batches", 2)
    assert Path(fitted["checkpoint"]).parents[1].joinpath("forecasts.csv").is_file()
    predict = ["predict", *series, "--ckpt_path", fitted["checkpoint"], "--files"]
    run(capsys, *predict, "mine.csv", "--output", "next.csv")
    lines = Path("next.csv").read_text().splitlines()
    assert lines[0] == "when,load"
    assert [line.split(",")[0][:13] for line in lines[1:]] == [f"2024-03-11 {hour:02}" for hour in range(10)]
    Path("other.csv").write_text(Path("mine.csv").read_text())
    run(capsys, *predict, "mine.csv", "other.csv")
    folder = Path(fitted["checkpoint"]).parents[1] / "forecasts"
    assert [(folder / name).read_text() for name in ("mine.csv", "other.csv")] == 2 * [Path("next.csv").read_text()]
    Path("short.csv").write_text("\n".join(Path("mine.csv").read_text().splitlines()[:9]))
    assert fail(*predict, "short.csv") == ("error: short.csv: the series has 8 rows, too few for input_length (20)")


def test_wrong_input_is_one_clear_message(capsys):
    fit = ["fit", "--config", IMAGE["rope"], *QUICK]
    assert fail(*fit, "--model.rotary.name", "ropee").startswith(
        "error: unknown encoding 'ropee'; did you mean 'RoPE'?"
    )
    assert fail(*fit, "--model.rotary.bass", 3).startswith("error: RoPE has no argument 'bass'; did you mean 'base'?")
    assert fail(*fit, "--model.dim", 20) == "error: head_dim (5) must be a multiple of 2 * axes (4)"
    message = "error: image_size (8 x 9) must be a multiple of patch_size (2 x 2)"
    assert fail(*fit, "--model.image_size", "[8, 9]") == message
    message = "error: the image size (8 x 8) must be a multiple of patch_size (3 x 3)"
    assert fail(*fit, "--model.image_size", 9, "--model.patch_size", 3) == message
    message = "error: ImageClassifier has no argument 'rotery'; did you mean 'rotary'? Known: additive,"
    assert fail(*fit, "--model.rotery", "null").startswith(message)
    assert fail(*fit, "--trainer.max_epoch", 3) == "error: unrecognized arguments: --trainer.max_epoch 3"
    assert re.search("batch_size.*int.*many", fail(*fit, "--data.batch_size", "many"))
    assert fail(*fit, "--data.batch_size", 0) == "error: batch_size (0) must be positive"
    message = "error: imports has 'no_such_module', which cannot be imported: No module named 'no_such_module'"
    assert fail(*fit, "--imports", "no_such_module") == message
    assert "nofile.yaml" in fail("fit", "--config", "nofile.yaml")
    Path("mine.yaml").write_text("model: ImageClasifier\ndata: Digits\n")
    message = fail("fit", "--config", "mine.yaml")
    assert message.startswith("error: unknown class 'ImageClasifier'; known: ")
    assert "ImageClassifier" in message
    Path("mine.yaml").write_text("model: {class_path: ImageClassifier, init_args: {rotary: RoPE}}\ndata: Digits\n")
    assert re.search("rotary.*dict.*RoPE", fail("fit", "--config", "mine.yaml"))
    assert not Path("runs").exists() or not list(Path("runs").rglob("*.ckpt"))


def test_a_checkpoint_that_does_not_fit_is_one_clear_message(capsys):
    fitted = run(capsys, "fit", "--config", IMAGE["rope"], *QUICK, *SMALL)
    test = ["test", "--config", IMAGE["rope"], *QUICK, *SMALL]
    message = fail(*test, "--model.rotary.base", 50, "--ckpt_path", fitted["checkpoint"])
    theirs, ours = ({"name": "RoPE", "axes": 2, "base": base} for base in (100.0, 50))
    assert message == f"error: the checkpoint is of another model: rotary is {theirs} in the checkpoint but {ours} here"
    assert fail(*test, "--ckpt_path", "no.ckpt") == "error: ckpt_path no.ckpt does not exist"
    assert fail(*test, "--ckpt_path", fitted["config"]) == f"error: ckpt_path {fitted['config']} is not a checkpoint"
    assert fail(*test).startswith("error: ckpt_path is missing")


def test_training_goes_on_from_weights_with_a_scaling(tmp_path, capsys):
    folder = tmp_path / "texts"
    folder.mkdir()
    for name in range(40):
        (folder / f"{name:02}.txt").write_text(f"{name} " * 300)
    own = ["--data.files", f"[{folder}]", "--data.cache", tmp_path / "cache", *BATCHES]
    fit = ["fit", "--config", ROOT / "configs" / "text" / "rope.yaml", *QUICK, *SMALL, *own]
    fitted = run(capsys, *fit, "--data.length", 16, "--trainer.limit_train_batches", 4)
    scaled = '{"name": "RoPE", "scaling": {"name": "YaRN", "factor": 4, "train_length": 16}}'
    longer = [*fit, "--data.length", 64, "--model.rotary", scaled, "--weights", fitted["checkpoint"]]
    tuned = run(capsys, *longer, "--trainer.limit_train_batches", 1, "--model.lr", "1e-9")
    old, new = (torch.load(result["checkpoint"])["state_dict"] for result in (fitted, tuned))
    assert all(torch.allclose(new[name], old[name], atol=1e-6) for name in old)
    message = fail(*fit, "--weights", fitted["checkpoint"], "--model.num_tokens", 300)
    assert message.startswith(f"error: weights {fitted['checkpoint']} are of another model: size mismatch for network.")
    assert "[256, 16]" in message
    assert "[300, 16]" in message
    assert fail(*fit, "--weights", "no.ckpt") == "error: weights no.ckpt does not exist"
    both = ["--ckpt_path", fitted["checkpoint"], "--weights", fitted["checkpoint"]]
    assert fail(*fit, *both).startswith("error: give weights, to train on anew, or ckpt_path")
    assert fail("test", *fit[1:], *both).startswith("error: weights (")


def test_flags_may_stand_before_the_subcommand(capsys):
    Path("all.yaml").write_text(yaml.safe_dump({"fit": yaml.safe_load(Path(IMAGE["rope"]).read_text()), "test": {}}))
    with pytest.raises(SystemExit) as exit:
        main(["--config", "all.yaml", "fit", "--trainer.max_epochs", "7", "--print_config"], base_config=BASE)
    assert exit.value.code == 0
    config = yaml.safe_load(capsys.readouterr().out)
    assert (config["trainer"]["max_epochs"], config["model"]["init_args"]["rotary"]["name"]) == (7, "RoPE")
    with pytest.raises(SystemExit):
        main(["--help"], base_config=BASE)
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("fit", "validate", "test", "predict"))


def test_the_traceback_is_there_on_request(monkeypatch):
    monkeypatch.setenv("MMPOS_DEBUG", "1")
    with pytest.raises(ValueError, match="unknown encoding 'ropee'"):
        main(["fit", "--config", IMAGE["rope"], *QUICK, "--model.rotary.name", "ropee"], base_config=BASE)


def test_an_interruption_leaves_a_checkpoint_that_goes_on(tmp_path, capsys):
    args = ["fit", "--config", IMAGE["rope"], *SMALL, *BATCHES, "--trainer.accelerator", "cpu"]
    log = tmp_path / "log"
    process = forks.command(log, args)
    folder, deadline = Path("runs/image/rope/version_0"), time.monotonic() + 60
    while not (folder / "config.yaml").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(1)  # amid an epoch
    os.kill(process.pid, signal.SIGINT)
    process.join(timeout=60)
    errors = log.read_text()
    last = folder / "checkpoints" / "last.ckpt"
    assert process.exitcode == 130, errors
    assert f"interrupted; to go on: --ckpt_path {last}" in errors
    assert "Traceback" not in errors
    before = torch.load(last, weights_only=True)
    assert before["global_step"] > 0
    more = ["--trainer.max_epochs", before["epoch"] + 1, "--ckpt_path", last]
    fitted = run(capsys, "fit", "--config", IMAGE["rope"], *QUICK, *SMALL, *BATCHES, *more)
    after = torch.load(fitted["checkpoint"].replace("best", "last"), weights_only=True)
    assert after["global_step"] == (before["epoch"] + 1) * 162


def test_a_run_that_ends_before_it_is_validated_has_its_last_checkpoint(capsys):
    rows = run(capsys, "fit", "--config", IMAGE["rope"], *QUICK, *SMALL, *BATCHES, "--trainer.max_steps", 3)
    assert rows["checkpoint"] == str(Path("runs/image/rope/version_0/checkpoints/last.ckpt"))
    assert Path(rows["metrics"]).exists()
    assert torch.load(rows["checkpoint"], weights_only=True)["global_step"] == 3


def test_the_command_works_from_anywhere_and_is_quiet(tmp_path):
    command = [
        sys.executable,
        ROOT / "train.py",
        "fit",
        "--config",
        IMAGE["alibi"],
        *SMALL,
        "--trainer.max_epochs",
        "1",
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "Epoch 0/0" in done.stdout  # the progress bar
    assert "test accuracy" in done.stdout
    for noise in ("litlogger", "GPU available", "arning", "num_workers"):
        assert noise not in done.stdout


def test_the_folder_of_a_run_is_named_as_its_config():
    assert run_name("configs/image/rope.yaml") == "image/rope"
    assert run_name("/home/me/configs/configs/text/rope.v2.yaml") == "text/rope.v2"
    assert run_name("configs/image/rope.yaml", "../mine.yaml") == "mine"
    assert run_name() == "unnamed"


def test_precision_follows_the_device(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    assert [automatic_precision(device) for device in ("auto", "gpu", "cpu")] == ["bf16-mixed", "bf16-mixed", "32-true"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert automatic_precision("auto") == "32-true"


@pytest.mark.skipif(importlib.util.find_spec("tensorboard") is None, reason="tensorboard is not installed")
def test_tensorboard_gets_the_metrics_too(capsys):
    run(capsys, "fit", "--config", IMAGE["none"], *QUICK, *SMALL)
    assert list(Path("runs/image/none/version_0").glob("events.out.tfevents*"))
