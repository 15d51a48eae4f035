"""Cells that are trained, and what is refused before any is."""

import csv
import signal
from pathlib import Path

import pytest

from mmpos.compare import compare
from tests.compare.conftest import study_in

ROOT = Path(__file__).parents[2]
ROPE = str(ROOT / "configs" / "image" / "rope.yaml")
QUICK = {
    "trainer.max_epochs": 1,
    "trainer.limit_train_batches": 8,
    "trainer.limit_val_batches": 1,
    "trainer.limit_test_batches": 1,
    "trainer.accelerator": "cpu",
    "model.dim": 16,
    "model.depth": 1,
    "model.num_heads": 2,
}
USUAL = {
    "base": str(ROOT / "configs" / "base.yaml"),
    "encodings": {"rope": ROPE, "rope, base 10": {"config": ROPE, "arguments": {"model.rotary.base": 10.0}}},
    "arguments": QUICK,
    "results": None,
    "rows": None,
    "columns": None,
    "metrics": {"test_loss": None},
}


def without_time(rows):
    return sorted([{key: value for key, value in row.items() if key != "seconds"} for row in rows], key=str)


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """A study that was trained on this machine, from a folder where nothing of the checkout is at hand."""
    folder = tmp_path_factory.mktemp("here")
    study = study_in(folder, **USUAL, seeds=[3])
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        report = compare(study, jobs=2, keep=True)
    assert not report.failed, report.failed[0].error
    return study, report.rows, folder / "out"


def test_encodings_are_trained_and_tested(here):
    _, rows, folder = here
    assert sorted((row["encoding"], row["seed"]) for row in rows) == [("rope", "3"), ("rope, base 10", "3")]
    paths = list((folder / "study").rglob("metrics.csv"))
    assert len(paths) == 2
    for path in paths:
        with path.open(newline="") as file:
            (logged,) = (row["test_loss"] for row in csv.DictReader(file) if row["test_loss"])
        (config,) = path.parent.glob("config.yaml")
        (row,) = (row for row in rows if ("base: 10.0" in config.read_text()) == ("10" in row["encoding"]))
        assert row["test_loss"] == logged
        assert "seed_everything: 3" in config.read_text()
        assert "dim: 16" in config.read_text()


def test_the_same_results_with_ray(here, tmp_path):
    pytest.importorskip("ray", reason="ray is not installed")
    study, rows, folder = here
    ending = signal.getsignal(signal.SIGTERM)
    there = compare(study, output=tmp_path, jobs=2, ray="")
    assert signal.getsignal(signal.SIGTERM) is ending
    assert not [outcome.error for outcome in there.failed]
    assert len(there.rows) == 2
    assert without_time(there.rows) == without_time(rows)
    assert (tmp_path / "study.md").read_text() == (folder / "study.md").read_text()


def test_what_cannot_be_trained_is_told_before_anything_is(write_study, tmp_path):
    wrong = {
        "good": {},
        "unknown encoding": {"model.rotary": {"name": "RoPEE", "axes": 2}},
        "unknown setting": {"trainer.max_epoch": 1},
        "unknown argument": {"model.dimm": 8},
        "no number": {"model.dim": "wide"},
        "no multiple": {"model.dim": 15},
    }
    encodings = {name: {"config": ROPE, "arguments": arguments} for name, arguments in wrong.items()}
    study = write_study(**USUAL | {"encodings": encodings})
    with pytest.raises(ValueError, match=r"^5 of 6 cannot be trained:") as error:
        compare(study)
    lines = dict(line.strip().split(": ", 1) for line in str(error.value).splitlines()[1:])
    assert list(lines) == list(wrong)[1:]
    assert lines["unknown encoding"].startswith("unknown encoding 'RoPEE'; did you mean 'RoPE'?")
    assert "--trainer.max_epoch=1" in lines["unknown setting"]
    assert lines["unknown argument"].startswith("ImageClassifier has no argument 'dimm'; did you mean 'dim'?")
    assert "wide" in lines["no number"]
    assert "15" in lines["no multiple"]
    assert not (tmp_path / "out" / "study").exists()


def test_a_run_that_fails_shows_the_end_of_its_log(write_study, tmp_path):
    arguments = QUICK | {"data": "ImageFolder", "data.root": str(tmp_path / "nowhere")}
    study = write_study(**USUAL | {"arguments": arguments, "encodings": {"rope": ROPE}, "seeds": [0]})
    report = compare(study)
    (outcome,) = report.failed
    assert "nowhere" in outcome.error
    assert "exit status 1" in outcome.error
    assert "MMPOS_DEBUG" not in outcome.error
