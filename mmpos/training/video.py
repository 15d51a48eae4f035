"""Training of video classifiers, and what becomes of them on clips of other forms."""

import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, get_args, runtime_checkable

import torch
from jaxtyping import Float
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from torch.utils.data import DataLoader

from ..data.moving import ClipForm, check_form
from ..data.video import VideoFolder
from ..models import VideoTransformer
from ..models.image import Extension
from ..models.stack import AdditiveTo
from ..models.video import Attention, Rate
from .classify import Batch, Classifier
from .predictions import PredictionTable
from .report import items, print_accuracies, run_folder, show_path, write_rows
from .sharding import whole_network

Coordinates = Literal["index", "time", "space", "time and space"]
COORDINATES: tuple[str, ...] = get_args(Coordinates)


class VideoClassifier(Classifier):
    """A `VideoTransformer` trained with cross entropy, AdamW and a cosine schedule with warm-up.

    Batches are clips, labels and frames per second. ``val_score``, which chooses the best checkpoint, is the validation
    accuracy; among equals it prefers the lower loss.

    Args:
        clip_size: (frames, height, width), a multiple of ``tubelet_size``.
        tubelet_size: (frames, height, width) of a tubelet.
        in_chans: Channels of a frame.
        num_classes: Number of classes.
        dim: Channels of a token.
        depth: Number of blocks.
        num_heads: Heads per block.
        fps: Frames per second that tubelets are counted by.
        time: Unit of the first coordinate: "tubelets" at this rate, or "seconds".
        attention: "joint", or "factorised" into blocks for space and blocks for time.
        block: Further arguments of the blocks, such as ``{qk_norm: true}``.
        positions: How patches of a frame become coordinates and how these vary in training; arguments of
            `mmpos.models.GridPositions`.
        additive: Slot of what is added to the tokens.
        rotary: Slot of what rotates queries and keys.
        bias: Slot of what is added to the logits.
        scale: Slot of what multiplies the logits.
        additive_to: Where the additive encoding enters: "tokens", once, or "queries_keys", of every block.
        drop_path: Probability that a sample skips a branch of the last block; it grows linearly to that.
        label_smoothing: Share of the target that is spread over all classes in training.
        lr: Peak learning rate.
        weight_decay: Decay of matrices; vectors and learned encodings do not decay.
        warmup: Share of all steps in which the learning rate rises.

    Raises:
        ValueError: If the model cannot be built, or a checkpoint of another model is loaded.
    """

    def __init__(
        self,
        clip_size: tuple[int, int, int] = (8, 24, 24),
        tubelet_size: tuple[int, int, int] = (1, 12, 12),
        in_chans: int = 1,
        num_classes: int = 4,
        dim: int = 48,
        depth: int = 4,
        num_heads: int = 4,
        fps: float = 8.0,
        time: Literal["tubelets", "seconds"] = "tubelets",
        attention: Attention = "joint",
        block: dict[str, Any] | None = None,
        positions: dict[str, Any] | None = None,
        additive: dict[str, Any] | None = None,
        rotary: dict[str, Any] | None = None,
        bias: dict[str, Any] | None = None,
        scale: dict[str, Any] | None = None,
        additive_to: AdditiveTo = "tokens",
        drop_path: float = 0.0,
        label_smoothing: float = 0.1,
        lr: float = 3e-3,
        weight_decay: float = 0.05,
        warmup: float = 0.1,
    ):
        super().__init__()
        self.save_hyperparameters()
        self.network = VideoTransformer(
            clip_size,
            tubelet_size,
            in_chans,
            num_classes,
            dim,
            depth,
            num_heads,
            fps=fps,
            time=time,
            attention=attention,
            drop_path=drop_path,
            block=block,
            positions=positions,
            additive=additive,
            rotary=rotary,
            bias=bias,
            scale=scale,
            additive_to=additive_to,
        )
        self.label_smoothing, self.lr, self.weight_decay, self.warmup = label_smoothing, lr, weight_decay, warmup

    def forward(
        self, clips: Float[Tensor, "b c frames height width"], fps: Rate | None = None
    ) -> Float[Tensor, "b classes"]:
        """Logits of the classes."""
        return self.network(clips, fps)

    def classify(self, batch: Batch) -> Float[Tensor, "b classes"]:
        """Logits of the classes for the clips of a batch at their rate."""
        return self(batch[0], batch[2])

    def training_step(self, batch: Batch, batch_idx: int) -> Float[Tensor, ""]:
        """The loss that is minimised: 0 of a batch without a clip that can be decoded."""
        return super().training_step(batch, batch_idx) if len(batch[1]) else self.classify(batch).sum()

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Logs ``val_loss``, ``val_accuracy`` and ``val_score``, if there is a clip."""
        if len(batch[1]):
            super().validation_step(batch, batch_idx)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Logs ``test_loss`` and ``test_accuracy``, if there is a clip."""
        if len(batch[1]):
            super().test_step(batch, batch_idx)


@runtime_checkable
class ClipData(Protocol):
    """Data whose clips come in any form."""

    form: ClipForm

    def evaluation_loader(
        self,
        part: Literal["val", "test"],
        form: ClipForm | None = None,
        *,
        shuffled: bool = False,
        limit: int | None = None,
    ) -> DataLoader[Any]: ...


class Result(NamedTuple):
    """Accuracy on clips of a form with coordinates of some kind.

    None where a model has no such coordinates, or no clip is long enough.
    """

    form: str
    coordinates: str
    accuracy: float | None
    clips: int


class ClipEvaluation(Callback):
    """Evaluates a `VideoTransformer` on the same motions in clips of other forms, with time and space scaled or not.

    A test ends with a table of the accuracy, which ``clips.csv`` in the run's folder keeps. Its columns say which
    coordinates follow the world, where a clip has more frames or pixels: "index" counts tubelets and patches, as if the
    clip were of the form that the model is made for; "time" takes times from the frames per second; "space" has patches
    scaled by ``how``; "time and space" both.

    Args:
        forms: Forms such as ``"16x24@16"``, 16 frames of side 24 at 16 frames per second; or as one text,
            ``"8x24@8, 16x24@16"``; a frame that is no square has two sides, ``"8x24x32@8"``. "shuffled" is the form of
            the training with the frames in an order of chance.
        coordinates: Kinds of coordinates; or as one text.
        how: What scales space, see `VideoTransformer.at_size`.
        limit: Most clips, spread over the classes.

    Raises:
        ValueError: If a form is none, a name is unknown or a number out of range.
    """

    def __init__(
        self,
        forms: str | Sequence[str],
        coordinates: str | Sequence[str] = COORDINATES,
        how: Extension = "rescale",
        limit: int | None = None,
    ):
        self.forms = {str(form): None if form == "shuffled" else parse_form(str(form)) for form in items(forms)}
        self.coordinates = [str(name) for name in items(coordinates)]
        if unknown := [name for name in self.coordinates if name not in COORDINATES]:
            raise ValueError(f"coordinates has {unknown[0]!r}; known: {', '.join(COORDINATES)}")
        if not self.forms or not self.coordinates:
            raise ValueError(f"forms ({forms!r}) and coordinates ({coordinates!r}) must not be empty")
        if limit is not None and limit < 1:
            raise ValueError(f"limit ({limit}) must be positive")
        self.how, self.limit = how, limit

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuses what cannot be evaluated, before any training."""
        if stage == "predict":
            return
        network = whole_network(pl_module)
        if not isinstance(network, VideoTransformer):
            raise TypeError(f"{type(pl_module).__name__} has no VideoTransformer to evaluate on clips of other forms")
        data = getattr(trainer, "datamodule", None)
        if not isinstance(data, ClipData):
            raise TypeError(f"{type(data).__name__} has no evaluation_loader, which gives clips of other forms")
        for form in self.forms.values():
            if form is not None:
                network.at_size(form.clip_size)

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Prints and saves the table."""
        results = self.evaluate(trainer, pl_module, "test")
        if trainer.is_global_zero:
            folder = run_folder(trainer.ckpt_path) if trainer.ckpt_path else Path(trainer.default_root_dir)
            found = [result for result in results if result.accuracy is not None]
            write_rows(folder / "clips.csv", Result._fields, found)
            print_accuracies(results, "frames x side @ per second", "clips")
            print(f"clips: {show_path(folder / 'clips.csv')}")

    def evaluate(self, trainer: Trainer, pl_module: LightningModule, part: Literal["val", "test"]) -> list[Result]:
        """The accuracy on clips of each form with each kind of coordinates."""
        data: ClipData = trainer.datamodule  # pyright: ignore[reportAttributeAccessIssue]
        whole, results = whole_network(pl_module), []
        for name, form in self.forms.items():
            size = form or data.form
            networks = {kind: self._resized(whole, size, kind) for kind in self.coordinates}
            right, seen = dict.fromkeys(self.coordinates, 0), 0
            for batch in data.evaluation_loader(part, form, shuffled=form is None, limit=self.limit):
                clips, labels, fps, *rest = batch
                for error in rest[0].values() if rest else ():
                    logging.getLogger(__name__).warning(f"left out of {name}: {error}")
                clips, labels = clips.to(pl_module.device), labels.to(pl_module.device)
                seen += len(labels)
                for kind, network in networks.items():
                    if network is not None:
                        with torch.inference_mode(), trainer.precision_plugin.forward_context():
                            logits = network(clips, fps if kind.startswith("time") else None)
                            right[kind] += int((logits.argmax(-1) == labels).sum())
            results += [
                Result(name, kind, None if network is None or not seen else right[kind] / seen, seen)
                for kind, network in networks.items()
            ]
        return results

    def _resized(self, network: VideoTransformer, form: ClipForm, kind: str) -> VideoTransformer | None:
        """The network for clips of a form, or None where its space cannot be scaled so."""
        try:
            how = self.how if kind.endswith("space") else "extend"
            return network.at_size(form.clip_size, how, axes="space").eval()  # pyright: ignore[reportArgumentType]
        except ValueError:  # the size itself was tried before
            return None


def parse_form(text: str) -> ClipForm:
    """The form that ``frames x side @ frames per second`` says, or with height and width for the side.

    Raises:
        ValueError: If the text is not of this kind, or a number not positive.

    Example:
        >>> parse_form("16x24@12.5")
        ClipForm(frames=16, size=24, fps=12.5)
        >>> parse_form("16x24x32@8").clip_size
        (16, 24, 32)
    """
    match = re.fullmatch(r"(\d+)x(\d+)(?:x(\d+))?@(\d+(?:\.\d+)?)", text.replace(" ", ""))
    if match is None:
        raise ValueError(
            f"forms has {text!r}; a form is frames x side @ frames per second, such as 16x24@8, or shuffled"
        )
    size = int(match[2]) if match[3] is None else (int(match[2]), int(match[3]))
    return check_form(ClipForm(int(match[1]), size, float(match[4])))


def predict_clips(
    trainer: Any, data: VideoFolder, names: Sequence[str], path: Path, *, model: LightningModule, **kwargs: Any
) -> tuple[PredictionTable, int]:
    """Writes the table of the clips that are named or lie in folders, and says how many these are."""
    frames, *size = data.clip_size or model.hparams["clip_size"]
    form = ClipForm(frames, (size[0], size[1]), data.fps or model.hparams["fps"])
    loader, table = data.file_loader(names, form, model.hparams["in_chans"]), PredictionTable(path)
    trainer.callbacks.append(table)
    trainer.predict(model, dataloaders=loader, return_predictions=False, **kwargs)
    return table, table.written + table.skipped
