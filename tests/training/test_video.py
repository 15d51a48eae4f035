"""The video classifier in training, and its evaluation on clips of other forms."""

import csv

import pytest
import torch
from lightning.pytorch import Trainer

from mmpos.data import Digits, MovingDigits
from mmpos.data.moving import ClipForm
from mmpos.training import ClipEvaluation, ImageClassifier, VideoClassifier
from mmpos.training.video import parse_form

pytestmark = [
    pytest.mark.filterwarnings(f"ignore{which}")
    for which in (
        "::FutureWarning:lightning",
        "::DeprecationWarning:lightning",
        ":.*does not have many workers",
        ":.*smaller than the logging interval",
    )
]
ROPE = {"name": "RoPE", "axes": 3, "base": 100.0}
SMALL = {"clip_size": (4, 12, 12), "tubelet_size": (1, 6, 6), "dim": 24, "depth": 1, "num_heads": 2, "fps": 4.0}
DATA = {"frames": 4, "size": 12, "fps": 4.0, "batch_size": 64}


def make_trainer(tmp_path, *callbacks):
    return Trainer(
        max_epochs=1, limit_train_batches=2, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path, callbacks=list(callbacks),
    )  # fmt: skip


def test_the_rate_of_a_batch_is_that_of_the_call():
    classifier, clips = VideoClassifier(**SMALL, rotary=ROPE).eval(), torch.randn(2, 1, 4, 12, 12)
    at_eight = classifier.classify((clips, torch.zeros(2), 8.0))
    torch.testing.assert_close(at_eight, classifier.network(clips, 8.0))
    assert not torch.allclose(at_eight, classifier.network(clips))


def test_a_test_ends_with_the_accuracy_on_clips_of_other_forms(tmp_path, capsys):
    classifier, data = VideoClassifier(**SMALL, rotary=ROPE), MovingDigits(**DATA)
    evaluation = ClipEvaluation("4x12@4, 8x18@8, shuffled", limit=40)
    trainer = make_trainer(tmp_path, evaluation)
    trainer.fit(classifier, datamodule=data)
    assert classifier.classes == data.classes
    trainer.test(classifier, datamodule=data, verbose=False)
    with (tmp_path / "clips.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["form"] for row in rows] == [form for form in ("4x12@4", "8x18@8", "shuffled") for _ in range(4)]
    assert {row["clips"] for row in rows} == {"40"}
    (clips, labels, _), *_ = data.evaluation_loader("test", ClipForm(8, 18, 8.0), limit=40)
    networks = {
        "index": (classifier.network, None), "time": (classifier.network, 8.0),
        "space": (classifier.network.at_size((8, 18, 18), "rescale", axes="space"), None),
        "time and space": (classifier.network.at_size((8, 18, 18), "rescale", axes="space"), 8.0),
    }  # fmt: skip
    for row in rows[4:8]:
        network, fps = networks[row["coordinates"]]
        want = (network.eval()(clips, fps).argmax(-1) == labels).float().mean().item()
        assert float(row["accuracy"]) == pytest.approx(want)
    assert "accuracy of 40 test clips" in capsys.readouterr().out


def test_a_way_that_does_not_apply_has_no_number(tmp_path):
    classifier, data = VideoClassifier(**SMALL, additive={"name": "Sinusoidal", "axes": 3}), MovingDigits(**DATA)
    evaluation = ClipEvaluation(["4x18@4"], ["index", "space"], how="ntk", limit=8)
    trainer = make_trainer(tmp_path, evaluation)
    trainer.test(classifier, datamodule=data, verbose=False)
    results = evaluation.evaluate(trainer, classifier, "test")
    assert [result.accuracy is None for result in results] == [False, True]


def test_forms():
    assert parse_form("16 x 24 @ 12.5") == ClipForm(16, 24, 12.5)
    for text in ("16x24", "16x24x24x24@8", "x24@8", "16x24@", "16x24@-8"):
        with pytest.raises(ValueError, match=f"forms has '{text}'; a form is frames x side @ frames per second"):
            parse_form(text)
    assert parse_form("16x24x32@8").clip_size == (16, 24, 32)
    with pytest.raises(ValueError, match=r"fps \(0.0\) must be positive"):
        parse_form("16x24@0")
    with pytest.raises(ValueError, match=r"size \(0\) must be positive"):
        parse_form("16x24x0@8")
    data = MovingDigits(**DATA)
    data.setup()
    with pytest.raises(ValueError, match=r"size \(24 x 32\) must be one side: moving digits are in a square"):
        data.evaluation_loader("test", parse_form("4x24x32@8"))


def test_what_cannot_be_evaluated_is_refused(tmp_path):
    with pytest.raises(ValueError, match="coordinates has 'times'; known: index, time, space, time and space"):
        ClipEvaluation("8x24@8", "times")
    with pytest.raises(ValueError, match=r"limit \(0\) must be positive"):
        ClipEvaluation("8x24@8", limit=0)
    trainer = make_trainer(tmp_path, ClipEvaluation("4x12@4"))
    with pytest.raises(TypeError, match="ImageClassifier has no VideoTransformer to evaluate on clips of other forms"):
        trainer.test(ImageClassifier(), datamodule=Digits(), verbose=False)
    trainer = make_trainer(tmp_path, ClipEvaluation("4x13@4"))
    with pytest.raises(ValueError, match=r"clip_size \(4 x 13 x 13\) must be a multiple of tubelet_size \(1 x 6 x 6\)"):
        trainer.test(VideoClassifier(**SMALL), datamodule=MovingDigits(**DATA), verbose=False)
