"""A table of what a classifier says of files."""

import csv
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import BasePredictionWriter
from torch import Tensor

from ..data.files import PictureData, PictureFiles, file_loader
from ..data.readers import find_files


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


def predict_pictures(
    trainer: Any, data: Any, names: Sequence[str], path: Path, *, model: LightningModule, **kwargs: Any
) -> tuple[PredictionTable, int]:
    """Writes the table of the pictures that are named or lie in folders, and says how many these are.

    Raises:
        TypeError: If the data module reads no pictures.
    """
    if not isinstance(data, PictureData):
        raise TypeError(f"{type(data).__name__} has no picture_loader, which reads files")
    size, channels = (model.hparams[name] for name in ("image_size", "in_chans"))
    files = PictureFiles(find_files(names), data.picture_loader(size, channels))
    table = PredictionTable(path)
    trainer.callbacks.append(table)
    loader = file_loader(files, batch_size=data.batch_size, num_workers=getattr(data, "num_workers", 0))
    trainer.predict(model, dataloaders=loader, return_predictions=False, **kwargs)
    return table, len(files)
