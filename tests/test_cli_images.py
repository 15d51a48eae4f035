"""The command line with image files: other sizes, prediction, and what a recipe may say."""

import csv
import re
import sys
from pathlib import Path

import pytest
import torch
import yaml

from mmpos.cli import main
from mmpos.data import MNIST, ImageFolder
from mmpos.training import ImageClassifier
from tests.image_files import write_folder, write_mnist, write_picture

BASE = Path(__file__).parents[1] / "configs" / "base.yaml"
QUICK = ["--trainer.max_epochs", "1", "--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false"]
ROPE = {"name": "RoPE", "axes": 2, "base": 100.0}


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("MMPOS_DEBUG", raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])


def configure(path, data, **init):
    model = {"image_size": 8, "patch_size": 4, "dim": 16, "depth": 1, "num_heads": 2, "lr": 0.01} | init
    config = {"model": {"class_path": "ImageClassifier", "init_args": model}, "data": data}
    Path(path).write_text(yaml.safe_dump(config))
    return path


@pytest.fixture
def mnist(tmp_path):
    """A config whose data are on disk."""
    write_mnist(tmp_path / "mnist", train=60, test=30, size=(8, 8))
    data = {"class_path": "MNIST", "init_args": {"root": str(tmp_path / "mnist"), "batch_size": 9}}
    return lambda **init: configure("mnist.yaml", data, **init)


@pytest.fixture
def pets(tmp_path):
    """A config whose data are pictures of three classes."""
    write_folder(tmp_path / "pets", count=6)
    data = {"class_path": "ImageFolder", "init_args": {"root": str(tmp_path / "pets"), "batch_size": 5}}
    return lambda **init: configure("pets.yaml", data, **{"in_chans": 3, "num_classes": 3} | init)


def run(capsys, *args):
    """Output of a command, and its rows of two cells."""
    main([str(arg) for arg in args], base_config=BASE)
    out = capsys.readouterr().out
    rows = ([cell.strip() for cell in re.split(r"\s{2,}", line) if cell.strip()] for line in out.splitlines())
    return {row[0]: row[1] for row in rows if len(row) == 2}, out


def fail(*args):
    """The message of a command that must fail with a status and without a traceback."""
    with pytest.raises(SystemExit) as exit:
        main([str(arg) for arg in args], base_config=BASE)
    assert isinstance(exit.value.code, str)
    return exit.value.code.splitlines()[0]


def read(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_a_checkpoint_is_tested_at_each_size_in_each_way(mnist, capsys):
    sizes = ["--sizes", "8,12,8x16"]
    rows, out = run(capsys, "fit", "--config", mnist(rotary=ROPE), *QUICK, *sizes)
    saved = read("runs/mnist/version_0/resolution.csv")
    ways = ["extend", "rescale", "interpolate", "ntk", "yarn"]
    assert [(row["size"], row["how"]) for row in saved] == [
        (size, how) for size in ("8x8", "12x12", "8x16") for how in ways
    ]
    assert {row["images"] for row in saved} == {"30"}
    for row in saved[:5]:
        assert f"{float(row['accuracy']):.2%}" == rows["test accuracy"]
    assert len({row["accuracy"] for row in saved}) > 1
    assert "resolutions: runs/mnist/version_0/resolution.csv" in out
    for size in ("8x8", "12x12", "8x16"):
        shown = next(line.split() for line in out.splitlines() if line.split()[:1] == [size])
        assert shown[1:] == [f"{float(row['accuracy']):.2%}" for row in saved if row["size"] == size]
    Path("runs/mnist/version_0/resolution.csv").unlink()
    checkpoint = ["--ckpt_path", rows["checkpoint"]]
    run(capsys, "test", "--config", "mnist.yaml", *QUICK, *sizes, *checkpoint, "--how", "ntk,extend")
    again = read("runs/mnist/version_0/resolution.csv")
    kept = {(row["size"], row["how"]): row for row in saved}
    assert again == [kept[size, how] for size in ("8x8", "12x12", "8x16") for how in ("ntk", "extend")]


def test_the_accuracy_at_a_size_is_that_of_the_resized_model(mnist, tmp_path, capsys):
    write_mnist(tmp_path / "mnist", train=60, test=500, size=(8, 8))
    more = ["--trainer.max_epochs", 20, "--sizes", "8x24", "--how", "rescale"]
    rows, _ = run(capsys, "fit", "--config", mnist(rotary=ROPE), *QUICK, *more)
    (row,) = read("runs/mnist/version_0/resolution.csv")
    wide = ["--data.image_size", "[8, 24]", "--ckpt_path", rows["checkpoint"]]
    extended, _ = run(capsys, "test", "--config", "mnist.yaml", *QUICK, *wide)
    classifier = ImageClassifier.load_from_checkpoint(rows["checkpoint"]).eval()
    data = MNIST("mnist")
    data.setup()
    images, labels = (torch.cat(parts) for parts in zip(*data.evaluation_loader("test", (8, 24)), strict=True))
    networks = classifier.network.at_size((8, 24), "rescale"), classifier.network
    said = [network(images).argmax(-1) for network in networks]
    assert not torch.equal(*said)
    for labels_said, accuracy in zip(said, (f"{float(row['accuracy']):.2%}", extended["test accuracy"]), strict=True):
        assert f"{(labels_said == labels).float().mean().item():.2%}" == accuracy


def test_ways_that_do_not_apply_are_left_out_with_one_note(mnist, capsys):
    _, out = run(capsys, "fit", "--config", mnist(), *QUICK, "--sizes", "[8, 12x8]")
    assert {row["how"] for row in read("runs/mnist/version_0/resolution.csv")} == {"extend", "rescale"}
    shown = next(line.split() for line in out.splitlines() if line.split()[:1] == ["12x8"])
    assert shown[3:] == ["-", "-", "-"]
    assert out.count("scales a rotary encoding, but the rotary slot has none") == 1


def test_sizes_are_evaluated_during_training_from_yaml(mnist, capsys):
    Path("more.yaml").write_text(
        "trainer:\n  max_epochs: 4\n  callbacks:\n  - class_path: ResolutionEvaluation\n    init_args:\n"
        "      sizes: [8, 12x8]\n      how: [extend, rescale, ntk]\n      limit: 5\n      every_n_epochs: 2\n"
        "run: mine\n"
    )
    config = ["--config", mnist(), "--config", "more.yaml"]
    run(capsys, "fit", *config, *QUICK, "--trainer.max_epochs", 4)
    rows = [row for row in read("runs/mine/version_0/metrics.csv") if row["val_accuracy"]]
    assert len(rows) == 4
    for name in ("8x8_extend", "8x8_rescale", "12x8_extend", "12x8_rescale"):
        assert [row[f"val_accuracy_{name}"] != "" for row in rows] == [False, True, False, True]
    assert "val_accuracy_8x8_ntk" not in rows[0]
    fifths = 5 * float(rows[1]["val_accuracy_8x8_extend"])
    assert fifths == pytest.approx(round(fifths), abs=1e-6)
    assert {row["images"] for row in read("runs/mine/version_0/resolution.csv")} == {"5"}


def test_wrong_sizes_are_one_clear_message(mnist):
    fit = ["fit", "--config", mnist(), *QUICK]
    message = "error: image_size (8 x 10) must be a multiple of patch_size (4 x 4)"
    assert fail(*fit, "--sizes", "8,8x10") == message
    assert fail(*fit, "--sizes", "8x") == "error: sizes must be a positive integer or (height, width), got '8x'"
    message = "error: how has 'ntkk'; known: extend, rescale, interpolate, ntk, yarn"
    assert fail(*fit, "--sizes", "8", "--how", "ntkk") == message
    message = "error: the image size (10 x 10) must be a multiple of patch_size (4 x 4)"
    assert fail(*fit, "--data.image_size", "10") == message
    assert fail(*fit, "--files", "x.png") == "error: files (['x.png']) is for predict, not for fit"
    assert not list(Path().rglob("*.ckpt"))


def test_files_and_folders_are_classified(pets, tmp_path, capsys):
    rows, _ = run(capsys, "fit", "--config", pets(rotary=ROPE), *QUICK, "--trainer.max_epochs", 3, "--sizes", "8,12")
    write_picture(tmp_path / "mine" / "b.png", (20, 10))
    write_picture(tmp_path / "mine" / "a.JPG", (5, 40), (0, 250, 0))
    predict = ["predict", "--config", "pets.yaml", *QUICK, "--ckpt_path", rows["checkpoint"], "--files"]
    predict[2] = rows["config"]  # that of the run, whose sizes are not for predictions
    _, out = run(capsys, *predict, "pets/dog/1.png", "mine")
    assert "predictions: runs/pets/version_0/predictions.csv (3 files)" in out
    table = read("runs/pets/version_0/predictions.csv")
    assert list(table[0]) == ["file", "class", "probability", "cat", "dog", "emu"]
    assert [row["file"] for row in table] == ["pets/dog/1.png", "mine/a.JPG", "mine/b.png"]
    classifier = ImageClassifier.load_from_checkpoint(rows["checkpoint"]).eval()
    load = ImageFolder("pets").picture_loader(8, 3)
    for row in table:
        shares = [float(row[name]) for name in ("cat", "dog", "emu")]
        expected = classifier(load(Path(row["file"]))[None]).softmax(-1)[0]
        torch.testing.assert_close(torch.tensor(shares), expected, rtol=0, atol=1e-5)
        assert float(row["probability"]) == max(shares)
        assert row["class"] == ("cat", "dog", "emu")[shares.index(max(shares))]


def test_prediction_needs_the_checkpoint_and_not_the_training_data(pets, tmp_path, capsys):
    rows, _ = run(capsys, "fit", "--config", pets(), *QUICK)
    (tmp_path / "pets").rename(tmp_path / "elsewhere")
    (tmp_path / "shared").mkdir()
    Path(rows["checkpoint"]).rename("shared/pets.ckpt")
    predict = ["predict", "--config", "pets.yaml", *QUICK, "--ckpt_path", "shared/pets.ckpt", "--files", "elsewhere"]
    run(capsys, *predict, "--output", "out/table.csv")
    run(capsys, *predict)
    assert len(read("out/table.csv")) == 18
    assert read("out/table.csv") == read("shared/predictions.csv")


def test_digits_are_classified_from_files_too(capsys):
    write_picture(Path("one.png"), (30, 20))
    digits = configure("digits.yaml", "Digits")
    rows, _ = run(capsys, "fit", "--config", digits, *QUICK, "--sizes", "8,12", "--data.batch_size", 640)
    assert f"{float(read('runs/digits/version_0/resolution.csv')[0]['accuracy']):.2%}" == rows["test accuracy"]
    run(capsys, "predict", "--config", digits, *QUICK, "--ckpt_path", rows["checkpoint"], "--files", "one.png")
    assert list(read("runs/digits/version_0/predictions.csv")[0]) == ["file", "class", "probability", *"0123456789"]


@pytest.mark.parametrize("broken", ["some", "all"])
def test_corrupt_files_are_named_counted_and_skipped(broken, pets, tmp_path, capsys):
    rows, _ = run(capsys, "fit", "--config", pets(), *QUICK)
    write_folder(tmp_path / "mine", classes=("any",), count=8)
    bad = [f"mine/any/{number}.png" for number in (range(8) if broken == "all" else (1, 5))]
    for name in bad:
        Path(name).write_bytes(Path(name).read_bytes()[:50])
    predict = ["predict", "--config", "pets.yaml", *QUICK, "--ckpt_path", rows["checkpoint"], "--files", "mine"]
    message = fail(*predict)
    captured = capsys.readouterr()
    assert message == f"error: {len(bad)} of 8 files could not be read"
    assert re.findall(r"skipped: (\S+) cannot be read as a picture: ", captured.err) == bad
    assert f"({8 - len(bad)} files)" in captured.out
    table = read("runs/pets/version_0/predictions.csv")
    assert [row["file"] for row in table] == [f"mine/any/{n}.png" for n in range(8) if f"mine/any/{n}.png" not in bad]


def test_files_that_are_not_there_are_named_before_any_work(pets, tmp_path, capsys):
    rows, _ = run(capsys, "fit", "--config", pets(), *QUICK)
    predict = ["predict", "--config", "pets.yaml", *QUICK, "--ckpt_path", rows["checkpoint"], "--files"]
    assert fail(*predict, "pets/cat", "no.png") == "error: files has 'no.png', which does not exist"
    (tmp_path / "empty").mkdir()
    assert fail(*predict, "empty").startswith("error: files has 'empty', a folder without pictures (.jpg, ")
    assert not Path("runs/pets/version_0/predictions.csv").exists()


def test_wrong_data_are_one_clear_message(pets, tmp_path, capsys):
    fit = ["fit", "--config", pets(), *QUICK]
    message = "error: root (none) is not a folder; ImageFolder wants one with a folder for each class"
    assert fail(*fit, "--data.root", "none") == message
    assert re.match(
        r"error: root \(none\) does not have CIFAR10 ", fail(*fit, "--data", "CIFAR10", "--data.root", "none")
    )
    message = "error: num_classes (4) must be 3, for the data has the classes cat, dog, emu"
    assert fail(*fit, "--model.num_classes", 4) == message
    write_folder(tmp_path / "split" / "train", classes=("cat", "dog", "emu"))
    write_folder(tmp_path / "split" / "test", classes=("cat", "yak"))
    message = "error: split/test has yak, a class that training never sees; those of training are cat, dog, emu"
    assert fail(*fit, "--data.root", "split") == message
    for path in (tmp_path / "pets").rglob("*.png"):
        path.write_bytes(path.read_bytes()[:50])
    broken = r"error: \S*pets/(cat|dog|emu)/\d.png cannot be read as a picture: .*"
    for workers in (0, 1):
        assert re.fullmatch(broken, fail(*fit, "--data.num_workers", workers))


def test_a_checkpoint_of_other_classes_is_one_clear_message(pets, tmp_path, capsys):
    rows, _ = run(capsys, "fit", "--config", pets(), *QUICK)
    test = ["test", "--config", "pets.yaml", *QUICK, "--ckpt_path", rows["checkpoint"], "--data.root"]
    write_folder(tmp_path / "four", classes=("cat", "cow", "dog", "emu"))
    message = "error: the checkpoint is of another model: num_classes is 3 in the checkpoint but 4 here"
    assert fail(*test, "four", "--model.num_classes", 4) == message
    write_folder(tmp_path / "other", classes=("cat", "cow", "dog"))
    message = "error: the checkpoint is of the classes cat, dog, emu, but the data has cat, cow, dog"
    assert fail(*test, "other") == message


def test_grey_pictures_are_converted_and_it_is_said_once(pets, tmp_path, capsys, caplog):
    for path in (tmp_path / "pets").rglob("*.png"):
        write_picture(path, mode="L")
    run(capsys, "fit", "--config", pets(), *QUICK, "--trainer.max_epochs", 2)
    assert caplog.text.count("grey where colour is expected") == 1


def test_averaged_weights_are_what_is_tested_and_saved(mnist, capsys):
    Path("ema.yaml").write_text(
        "trainer:\n  callbacks:\n  - class_path: EMAWeightAveraging\n    init_args: {decay: 0.8}\nrun: ema\n"
    )
    config = ["--config", mnist(rotary=ROPE), "--config", "ema.yaml", *QUICK]
    fitted, _ = run(capsys, "fit", *config, "--trainer.max_epochs", 3)
    checkpoint = torch.load(fitted["checkpoint"], weights_only=True)
    name = "network.head.weight"
    assert not torch.equal(checkpoint["state_dict"][name], checkpoint["current_model_state"][name])
    for again in (config, ["--config", "mnist.yaml", *QUICK]):
        tested, _ = run(capsys, "test", *again, "--ckpt_path", fitted["checkpoint"])
        assert tested["test loss"] == fitted["test loss"]
    classifier = ImageClassifier.load_from_checkpoint(fitted["checkpoint"])
    assert torch.equal(classifier.network.head.weight, checkpoint["state_dict"][name])


def test_a_run_goes_on_with_its_averaged_weights(mnist, capsys):
    Path("ema.yaml").write_text("trainer: {callbacks: [{class_path: EMAWeightAveraging, init_args: {decay: 0.5}}]}\n")
    config = ["fit", "--config", "ema.yaml", "--config", mnist(), *QUICK]
    whole, _ = run(capsys, *config, "--trainer.max_epochs", 2, "--trainer.min_epochs", 2, "--data.augment", "false")
    assert torch.load(whole["checkpoint"].replace("best", "last"), weights_only=True)["epoch"] == 1
    more = ["--ckpt_path", whole["checkpoint"].replace("best", "last"), "--trainer.max_epochs", 3]
    longer, _ = run(capsys, *config, *more)
    last = torch.load(longer["checkpoint"].replace("best", "last"), weights_only=True)
    assert (last["epoch"], "current_model_state" in last) == (2, True)


def test_a_recipe_of_precision_accumulation_and_augmented_coordinates(mnist, capsys):
    Path("recipe.yaml").write_text(
        "model:\n  init_args:\n    positions: {shift: 0.5, jitter: 1.2, rescale: 1.5}\n    patch_drop: 0.25\n"
        "    class_token: true\n    reg_tokens: 2\n    block: {qk_norm: true, init_values: 1e-4}\n"
        "    warmup: 0.5\n    weight_decay: 0.2\n"
        "trainer: {precision: bf16-mixed, accumulate_grad_batches: 2, gradient_clip_val: 1.0}\nrun: mine\n"
    )
    config = ["--config", mnist(rotary=ROPE), "--config", "recipe.yaml", *QUICK]
    rows, _ = run(capsys, "fit", *config)
    checkpoint = torch.load(rows["checkpoint"].replace("best", "last"), weights_only=True)
    assert checkpoint["global_step"] == 3  # of six batches
    assert checkpoint["lr_schedulers"][0]["last_epoch"] == 3
    groups = checkpoint["optimizer_states"][0]["param_groups"]
    assert [group["weight_decay"] for group in groups] == [0.2, 0.0]
    assert checkpoint["state_dict"]["network.head.weight"].dtype == torch.float32
    assert yaml.safe_load(Path(rows["config"]).read_text())["trainer"]["precision"] == "bf16-mixed"
    classifier = ImageClassifier.load_from_checkpoint(rows["checkpoint"], patch_drop=0.0)
    images = torch.randn(3, 1, 8, 8)
    assert not torch.equal(classifier.train()(images), classifier(images))  # other coordinates each time
    assert torch.equal(classifier.eval()(images), classifier(images))
    tested, _ = run(capsys, "test", *config, "--ckpt_path", rows["checkpoint"])
    plain = ["--model.positions", "null", "--model.patch_drop", "0", "--ckpt_path", rows["checkpoint"]]
    again, _ = run(capsys, "test", *config, *plain)
    assert rows["test loss"] == tested["test loss"] == again["test loss"]
    message = fail("test", *config, "--model.positions", "{normalise: max}", "--ckpt_path", rows["checkpoint"])
    assert "positions is {} in the checkpoint but {'normalise': 'max'} here" in message
    assert fail("fit", *config, "--model.positions", "{shuft: 1}").startswith(
        "error: positions has no argument 'shuft'"
    )
