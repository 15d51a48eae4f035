"""The report of a tested model."""

import csv
import math

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset

from mmpos.diagnostics import AttentionReport
from mmpos.models import VisionTransformer

PATCHES = 24


class Model(LightningModule):
    """Logs in both steps; the loss depends on the rotation."""

    def __init__(self):
        super().__init__()
        self.network = VisionTransformer(
            image_size=(8, 12), dim=32, depth=2, num_heads=2, class_token=True, rotary={"name": "RoPE", "axes": 2}
        )

    def training_step(self, batch, batch_idx):
        loss = self.network(batch[0]).square().mean()
        self.log("train_loss", loss)
        return loss

    def test_step(self, batch, batch_idx):
        self.log("test_loss", self.network(batch[0]).square().mean())


@pytest.fixture
def tested(tmp_path):
    torch.manual_seed(0)
    report = AttentionReport(batches=2)
    trainer = Trainer(
        accelerator="cpu", default_root_dir=tmp_path, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[report],
    )  # fmt: skip
    model = Model()
    images = torch.randn(9, 1, 8, 12)
    (metrics,) = trainer.test(model, DataLoader(TensorDataset(images), batch_size=3), verbose=False)
    return tmp_path, model, images, metrics


def read(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.filterwarnings("ignore:.*does not have many workers")
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
def test_it_says_what_heads_do_and_what_slots_contribute(tested, capsys):
    folder, model, images, metrics = tested
    assert set(metrics) == {"test_loss"}
    rows = read(folder / "attention.csv")
    assert [(row["layer"], row["head"]) for row in rows] == [
        (f"network.blocks.{layer}.attn", str(head)) for layer in range(2) for head in range(2)
    ]
    assert all(0 < float(row["distance"]) < math.hypot(3, 5) for row in rows)
    assert all(0 < float(row["entropy"]) <= math.log(PATCHES + 1) for row in rows)
    # Weights of a model that has learnt nothing are nearly even: the mean distance is that of all pairs of patches.
    y, x = (torch.arange(size, dtype=torch.float64) for size in (4, 6))
    square = (y[:, None] - y).square()[:, None, :, None] + (x[:, None] - x).square()[None, :, None, :]
    assert float(rows[0]["distance"]) == pytest.approx(square.sqrt().mean().item(), rel=0.1)
    logits = read(folder / "logits.csv")
    assert max(float(row["distance"]) for row in logits) == pytest.approx(math.hypot(3, 5))

    slots = {row["without"]: float(row["loss"]) for row in read(folder / "slots.csv")}
    model.eval()
    with torch.no_grad():
        losses = [model.network(batch).square().mean().item() for batch in images.split(3)[:2]]
    assert list(slots) == ["all", "rotary"]
    assert slots["all"] == pytest.approx(sum(losses) / 2, abs=1e-5)
    assert slots["rotary"] != slots["all"]
    assert "log" not in model.__dict__


def test_batches_are_positive():
    with pytest.raises(ValueError, match="batches must be positive, got 0"):
        AttentionReport(batches=0)
