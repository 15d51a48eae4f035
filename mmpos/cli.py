"""The command line: LightningCLI whose runs keep checkpoints, metrics and config together and end with a table."""

import argparse
import importlib
import importlib.util
import json
import logging
import os
import signal
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint, WeightAveraging
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger
from lightning.pytorch.plugins.io import TorchCheckpointIO
from torch.utils.data import DataLoader

from .data import SeriesData, VideoFolder
from .errors import DEBUG, USER_ERRORS, explain
from .training.checkpoints import check_checkpoint_path, load_weights
from .training.faults import (
    FiniteTraining,
    LastCheckpoint,
    WholeCheckpoints,
    explain_fault,
    interrupted_between_batches,
    newest_checkpoint,
)
from .training.forecasts import read_windows, write_forecasts
from .training.lengths import LengthEvaluation
from .training.predictions import predict_pictures
from .training.report import print_results, run_folder, show_path
from .training.resolution import ResolutionEvaluation
from .training.video import predict_clips

QUIET = (
    "does not have many workers",  # small data stay in memory
    "exists and is not empty",  # all that is in the folder is the config of this very run
    "number of training batches .* is smaller than the logging interval",
    "The dirpath has changed",  # a resumed run has a folder of its own
    "returned a view tensor",  # of a sharded encoding, which no layer writes to
    "WeightAveraging callback with a model that overrides",  # which does so for shards, and refuses both together
    "could not find the monitored key",  # a run that ends before its first validation has none
    "your dataloader is not resumable",  # it is: its order follows from the place of a batch
)
CHECKPOINTS = {
    "best": {"filename": "best", "monitor": "val_score", "mode": "max"},
    "last": {"filename": "last", "enable_version_counter": False, "save_on_exception": True},
}


def main(args: list[str] | None = None, *, base_config: Path | None = None) -> None:
    """Runs ``fit``, ``validate``, ``test`` or ``predict``; the ``--help`` of each says more.

    A user's error is one message and an exit status; ``MMPOS_DEBUG=1`` shows where it comes from.

    Args:
        args: Arguments; those of the process by default.
        base_config: Config with values that other configs and flags override.
    """
    for message in QUIET:
        warnings.filterwarnings("ignore", f".*{message}")
    for category in (DeprecationWarning, FutureWarning):  # between Lightning and PyTorch, not our user's to mend
        warnings.filterwarnings("ignore", category=category, module=r"lightning\.")
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        CommandLine.start(sys.argv[1:] if args is None else args, base_config)
    except (*USER_ERRORS, RuntimeError) as error:
        if os.environ.get(DEBUG) or not (isinstance(error, USER_ERRORS) or explain_fault(error)):
            raise
        sys.exit(f"error: {explain(error)}\n({DEBUG}=1 shows the traceback)")


class SaveFitConfig(SaveConfigCallback):
    """Saves the resolved config beside a training run, and nothing where a checkpoint is only read."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit":
            super().setup(trainer, pl_module, stage)


class CommandLine(LightningCLI):
    """LightningCLI with a folder for each run, the precision that fits the device, and a table of results."""

    @classmethod
    def start(cls, args: list[str], base_config: Path | None = None) -> None:
        """Parses the arguments and runs the subcommand."""
        defaults = {} if base_config is None else {"default_config_files": [str(base_config)]}
        parser: dict[str, Any] = {"exit_on_error": False, "allow_abbrev": False}
        known = cls.subcommands()
        asked = {name: known[name] for name in args[:1] if name in known} or known  # parsers take time to build
        command = type(cls.__name__, (cls,), {"subcommands": staticmethod(lambda: asked)})
        command(
            args=import_first(args),
            seed_everything_default=0,
            save_config_callback=SaveFitConfig,
            auto_configure_optimizers=False,  # modules bring their own
            load_from_checkpoint_support=False,  # modules save plain hyper-parameters
            parser_kwargs=parser | dict.fromkeys(asked, parser | defaults),
        )

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_argument("--imports", type=list[str], default=[], help="Modules that register encodings or classes.")
        parser.add_argument("--run", type=str | None, default=None, help="The run's folder; named as its config is.")
        weights = "Checkpoint whose weights fit starts from, as for training on with a scaling or other data."
        parser.add_argument("--weights", type=str | None, default=None, help=weights)
        sizes = "Sizes at which fit and test evaluate the checkpoint too, such as 28,42,28x56."
        parser.add_argument("--sizes", type=list[int | str] | str | None, default=None, help=sizes)
        how = "What becomes of coordinates at these sizes, or of encodings at these lengths; all ways by default."
        parser.add_argument("--how", type=list[str] | str | None, default=None, help=how)
        lengths = (
            "Multiples of the trained length at which fit and test evaluate a language model too, such as 1,2,4,8."
        )
        parser.add_argument("--lengths", type=list[int] | int | str | None, default=None, help=lengths)
        files = "Pictures, clips and folders of them to classify, or CSV files to forecast, in place of the test data."
        parser.add_argument("--files", nargs="*", type=str, default=[], help=files)
        output = "CSV file for what is said of them, or folder of several; in the run's folder unless given."
        parser.add_argument("--output", type=str | None, default=None, help=output)
        for key, settings in CHECKPOINTS.items():
            parser.add_lightning_class_args(LastCheckpoint if key == "last" else ModelCheckpoint, key)
            parser.set_defaults({f"{key}.{name}": value for name, value in settings.items()})

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        self.config = parser.parse_args(args)

    def _parse_ckpt_path(self) -> None:
        """Keeps the config as given: a checkpoint of another one is refused, not followed in silence."""

    def before_instantiate_classes(self) -> None:
        self.started = time.perf_counter()
        config = self.config[str(self.subcommand)]
        for name in config.imports:
            import_module(name)
        config.run = config.run or run_name(*(str(path) for path in config.config or ()))
        if config.get("weights_only") is False:
            raise ValueError("weights_only is always true: a checkpoint that is more than weights may be a program")
        config.weights_only = True  # Lightning would trust what comes from the web
        if config.ckpt_path in CHECKPOINTS:
            root = Path(config.trainer.default_root_dir or "runs")
            config.ckpt_path = str(newest_checkpoint(root / config.run, config.ckpt_path))
        sharded = not isinstance(config.trainer.strategy, str)  # a class, whose checkpoints are its own affair
        check_checkpoint_path(config.ckpt_path, required=self.subcommand != "fit", shards=sharded)
        check_checkpoint_path(config.weights, name="weights")
        if config.weights and self.subcommand != "fit":
            raise ValueError(f"weights ({config.weights}) is for fit; ckpt_path is what {self.subcommand} reads")
        if config.weights and config.ckpt_path:
            raise ValueError("give weights, to train on anew, or ckpt_path, to go on with a run, not both")
        for name in ("files", "output"):
            if config[name] and self.subcommand != "predict":
                raise ValueError(f"{name} ({config[name]}) is for predict, not for {self.subcommand}")

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        config = self.config[str(self.subcommand)]
        if config.trainer.precision is None:
            kwargs["precision"] = automatic_precision(config.trainer.accelerator)
        if config.trainer.logger is None:
            root = config.trainer.default_root_dir or "runs"
            kwargs["logger"] = make_loggers(root, config.run) if self.subcommand == "fit" else False
        evaluations = {"sizes": ResolutionEvaluation, "lengths": LengthEvaluation}
        added = [
            evaluation(config[name], every_n_epochs=0, **({"how": config.how} if config.how else {}))
            for name, evaluation in evaluations.items()
            if config[name] and self.subcommand in ("fit", "test")
        ]
        given = self.config_init[str(self.subcommand)].trainer.callbacks or []
        kwargs["callbacks"] = [*(given if isinstance(given, list) else [given]), *added, FiniteTraining()]
        if self.subcommand == "predict":
            kwargs["devices"], kwargs["num_nodes"] = 1, 1  # one file of rows, in the order of the data
        trainer = super().instantiate_trainer(**kwargs)
        if type(trainer.strategy.checkpoint_io) is TorchCheckpointIO:
            trainer.strategy.checkpoint_io = WholeCheckpoints()
        return trainer

    def fit(self, **kwargs: Any) -> None:
        """Trains and tests the best checkpoint; interrupted, it says where the last one is."""
        weights = self.config[str(self.subcommand)].weights
        if weights:
            load_weights(self.model, weights)
        with interrupted_between_batches(self.trainer) as asked:
            try:
                self.trainer.fit(**kwargs)
            except SystemExit:
                if not self.trainer.interrupted:
                    raise
                if self.trainer.is_global_zero and self._last.exists():
                    print(f"interrupted; to go on: --ckpt_path {show_path(self._last)}", file=sys.stderr)
                sys.exit(128 + (signal.SIGTERM if self.trainer.received_sigterm and not asked else signal.SIGINT))
        checkpoint = self.trainer.checkpoint_callback
        best = checkpoint.best_model_path if isinstance(checkpoint, ModelCheckpoint) else ""
        if not best and self._last.exists():  # it ended before its first validation
            best = str(self._last)
        self.test(model=self.model, datamodule=self.datamodule, ckpt_path=best or None, weights_only=True)

    @property
    def _last(self) -> Path:
        """Where the last checkpoint of the run is, or would be."""
        saved = self.config_init[str(self.subcommand)].last
        return Path(saved.dirpath or "") / f"{saved.filename}{saved.FILE_EXTENSION}"

    def test(self, **kwargs: Any) -> None:
        """Tests a checkpoint and prints the results."""
        kwargs["verbose"] = False
        with self._weights_as_saved():
            metrics = self.trainer.test(**kwargs)
        if self.trainer.is_global_zero:
            print_results(
                {name: value for loader in metrics for name, value in loader.items()},
                parameters=sum(parameter.numel() for parameter in self.model.parameters()),
                seconds=time.perf_counter() - self.started,
                checkpoint=kwargs["ckpt_path"],
            )

    def predict(self, **kwargs: Any) -> None:
        """Saves what a checkpoint says of files, or else of the test images, in its run's folder."""
        if self.config[str(self.subcommand)].files:
            return self._predict_files(**kwargs)
        with self._weights_as_saved():
            predictions = self.trainer.predict(**kwargs)
        if self.trainer.is_global_zero:
            path = run_folder(kwargs["ckpt_path"]) / "predictions.pt"
            torch.save(predictions, path)
            print(f"predictions: {show_path(path)}")

    def _predict_files(self, datamodule: Any = None, return_predictions: Any = None, **kwargs: Any) -> None:
        """Writes tables for the files; the exit status is not 0 if one could not be read."""
        config = self.config[str(self.subcommand)]
        folder, output = run_folder(kwargs["ckpt_path"]), config.output
        with self._weights_as_saved():
            if isinstance(datamodule, SeriesData):
                files = [Path(name) for name in config.files]
                windows = read_windows(datamodule, files)
                loader = DataLoader(windows, batch_size=None)  # pyright: ignore[reportArgumentType]
                found = self.trainer.predict(dataloaders=loader, return_predictions=True, **kwargs)
                target = Path(output or folder / ("forecast.csv" if len(files) == 1 else "forecasts"))
                for path in write_forecasts(datamodule, files, windows, found, target):
                    print(f"forecast: {show_path(path)}")
            else:
                path = Path(output or folder / "predictions.csv")
                predict = predict_clips if isinstance(datamodule, VideoFolder) else predict_pictures
                table, count = predict(self.trainer, datamodule, config.files, path, **kwargs)
                print(f"predictions: {show_path(path)} ({table.written} files)")
                if table.skipped:
                    sys.exit(f"error: {table.skipped} of {count} files could not be read")

    @contextmanager
    def _weights_as_saved(self) -> Iterator[None]:
        """Without the callbacks that average weights: a checkpoint's are averaged, and they would load the others."""
        trainer: Any = self.trainer
        trainer.callbacks = [callback for callback in trainer.callbacks if not isinstance(callback, WeightAveraging)]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*callbacks used to create the checkpoint need to be provided")
            yield


def import_first(args: list[str]) -> list[str]:
    """Imports the modules of ``--imports`` before anything is parsed; returns the arguments with one such flag."""
    scan = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    scan.add_argument("--imports", action="append", default=[])
    known, rest = scan.parse_known_args(args)
    names = [name.strip() for text in known.imports for name in text.strip("[]").split(",")]
    for name in names:
        import_module(name)
    return [*rest, f"--imports={json.dumps(names)}"] if names else rest


def import_module(name: str) -> None:
    """Imports a module of the user's, which may lie in the working directory."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        importlib.import_module(name)
    except ImportError as error:
        raise ValueError(f"imports has {name!r}, which cannot be imported: {error}") from error


def run_name(*configs: str) -> str:
    """Folder of a run under ``runs``: the path of its last config under ``configs``, else its bare name.

    A config of a folder ``trainer`` says how a run is done, not what it is, and names none.

    Example:
        >>> run_name("configs/image/rope.yaml", "configs/trainer/ddp.yaml"), run_name("mine.yaml"), run_name()
        ('image/rope', 'mine', 'unnamed')
    """
    named = [config for config in configs if Path(config).parent.name != "trainer"]
    if not named:
        return "unnamed"
    parts = Path(named[-1]).with_suffix("").parts
    under = len(parts) - parts[::-1].index("configs") if "configs" in parts else len(parts) - 1
    return "/".join(parts[under:])


def automatic_precision(accelerator: Any) -> str:
    """``bf16-mixed`` where the run is on a GPU that has bfloat16, else float32."""
    gpu = accelerator in ("auto", "cuda", "gpu") and torch.cuda.is_available() and torch.cuda.is_bf16_supported()
    return "bf16-mixed" if gpu else "32-true"


def make_loggers(root: str, name: str) -> list[Logger]:
    """Metrics as CSV, and for TensorBoard where that is installed, in one folder."""
    csv = CSVLogger(root, name=name)
    if importlib.util.find_spec("tensorboard") is None:
        return [csv]
    return [csv, TensorBoardLogger(root, name=name, version=csv.version)]
