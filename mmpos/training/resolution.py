"""One classifier at many image sizes: which encoding holds up, and with which extension."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, get_args, runtime_checkable

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from rich.console import Console
from torch.utils.data import DataLoader

from ..data.transforms import parse_size
from ..models import VisionTransformer
from ..models.image import Extension
from .report import items, print_accuracies, run_folder, show_path, write_rows
from .sharding import whole_network

EXTENSIONS: tuple[str, ...] = get_args(Extension)


@runtime_checkable
class EvaluationData(Protocol):
    """Data whose images come in any size."""

    def evaluation_loader(
        self, part: Literal["val", "test"], image_size: tuple[int, int] | None = None, limit: int | None = None
    ) -> DataLoader[Any]: ...


class Result(NamedTuple):
    """Accuracy at a size with coordinates extended in some way; None where that does not apply."""

    size: str
    how: str
    accuracy: float | None
    images: int


class ResolutionEvaluation(Callback):
    """Evaluates a `VisionTransformer` on images resized to other sizes, in every way to extend its coordinates.

    In training the accuracy on the validation images is logged, as ``val_accuracy_28x56_rescale``. A test ends with a
    table of the accuracy on the test images, which ``resolution.csv`` in the run's folder keeps.

    Args:
        sizes: Sizes in pixels: a side, ``"28x56"`` or (height, width) each; or as one text, ``"28,42,28x56"``.
        how: Names of what becomes of coordinates, see `VisionTransformer.at_size`; or as one text.
        limit: Most images, spread over the classes.
        every_n_epochs: Epochs of training between evaluations; with 0 there is none in training.

    Raises:
        ValueError: If a size is no size, a name is unknown or a number out of range.
    """

    def __init__(
        self,
        sizes: str | Sequence[int | str | tuple[int, int]],
        how: str | Sequence[str] = EXTENSIONS,
        limit: int | None = None,
        every_n_epochs: int = 1,
    ):
        self.sizes = [parse_size("sizes", size) for size in items(sizes)]
        self.how = [str(name) for name in items(how)]
        if unknown := [name for name in self.how if name not in EXTENSIONS]:
            raise ValueError(f"how has {unknown[0]!r}; known: {', '.join(EXTENSIONS)}")
        if not self.sizes or not self.how:
            raise ValueError(f"sizes ({sizes!r}) and how ({how!r}) must not be empty")
        if every_n_epochs < 0 or (limit is not None and limit < 1):
            raise ValueError(f"every_n_epochs ({every_n_epochs}) and limit ({limit}) must not be negative or limit 0")
        self.limit, self.every_n_epochs = limit, every_n_epochs
        self.notes: list[str] = []

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuses what cannot be evaluated, before any training."""
        if stage == "predict":
            return
        network = whole_network(pl_module)
        if not isinstance(network, VisionTransformer):
            raise TypeError(f"{type(pl_module).__name__} has no VisionTransformer to evaluate at other sizes")
        data = getattr(trainer, "datamodule", None)
        if not isinstance(data, EvaluationData):
            raise TypeError(f"{type(data).__name__} has no evaluation_loader, which gives images of other sizes")
        for size in self.sizes:
            network.at_size(size)

    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Logs the accuracies, before the first batch: when averaged weights, if there are any, are in place."""
        fitting, every = trainer.state.fn == TrainerFn.FITTING, self.every_n_epochs
        due = not fitting or (every > 0 and (trainer.current_epoch + 1) % every == 0)
        if due and batch_idx == dataloader_idx == 0 and not trainer.sanity_checking:
            for size, how, accuracy, _ in self.evaluate(trainer, pl_module, "val"):
                if accuracy is not None:
                    pl_module.log(f"val_accuracy_{size}_{how}", accuracy, on_epoch=True, batch_size=1, sync_dist=True)

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Prints and saves the table."""
        results = self.evaluate(trainer, pl_module, "test")
        if trainer.is_global_zero:
            folder = run_folder(trainer.ckpt_path) if trainer.ckpt_path else Path(trainer.default_root_dir)
            write_rows(
                folder / "resolution.csv", Result._fields, [result for result in results if result.accuracy is not None]
            )
            print_sizes(results, self.notes)
            print(f"resolutions: {show_path(folder / 'resolution.csv')}")

    def evaluate(self, trainer: Trainer, pl_module: LightningModule, part: Literal["val", "test"]) -> list[Result]:
        """The accuracy at each size in each way."""
        data: EvaluationData = trainer.datamodule  # pyright: ignore[reportAttributeAccessIssue]
        whole, results = whole_network(pl_module), []
        for size in self.sizes:
            networks = {how: self._resized(whole, size, how) for how in self.how}
            loader = data.evaluation_loader(part, image_size=size, limit=self.limit)
            right, seen = dict.fromkeys(self.how, 0), 0
            for batch in loader:
                images, labels = (tensor.to(pl_module.device) for tensor in batch)
                seen += len(labels)
                for how, network in networks.items():
                    if network is not None:
                        with torch.inference_mode(), trainer.precision_plugin.forward_context():
                            right[how] += int((network(images).argmax(-1) == labels).sum())
            name = "x".join(map(str, size))
            results += [
                Result(name, how, None if network is None else right[how] / seen, seen)
                for how, network in networks.items()
            ]
        return results

    def _resized(self, network: VisionTransformer, size: tuple[int, int], how: str) -> VisionTransformer | None:
        """The network for a size, or None where that way does not apply."""
        try:
            return network.at_size(size, how).eval()  # pyright: ignore[reportArgumentType]
        except ValueError as error:  # the size itself was tried before
            if str(error) not in self.notes:
                self.notes.append(str(error))
            return None


def print_sizes(results: Sequence[Result], notes: Sequence[str]) -> None:
    """Prints accuracies, a row for each size and a column for each way, and why some are missing."""
    print_accuracies(results, "pixels", "images")
    if notes:
        Console().print(f"-: {notes[0]}", markup=False, highlight=False)
