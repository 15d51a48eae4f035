"""One language model on longer and longer rows: which encoding holds up, and with which extension."""

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Int64
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor

from ..models import TextTransformer
from ..models.text import EXTENSIONS
from .report import items, run_folder, show_path, write_rows
from .sharding import whole_network
from .text import cross_entropy

BATCH_TOKENS = 1 << 14
TUNED = "head_scale"
WAYS = tuple(how for how in EXTENSIONS if how != TUNED)


@runtime_checkable
class LongDocuments(Protocol):
    """Data that has stretches of a length which lie within a document each."""

    length: int

    def documents(
        self, part: Literal["train", "val", "test"], length: int, limit: int | None = None
    ) -> Int64[Tensor, "b n"]: ...


class Result(NamedTuple):
    """Bits per byte at a length with the encodings extended in some way; None where that does not apply."""

    length: int
    how: str
    bits: float | None
    last_bits: float | None
    documents: int


class LengthEvaluation(Callback):
    """Evaluates a `TextTransformer` on the same documents at several lengths, in every way to extend its encodings.

    Stretches of the longest length are cut into rows of each: ``bits`` is the mean over all their bytes.
    ``last_bits`` is the mean over the last bytes of the stretches alone, of which each length gives more of what stands
    before them.

    In training the bits on validation documents are logged, as ``val_bits_1024_ntk``. A test ends with a table for the
    test documents, which ``lengths.csv`` in the run's folder keeps.

    Args:
        lengths: Multiples of the length in training, or one text such as ``"1,2,4,8"``; powers of 2.
        how: Names of ways, see `TextTransformer.at_length`; or as one text. All by default but "head_scale", whose
            factors are tuned first, on training documents of each length.
        limit: Most stretches of documents.
        last: Number of last bytes.
        every_n_epochs: Epochs of training between evaluations; with 0 there is none in training.

    Raises:
        ValueError: If a multiple is no power of 2, a name is unknown or a number out of range.
    """

    def __init__(
        self,
        lengths: str | int | Sequence[int] = (1, 2, 4, 8),
        how: str | Sequence[str] = WAYS,
        limit: int | None = 32,
        last: int = 64,
        every_n_epochs: int = 1,
    ):
        self.multiples = [int(item) for item in items(lengths)]
        self.how = [str(name) for name in items(how)]
        for multiple in self.multiples:
            if multiple < 1 or multiple & (multiple - 1):
                raise ValueError(f"lengths must be powers of 2, as multiples of the trained length, got {multiple}")
        if unknown := [name for name in self.how if name not in EXTENSIONS]:
            raise ValueError(f"how has {unknown[0]!r}; known: {', '.join(EXTENSIONS)}")
        if not self.multiples or not self.how:
            raise ValueError(f"lengths ({lengths!r}) and how ({how!r}) must not be empty")
        if every_n_epochs < 0 or last < 1 or (limit is not None and limit < 1):
            raise ValueError(
                f"every_n_epochs ({every_n_epochs}) must not be negative, last ({last}) and limit ({limit}) positive"
            )
        self.limit, self.last, self.every_n_epochs = limit, last, every_n_epochs
        self.notes: list[str] = []

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuses what cannot be evaluated, before any training."""
        if stage == "predict":
            return
        if not isinstance(getattr(pl_module, "network", None), TextTransformer):
            raise TypeError(f"{type(pl_module).__name__} has no TextTransformer to evaluate at other lengths")
        data = getattr(trainer, "datamodule", None)
        if not isinstance(data, LongDocuments):
            raise TypeError(f"{type(data).__name__} has no documents of a length")
        data.documents("test", data.length * max(self.multiples), limit=1)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Logs the bits of each length and way."""
        fitting, every = trainer.state.fn == TrainerFn.FITTING, self.every_n_epochs
        due = not fitting or (every > 0 and (trainer.current_epoch + 1) % every == 0)
        if due and not trainer.sanity_checking:
            for length, how, bits, *_ in self.evaluate(trainer, pl_module, "val"):
                if bits is not None:
                    pl_module.log(f"val_bits_{length}_{how}", bits, batch_size=1, sync_dist=True)

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Prints and saves the table."""
        results = self.evaluate(trainer, pl_module, "test")
        if trainer.is_global_zero:
            folder = run_folder(trainer.ckpt_path) if trainer.ckpt_path else Path(trainer.default_root_dir)
            write_rows(
                folder / "lengths.csv", Result._fields, [result for result in results if result.bits is not None]
            )
            print_lengths(results, self.notes)
            print(f"lengths: {show_path(folder / 'lengths.csv')}")

    def evaluate(self, trainer: Trainer, pl_module: LightningModule, part: Literal["val", "test"]) -> list[Result]:
        """The bits per byte at each length in each way."""
        data: LongDocuments = trainer.datamodule  # pyright: ignore[reportAttributeAccessIssue]
        longest = data.length * max(self.multiples)
        texts = data.documents(part, longest, self.limit).to(pl_module.device)
        whole = whole_network(pl_module)
        results = []
        for multiple in self.multiples:
            length = data.length * multiple
            for how in self.how:
                network = self._extended(whole, length, how, data.length)
                bits = last_bits = None
                if network is not None:
                    if how == TUNED:
                        with trainer.precision_plugin.forward_context():
                            tune(network, data.documents("train", length, self.limit).to(pl_module.device))
                    with torch.inference_mode(), trainer.precision_plugin.forward_context():
                        bits, last_bits = self._bits(network, texts, length)
                results.append(Result(length, how, bits, last_bits, len(texts)))
        return results

    def _bits(self, network: TextTransformer, texts: Int64[Tensor, "b n"], length: int) -> tuple[float, float]:
        inputs, targets = (part.unfold(-1, length, length).flatten(0, 1) for part in (texts[:, :-1], texts[:, 1:]))
        size = max(BATCH_TOKENS // length, 1)
        nats = torch.cat(
            [
                cross_entropy(network(rows), wanted).double()
                for rows, wanted in zip(inputs.split(size), targets.split(size), strict=True)
            ]
        )
        last = nats.unflatten(0, (len(texts), -1))[:, -1, -self.last :]
        return nats.mean().item() / math.log(2), last.mean().item() / math.log(2)

    def _extended(self, network: TextTransformer, length: int, how: str, trained: int) -> TextTransformer | None:
        """The network for a length, or None where that way does not apply."""
        try:
            with torch.inference_mode(False):  # new factors are to take gradients
                return network.at_length(length, how, trained=trained).eval()
        except ValueError as error:
            if str(error) not in self.notes:
                self.notes.append(str(error))
            return None


def tune(network: TextTransformer, texts: Int64[Tensor, "b n"], *, steps: int = 40, lr: float = 0.05) -> None:
    """Tunes the factors of heads and nothing else, with Adam on the next bytes of the texts, a few rows a step."""
    factors = [factor for scale in network.encodings.scale for factor in scale.parameters()]
    with torch.inference_mode(False), torch.enable_grad():
        size = max(BATCH_TOKENS // (4 * texts.shape[-1]), 1)
        batches = itertools.cycle(texts.clone().split(size))  # what inference made takes no gradient
        optimizer = torch.optim.Adam(factors, lr=lr)
        for rows in itertools.islice(batches, steps):
            loss = cross_entropy(network(rows[:, :-1]), rows[:, 1:]).mean()
            for factor, grad in zip(factors, torch.autograd.grad(loss, factors), strict=True):
                factor.grad = grad
            optimizer.step()


def print_lengths(results: Sequence[Result], notes: Sequence[str]) -> None:
    """Prints bits per byte, a row for each length and a column for each way, and why some are missing."""
    columns = list(dict.fromkeys(result.how for result in results))
    title = f"bits per byte of {results[0].documents:,} stretches of test documents"
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left")
    table.add_column("bytes", style="bold")
    for how in columns:
        table.add_column(how, justify="right")
    for length in dict.fromkeys(result.length for result in results):
        cells = {result.how: result.bits for result in results if result.length == length}
        table.add_row(f"{length:,}", *("-" if cells[how] is None else f"{cells[how]:.3f}" for how in columns))
    Console().print(table)
    if notes:
        Console().print(f"-: {notes[0]}", markup=False, highlight=False)
