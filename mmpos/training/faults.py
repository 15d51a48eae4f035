"""What keeps a run's checkpoints whole and true, whatever happens to it."""

import errno
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch import Tensor


class WholeCheckpoints(TorchCheckpointIO):
    """A checkpoint has its name when all of it is on the disk: a process may be killed at any moment.

    Lightning writes into the system's folder for temporary files, whence it may have to be copied.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        """Writes a file beside the last one of that name, and puts it in its place.

        Raises:
            OSError: If it cannot be written; the message names the file.
        """
        if "://" in str(path):  # what is not a disk has its own ways
            return super().save_checkpoint(checkpoint, path, storage_options)
        path = Path(path)
        partial = path.with_name(f".{path.name}.partial")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with partial.open("wb") as file:
                torch.save(checkpoint, file)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        except (OSError, RuntimeError) as error:  # PyTorch has a RuntimeError for a disk that is full
            cause = error if isinstance(error, OSError) else error.__context__
            reason = cause.strerror if isinstance(cause, OSError) else str(error).splitlines()[0]
            raise OSError(f"the checkpoint {path} cannot be written: {reason}; those before it are whole") from error
        finally:
            partial.unlink(missing_ok=True)


class NotFiniteError(ValueError):
    """What a run has come to is no number."""


class LastCheckpoint(ModelCheckpoint):
    """A checkpoint at the end of every epoch, and within it every ``every_n_train_steps`` if that is given.

    What ends a run is saved too where ``save_on_exception`` is set, but for weights whose loss is no number, and those
    of a step that is cut short.
    """

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        self._every_n_epochs = self._every_n_epochs or 1

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        # A run that goes on from between the last batch of an epoch and its validation does without the validation, and
        # Lightning (2.6) counts its epochs wrong.
        if not trainer.fit_loop.epoch_loop.batch_progress.is_last_batch:
            super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        # Every process has a part in saving: one that fails alone would wait for the others for ever. A signal to end
        # is passed on to all by Lightning.
        together = trainer.world_size == 1 or isinstance(exception, SIGTERMException)
        batches = trainer.fit_loop.epoch_loop.batch_progress.current
        outside = not isinstance(exception, Exception | SIGTERMException)  # it may come amid a step
        cut = outside and batches.ready > batches.completed
        if together and not cut and not isinstance(exception, NotFiniteError):
            super().on_exception(trainer, pl_module, exception)


@contextmanager
def interrupted_between_batches(trainer: Trainer) -> Iterator[list[int]]:
    """Has Ctrl-C end a training as SIGTERM does, after the batch at hand, and a second one at once; yields the signals.

    A step that is cut short has changed some weights and not others. Of several processes each has its own Ctrl-C.
    """
    asked: list[int] = []

    def ask(number: int, frame: Any) -> None:
        asked.append(number)
        if len(asked) > 1 or trainer.world_size > 1 or signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            signal.default_int_handler(number, frame)
        print("interrupted: ends after this batch, or with another Ctrl-C at once", file=sys.stderr)
        signal.raise_signal(signal.SIGTERM)  # Lightning listens from the beginning of a fit on

    if threading.current_thread() is not threading.main_thread():  # which alone has signals
        yield asked
        return
    before = signal.signal(signal.SIGINT, ask)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)


class FiniteTraining(Callback):
    """Stops a run whose loss is no number before a step is taken with it, and saves no weights that are none."""

    def __init__(self) -> None:
        self.batch: Any = None

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self.batch = batch

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        """Raises a `NotFiniteError` that says which batch it is and what is in it."""
        if loss.isfinite().all():
            return
        place = f"batch {trainer.fit_loop.epoch_loop.batch_idx} of epoch {trainer.current_epoch}, counted from 0"
        strange = [
            f"{count} of {tensor.numel()} numbers of {name} are not finite"
            for name, tensor in named_tensors("the batch", self.batch)
            if tensor.is_floating_point() and (count := int((~tensor.isfinite()).sum()))
        ]
        advice = "; ".join(strange) or "all numbers of the batch are finite, so a lower model.lr may help"
        raise NotFiniteError(
            f"the loss is {loss.detach().sum().item()} in {place}: {advice}; no step was taken with it"
        )

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Raises a `NotFiniteError` that names a parameter."""
        for name, parameter in pl_module.named_parameters():
            if not parameter.isfinite().all():
                raise NotFiniteError(
                    f"{name} is not finite after step {trainer.global_step}; no checkpoint is written, and those "
                    "before it are as they were; a lower model.lr or trainer.gradient_clip_val may help"
                )


def named_tensors(name: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    """The tensors in a batch, with what they are called in it."""
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from named_tensors(str(key), item)
    elif isinstance(value, tuple | list):
        names = getattr(value, "_fields", range(len(value)))
        for key, item in zip(names, value, strict=True):
            yield from named_tensors(key if isinstance(key, str) else f"part {key} of {name}", item)


def newest_checkpoint(folder: Path, name: str) -> Path:
    """The checkpoint ``name`` of the last run below the folder of a config that has one.

    Raises:
        FileNotFoundError: If none has.
    """
    found = [path for path in folder.glob(f"version_*/checkpoints/{name}.ckpt") if path.parts[-3][8:].isdigit()]
    if not found:
        raise FileNotFoundError(f"ckpt_path {name}: no run in {folder} has such a checkpoint yet")
    return max(found, key=lambda path: int(path.parts[-3][8:]))


def explain_fault(error: BaseException) -> str:
    """One line on a disk that is full or a process that loads data and is gone; empty for other errors."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{error.strerror}: {error.filename or 'a file of the run'}; checkpoints are whole: --ckpt_path last"
    text = str(error)
    if "DataLoader worker (pid" in text:
        how = re.search(r"killed by signal: [\w ]+|exit code \d+", text)
        return (
            f"a process that loads data died{f' ({how[0].strip()})' if how else ''}; memory may have run out, and "
            "data.num_workers 0 shows errors of its own; checkpoints are whole: --ckpt_path last"
        )
    if stuck := re.search(r"DataLoader timed out after ([\d.]+) seconds", text):
        return f"the processes that load data sent nothing for {stuck[1]} s; checkpoints are whole: --ckpt_path last"
    return ""
