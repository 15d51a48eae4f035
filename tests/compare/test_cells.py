"""Cells that are trained, and what is refused before any is."""

import csv
import signal
from pathlib import Path

import pytest

from mmpos.compare import compare

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


def test_an_encoding_is_trained_and_tested(write_study, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # nothing of the checkout is at hand
    study = write_study(**USUAL | {"encodings": {"rope": ROPE}, "seeds": [3]})
    report = compare(study, keep=True)
    assert not report.failed, report.failed[0].error
    (metrics,) = (tmp_path / "out" / "study").rglob("metrics.csv")
    with metrics.open(newline="") as file:
        (logged,) = (row["test_loss"] for row in csv.DictReader(file) if row["test_loss"])
    (row,) = report.rows
    assert row["test_loss"] == logged
    assert (row["encoding"], row["seed"]) == ("rope", "3")
    (config,) = metrics.parent.glob("config.yaml")
    assert "seed_everything: 3" in config.read_text()
    assert "dim: 16" in config.read_text()


def test_the_same_results_with_ray(write_study, tmp_path):
    pytest.importorskip("ray", reason="ray is not installed")
    study = write_study(**USUAL, seeds=[0])
    here = compare(study, output=tmp_path / "here", jobs=2)
    ending = signal.getsignal(signal.SIGTERM)
    there = compare(study, output=tmp_path / "there", jobs=2, ray="")
    assert signal.getsignal(signal.SIGTERM) is ending
    assert not [outcome.error for outcome in (*here.failed, *there.failed)]
    assert len(there.rows) == 2
    assert without_time(there.rows) == without_time(here.rows)
    assert (tmp_path / "there" / "study.md").read_text() == (tmp_path / "here" / "study.md").read_text()


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
