"""What the attention of a tested model does, as a Lightning callback."""

from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor

from ..coords import sequence_coords
from ..training.report import run_folder, show_path, write_rows
from .metrics import attention_distance, attention_entropy, by_distance, distances
from .record import AttentionRecord, record_attention, slot_contributions

COLUMNS = ("layer", "head", "distance", "entropy")


class AttentionReport(Callback):
    """Says after a test how far each head looks, how spread its attention is, and what each slot contributes.

    Looks at the first batches of the test: ``attention.csv`` in the run's folder has the mean distance of the keys in
    coordinate units and the entropy in nats of each head, ``logits.csv`` the mean logit at each distance, and
    ``slots.csv`` the training loss in evaluation mode with each slot switched off in turn. Prefix tokens, which have
    no place, are left out of distances. Calls of attention without coordinates count tokens.

    Args:
        batches: Batches that are looked at.

    Raises:
        ValueError: If that is not positive.
    """

    def __init__(self, batches: int = 1):
        if batches < 1:
            raise ValueError(f"batches must be positive, got {batches}")
        self.batches = batches
        self._open = ExitStack()
        self._start()

    def _start(self) -> None:
        self.calls: list[AttentionRecord] = []
        self.heads: dict[str, list[tuple[Tensor, Tensor]]] = {}
        self.logits: dict[str, tuple[Tensor, Tensor]] = {}
        self.losses: list[dict[str, float]] = []

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Forgets what an earlier test was."""
        self._start()

    def on_test_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Begins to look."""
        if batch_idx < self.batches and dataloader_idx == 0:
            self.calls = self._open.enter_context(record_attention(pl_module))

    def on_test_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Measures what it saw, and tries the batch without each slot."""
        self._open.close()
        if batch_idx >= self.batches or dataloader_idx:
            return
        for call in self.calls:
            self._measure(call)
        self.calls = []
        with _unlogged(pl_module):
            self.losses.append(slot_contributions(pl_module, lambda: _loss(pl_module, batch, batch_idx)))

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Stops looking."""
        self._open.close()

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Prints and saves the tables."""
        if not (trainer.is_global_zero and self.losses):
            return
        rows = [
            (layer, head, round(float(far), 4), round(float(entropy), 4))
            for layer, parts in self.heads.items()
            for head, (far, entropy) in enumerate(zip(*_means(parts), strict=True))
        ]
        logits = [
            (layer, head, float(far), round(float(value), 4))
            for layer, (known, curve) in self.logits.items()
            for head, line in enumerate(curve)
            for far, value in zip(known, line, strict=True)
        ]
        slots = {slot: sum(loss[slot] for loss in self.losses) / len(self.losses) for slot in self.losses[0]}
        folder = run_folder(trainer.ckpt_path) if trainer.ckpt_path else Path(trainer.default_root_dir)
        folder.mkdir(parents=True, exist_ok=True)
        write_rows(folder / "attention.csv", COLUMNS, rows)
        write_rows(folder / "logits.csv", ("layer", "head", "distance", "logit"), logits)
        write_rows(folder / "slots.csv", ("without", "loss"), [(name, round(loss, 6)) for name, loss in slots.items()])
        _print_table(f"attention on {len(self.losses)} test batches", COLUMNS, rows)
        _print_table("training loss without a slot", ("without", "loss"), list(slots.items()))
        print(f"attention: {show_path(folder / 'attention.csv')}")

    def _measure(self, call: AttentionRecord) -> None:
        weights, prefix = call.weights(), call.num_prefix_tokens
        far, inner = _distances_of(call, weights)
        parts = attention_distance(inner, far).cpu(), attention_entropy(weights).cpu()
        self.heads.setdefault(call.name, []).append(parts)
        if call.name not in self.logits:
            known, curve = by_distance(call.logits()[..., prefix:, prefix:], far)
            self.logits[call.name] = known.cpu(), curve.cpu()


def _distances_of(call: AttentionRecord, weights: Tensor) -> tuple[Tensor, Tensor]:
    """The distances of a call's tokens, and its weights without prefix tokens."""
    prefix, q_coords, k_coords = call.num_prefix_tokens, call.q_coords, call.k_coords
    if q_coords is None or k_coords is None:
        q_coords, k_coords = (sequence_coords(size - prefix).to(weights.device) for size in weights.shape[-2:])
    return distances(q_coords, k_coords), weights[..., prefix:, prefix:]


def _means(parts: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    far, entropy = zip(*parts, strict=True)
    return torch.stack(far).mean(0), torch.stack(entropy).mean(0)


def _loss(pl_module: LightningModule, batch: Any, batch_idx: int) -> float:
    loss = pl_module.training_step(batch, batch_idx)
    return float(loss["loss"] if isinstance(loss, dict) else loss)  # pyright: ignore[reportArgumentType]


@contextmanager
def _unlogged(pl_module: LightningModule):
    """Losses of the experiment are none of the run's metrics."""
    pl_module.__dict__["log"] = pl_module.__dict__["log_dict"] = lambda *args, **kwargs: None
    try:
        yield
    finally:
        del pl_module.__dict__["log"], pl_module.__dict__["log_dict"]


def _print_table(title: str, columns: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
    print(title)
    table = Table(box=box.SIMPLE_HEAD)
    for column in columns:
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(*(f"{cell:.4f}" if isinstance(cell, float) else str(cell) for cell in row))
    Console().print(table)
