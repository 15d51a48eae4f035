"""`QuestionModel`: what is right, what it answers, and which checkpoints it takes."""

import pytest
import torch
from torch.nn import functional as F

from mmpos.data import PictureQuestions
from mmpos.data.questions import END
from mmpos.training import QuestionModel

ROPE = {"name": "RoPE", "axes": 3, "base": 4.0, "spectrum": {"name": "Sections", "sections": [2, 3, 3]}}


def small(**options) -> QuestionModel:
    torch.manual_seed(0)
    given = {"rule": "qwen2_vl", "rotary": ROPE, "patch_width": 64, "dim": 32, "depth": 1, "num_heads": 2}
    return QuestionModel(**{**given, **options}).eval()


@pytest.fixture(scope="module")
def data() -> PictureQuestions:
    data = PictureQuestions(batch_size=5, limit=10)
    data.setup()
    return data


def test_an_answer_is_right_if_every_byte_is_the_most_likely(data):
    model, batch = small(), next(iter(data.test_dataloader()))
    with torch.no_grad():
        loss, right = model._score(batch)
        logits = model(batch["rows"])[:, -2:]
    assert not right.any()
    batch["answer"] = logits.argmax(-1)
    batch["answer"][3, 1] = (batch["answer"][3, 1] + 1) % 256
    with torch.no_grad():
        loss, right = model._score(batch)
    assert right.tolist() == [True, True, True, False, True]
    likely = logits.double().log_softmax(-1).gather(-1, batch["answer"][..., None])
    torch.testing.assert_close(loss.double(), -likely.mean(), rtol=1e-6, atol=1e-6)


def test_the_bytes_before_the_end_are_the_answer(data):
    model, batch = small(), next(iter(data.predict_dataloader()))
    with torch.no_grad():
        model.network.head.weight.zero_()
        model.network.head.weight[ord("7")] = 0.0
        x = model.network.forward_features(batch["rows"])[:, -1]
        model.network.head.weight[ord("7")] = x[0]  # for the first row "7" is more likely than byte 0
    answers = model.predict_step(batch, 0)
    assert answers[0][0] == "7"
    with torch.no_grad():
        model.network.head.weight[ord("7")] = 0.0
        model.network.head.weight[END] = x[0]
    assert model.predict_step(batch, 0)[0] == ""


def test_it_learns_one_batch(data):
    model, batch = small().train(), next(iter(data.train_dataloader()))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(60):
        loss, right = model._score(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert right.all()
    assert loss < F.cross_entropy(torch.zeros(1, 256), torch.zeros(1, dtype=torch.int64)) / 10


def test_a_checkpoint_of_another_model_is_refused():
    saved = {"hyper_parameters": dict(small(dim=64, num_heads=4).hparams)}
    with pytest.raises(ValueError, match="dim"):
        small().on_load_checkpoint(saved)
    small(lr=1.0).on_load_checkpoint({"hyper_parameters": dict(small().hparams)})
