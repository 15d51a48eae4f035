import random

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer

from mmpos.data.loaders import Order, make_loader

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:You requested to overfit"),
    pytest.mark.filterwarnings("ignore:.*no `val_dataloader`"),
    pytest.mark.filterwarnings("ignore:You defined a `validation_step`"),
]


class Draws:
    """Batches of rows, and a number of each source of random numbers."""

    def __len__(self):
        return 11

    def __getitems__(self, rows):
        numbers = torch.rand(()).item(), float(np.random.rand()), random.random()
        return torch.tensor(rows), torch.tensor(numbers, dtype=torch.float64)


class Data(LightningDataModule):
    def __init__(self, num_workers):
        super().__init__()
        self.num_workers = num_workers

    def train_dataloader(self):
        return make_loader(Draws(), batch_size=3, num_workers=self.num_workers, shuffle=True, trainer=self.trainer)


class Model(LightningModule):
    """Keeps what it sees and what it draws."""

    def __init__(self):
        super().__init__()
        self.layer, self.seen = torch.nn.Linear(1, 1), []

    def training_step(self, batch, batch_idx):
        self.seen.append([*batch[0].tolist(), *batch[1].tolist(), torch.rand(()).item(), random.random()])
        return self.layer(torch.ones(1)).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def train(num_workers=0, seed=3, **options):
    torch.manual_seed(seed)
    model = Model()
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "max_epochs": 2}
    trainer = Trainer(accelerator="cpu", enable_model_summary=False, **quiet, **options)
    trainer.fit(model, datamodule=Data(num_workers))
    return model.seen


def test_batches_and_draws_follow_from_the_seed_and_their_place_only():
    one, same, other = train(), train(num_workers=2), train(seed=4)
    assert one == same != other
    assert [len(batch) - 5 for batch in one] == [3, 3, 3, 2] * 2
    for epoch in (one[:4], one[4:]):
        assert sorted(row for batch in epoch for row in batch[:-5]) == list(range(11))
    assert [batch[:-5] for batch in one[:4]] != [batch[:-5] for batch in one[4:]]
    draws = [draw for batch in one for draw in batch[-5:]]
    assert len(set(draws)) == len(draws)
    overfitted = train(overfit_batches=2)  # Lightning takes the first rows in their order
    assert [batch[:-5] for batch in overfitted] == 2 * [[0, 1, 2], [3, 4, 5]]


def test_processes_share_the_rows_of_a_step(monkeypatch):
    shares = []
    for place in ({"num_replicas": 1, "rank": 0}, {"num_replicas": 2, "rank": 0}, {"num_replicas": 2, "rank": 1}):
        monkeypatch.setattr(Trainer, "distributed_sampler_kwargs", place)
        trainer = Trainer(logger=False, accelerator="cpu", enable_checkpointing=False)
        order = Order(Draws(), 6 // place["num_replicas"], 7, trainer)
        order.set_epoch(2)
        shares.append([place.row for place in order])
    whole, *halves = shares
    assert sorted(whole) == list(range(11))
    for step in (0, 1):
        rows = whole[6 * step : 6 * step + 6]
        assert sorted({*halves[0][3 * step : 3 * step + 3], *halves[1][3 * step : 3 * step + 3]} & set(rows)) == sorted(
            rows
        )


def test_without_a_trainer_an_order_is_any_and_nothing_else_changes():
    torch.manual_seed(1)
    loader = make_loader(Draws(), batch_size=11, shuffle=True)
    orders = [next(iter(loader))[0].tolist() for _ in range(2)]
    assert orders[0] != orders[1]
    random.seed(5)
    expected = random.random()
    random.seed(5)
    for _ in make_loader(Draws(), batch_size=5):
        pass
    assert random.random() != expected  # the dataset has drawn, and no one has sown
    assert torch.initial_seed() == 1
