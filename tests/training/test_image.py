import math

import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch import Trainer
from torch.utils.data import DataLoader, TensorDataset

from mmpos.training import ImageClassifier
from mmpos.training.optim import cosine_with_warmup, split_by_decay

ROPE = {"name": "RoPE", "axes": 2, "base": 500.0}
TABLE = {"name": "LearnedTable"}
# 3 x 2 patches of 4 x 2 pixels
SMALL = {
    "image_size": (12, 4), "patch_size": (4, 2), "num_classes": 5, "dim": 32, "depth": 2, "num_heads": 2, "lr": 1e-3,
}  # fmt: skip

# The first two are raised where Lightning meets PyTorch, the others are advice.
pytestmark = [
    pytest.mark.filterwarnings(f"ignore{which}")
    for which in (
        "::FutureWarning:lightning",
        "::DeprecationWarning:lightning",
        ":.*does not have many workers",
        ":.*no `val_dataloader`",
        ":.*smaller than the logging interval",
    )
]


def loader(count=12, seed=0):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(count, 1, 12, 4, generator=generator)
    return DataLoader(TensorDataset(images, torch.arange(count) % 5), batch_size=7)


def make_trainer(tmp_path, **settings):
    settings = {"max_epochs": 1, "accelerator": "cpu", "logger": False, "enable_checkpointing": False} | settings
    return Trainer(default_root_dir=tmp_path, enable_progress_bar=False, enable_model_summary=False, **settings)


@pytest.fixture
def checkpoint(tmp_path):
    classifier = ImageClassifier(**SMALL, rotary=ROPE, additive=TABLE)
    trainer = make_trainer(tmp_path)
    trainer.fit(classifier, loader())
    trainer.save_checkpoint(tmp_path / "some.ckpt")
    return classifier, tmp_path / "some.ckpt"


def test_a_checkpoint_loads_with_no_arguments(checkpoint):
    classifier, path = checkpoint
    loaded = ImageClassifier.load_from_checkpoint(path)
    assert dict(loaded.hparams) == dict(classifier.hparams)
    assert loaded.hparams.rotary == ROPE
    assert loaded.network.encodings.rotary[0].base == 500.0
    images = torch.randn(3, 1, 12, 4)
    torch.testing.assert_close(loaded.eval()(images), classifier.eval()(images), rtol=0, atol=0)


def test_hyper_parameters_are_plain(checkpoint):
    stored = torch.load(checkpoint[1], weights_only=True)["hyper_parameters"]
    assert stored["rotary"] == ROPE
    assert stored["image_size"] == (12, 4)
    assert not [name for name in stored if name.startswith("_")]


def test_the_checkpoint_of_another_model_is_named_with_both_values(checkpoint, tmp_path):
    other = ImageClassifier(**{**SMALL, "dim": 48}, rotary={**ROPE, "base": 100.0}, additive=TABLE)
    message = (
        r"another model: dim is 32 in the checkpoint but 48 here; "
        r"rotary is \{.*500.0\} in the checkpoint but \{.*100.0\} here$"
    )
    with pytest.raises(ValueError, match=message):
        make_trainer(tmp_path).test(other, loader(), ckpt_path=checkpoint[1])


def test_a_checkpoint_of_another_module_is_refused():
    with pytest.raises(ValueError, match="vocab_size is 256 in the checkpoint but 'unknown' here"):
        ImageClassifier(**SMALL).on_load_checkpoint({"hyper_parameters": {"vocab_size": 256}})
    with pytest.raises(ValueError, match="the checkpoint has no hyper_parameters"):
        ImageClassifier(**SMALL).on_load_checkpoint({"state_dict": {}})


def test_the_recipe_may_change_and_lists_are_tuples(checkpoint, tmp_path):
    classifier, path = checkpoint
    other = {**SMALL, "image_size": [12, 4], "lr": 1e-2}
    other = ImageClassifier(**other, rotary=ROPE, additive=TABLE, drop_path=0.1, weight_decay=0.2)
    make_trainer(tmp_path).test(other, loader(), ckpt_path=path, verbose=False)
    assert torch.equal(other.network.head.weight, classifier.network.head.weight)


def test_what_is_given_to_load_from_checkpoint_counts(checkpoint):
    loaded = ImageClassifier.load_from_checkpoint(checkpoint[1], rotary={**ROPE, "base": 100.0})
    assert loaded.network.encodings.rotary[0].base == 100.0


def test_only_matrices_decay():
    classifier = ImageClassifier(**SMALL, additive=TABLE, class_token=True)
    decayed, spared = split_by_decay(classifier, 0.3)
    names = {id(parameter): name for name, parameter in classifier.named_parameters()}
    assert decayed["weight_decay"] == 0.3
    assert spared["weight_decay"] == 0
    assert {names[id(parameter)].rsplit(".", 1)[1] for parameter in decayed["params"]} == {"weight"}
    spared = {names[id(parameter)] for parameter in spared["params"]}
    assert {"network.cls_token", "network.encodings.additive.weight", "network.norm.weight"} <= spared
    assert {name for name in names.values() if name.endswith("bias")} <= spared
    assert len(decayed["params"]) + len(spared) == len(names)
    assert len(decayed["params"]) == 1 + 4 * 2 + 1  # patches, four of each block, head


def test_frozen_parameters_are_not_optimised():
    classifier = ImageClassifier(**SMALL)
    classifier.network.head.weight.requires_grad_(False)
    groups = split_by_decay(classifier, 0.3)
    assert not any(p is classifier.network.head.weight for group in groups for p in group["params"])


def test_the_learning_rate_rises_linearly_and_falls_as_a_cosine():
    rates = [cosine_with_warmup(step, total=50, warmup=0.2) for step in range(51)]
    assert rates[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert rates[10:] == pytest.approx([(1 + math.cos(math.pi * step / 40)) / 2 for step in range(41)])
    assert cosine_with_warmup(0, total=50, warmup=0.0) == 1
    assert cosine_with_warmup(60, total=50, warmup=0.2) == 0


def test_a_schedule_without_end_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"set trainer.max_epochs or trainer.max_steps"):
        make_trainer(tmp_path, max_epochs=-1).fit(ImageClassifier(**SMALL), loader())


def test_the_schedule_is_stepped_with_the_optimiser(tmp_path):
    classifier, trainer = ImageClassifier(**SMALL, warmup=0.25), make_trainer(tmp_path, max_epochs=2)
    trainer.fit(classifier, loader(count=28))  # eight steps
    assert trainer.global_step == 8
    assert trainer.optimizers[0].param_groups[0]["lr"] == pytest.approx(0, abs=1e-9)


def test_validation_and_test_are_of_all_images_alike(tmp_path):
    classifier, trainer = ImageClassifier(**SMALL, rotary=ROPE).eval(), make_trainer(tmp_path)
    images, labels = loader().dataset.tensors  # batches of seven and five
    logits = classifier(images)
    loss, accuracy = F.cross_entropy(logits, labels).item(), (logits.argmax(-1) == labels).float().mean().item()
    assert 0 < accuracy < 1
    (test,) = trainer.test(classifier, loader(), verbose=False)
    assert test == pytest.approx({"test_loss": loss, "test_accuracy": accuracy}, rel=1e-5)
    (val,) = trainer.validate(classifier, loader(), verbose=False)
    assert val["val_loss"] == pytest.approx(loss, rel=1e-5)
    assert val["val_accuracy"] == pytest.approx(accuracy, rel=1e-5)


def test_the_score_is_the_accuracy_and_prefers_a_lower_loss_among_equals(tmp_path):
    class Fixed(ImageClassifier):
        def forward(self, images):
            return self.logits

    labels = torch.arange(4)
    data = DataLoader(TensorDataset(torch.zeros(4, 1, 12, 4), labels), batch_size=4)
    classifier, trainer = Fixed(**SMALL), make_trainer(tmp_path)
    right, wrong = F.one_hot(labels, 5).float(), F.one_hot((labels + 1) % 4, 5).float()
    scores = []
    for sure, correct in [(9.0, 4), (1.0, 4), (1.0, 3), (99.0, 3)]:  # better first
        classifier.logits = sure * torch.where(labels[:, None] < correct, right, wrong)
        scores.append(trainer.validate(classifier, data, verbose=False)[0]["val_score"])
    assert scores == sorted(set(scores), reverse=True)
    assert scores[0] == pytest.approx(1, abs=1e-4)


def test_prediction_gives_probabilities(tmp_path):
    classifier = ImageClassifier(**SMALL, rotary=ROPE).eval()
    predictions = torch.cat(make_trainer(tmp_path).predict(classifier, loader()))
    torch.testing.assert_close(predictions, classifier(loader().dataset.tensors[0]).softmax(-1), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("slots", [{"additive": TABLE}, {"rotary": ROPE}, {}], ids=["learned", "rope", "none"])
def test_only_with_an_encoding_a_model_learns_where_things_are(tmp_path, slots):
    """One patch is bright; its place is the class."""
    places = F.one_hot(torch.arange(5), 6).float().view(5, 1, 3, 2).repeat(4, 1, 1, 1)
    images = places.repeat_interleave(4, dim=-2).repeat_interleave(2, dim=-1)
    data = DataLoader(TensorDataset(images, torch.arange(5).repeat(4)), batch_size=20)
    classifier, trainer = ImageClassifier(**{**SMALL, "lr": 5e-3}, **slots), make_trainer(tmp_path, max_epochs=100)
    trainer.fit(classifier, data)
    (test,) = trainer.test(classifier, data, verbose=False)
    assert test["test_accuracy"] == pytest.approx(1.0 if slots else 0.2)
