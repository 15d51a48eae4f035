"""A table of what a classifier says of files."""

import csv
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import BasePredictionWriter
from torch import Tensor


class PredictionTable(BasePredictionWriter):
    """Writes a CSV row for each file: its name, its class, the probability of that, and the probability of each class.

    A file that could not be read is named on standard error, counted in ``skipped``, and has no row.

    Args:
        path: The CSV file.
    """

    def __init__(self, path: Path):
        super().__init__("batch")
        self.path, self.classes = path, ()
        self.written = self.skipped = 0

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Starts the file; the classes have the names that the checkpoint knows, or else numbers."""
        self.classes = getattr(pl_module, "classes", ()) or tuple(range(pl_module.hparams["num_classes"]))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerow(["file", "class", "probability", *self.classes])

    def write_on_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        prediction: Tensor,
        batch_indices: Sequence[int] | None,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int,
    ) -> None:
        """Writes the rows of a batch."""
        with self.path.open("a", encoding="utf-8", newline="") as file:
            for name, row in zip(batch.paths, prediction.tolist(), strict=True):
                best = max(range(len(row)), key=row.__getitem__)
                shares = [f"{share:.6f}" for share in row]
                csv.writer(file).writerow([name, self.classes[best], shares[best], *shares])
        for error in batch.errors.values():
            print(f"skipped: {error}", file=sys.stderr)
        self.written += len(batch.paths)
        self.skipped += len(batch.errors)
