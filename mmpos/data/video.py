"""Clips in folders, a folder for each class."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Int64
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from .clips import CLIP_EXTENSIONS, Sampling, check_clip, find_clips, import_av, read_clip
from .loaders import make_loader
from .moving import ClipForm, check_form
from .readers import find_files, label_files, list_folders, part_folders
from .samples import Transform, limit_samples, set_aside
from .transforms import Look, picture_transform

COLOUR = Look(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), mirror=False)


class ClipBatch(NamedTuple):
    """Clips at a rate, of which there may be none, and what is wrong with the files that have none."""

    clips: Float[Tensor, "b c frames height width"]
    labels: Int64[Tensor, " b"]
    fps: float
    errors: dict[Path, str]
    paths: list[Path]


class ClipFiles(NamedTuple):
    """Files and their classes."""

    paths: list[Path]
    labels: Int64[Tensor, " n"]

    def take(self, rows: Int64[Tensor, " m"]) -> "ClipFiles":
        """Some of the files."""
        return ClipFiles([self.paths[row] for row in rows], self.labels[rows])


class VideoFolder(LightningDataModule):
    """Clips of any size, length and rate in a folder for each class, decoded as they are needed.

    In ``root`` are either the folders of the classes, or the folders ``train`` and ``val`` or ``test`` or both with
    those of the classes in them. With no ``test``, ``val`` is the test; what is missing is set aside from the training
    clips. A clip is sampled by time, so what moves equally fast does so in all of them, whatever the rates of the files
    are: a random stretch of it in training, its middle in evaluation. Frames are turned as the file says.

    A file that cannot be decoded, or is shorter than a clip, is named in a warning and left out; `skipped` holds what
    was wrong with each, and a run ends with their number. Only the head and one frame are tried beforehand, so a batch
    may have fewer clips than others, or none. Batches are clips (b, c, frames, height, width), labels (b)
    and frames per second, in the form that the model is made for.

    Args:
        root: Folder of the files.
        clip_size: (frames, height, width), if other than what the model is made for.
        fps: Frames per second, if other than what the model is made for.
        augment: Whether training clips are cut at random, all frames alike.
        mirror: Whether they are mirrored too, where left and right make no difference to the class.
        batch_size: Clips per training step on each device.
        num_workers: Processes that decode; with 0 the training process does.
        limit: Most clips of each part.

    Raises:
        ValueError: If a number is out of range.
    """

    def __init__(
        self,
        root: str = "data",
        clip_size: tuple[int, int, int] | None = None,
        fps: float | None = None,
        augment: bool = True,
        mirror: bool = False,
        batch_size: int = 8,
        num_workers: int = 0,
        limit: int | None = None,
    ):
        super().__init__()
        least = {"batch_size": (batch_size, 1), "num_workers": (num_workers, 0), "limit": (limit, 1)}
        for name, (number, bound) in least.items():
            if number is not None and number < bound:
                raise ValueError(f"{name} ({number}) must be at least {bound}")
        if fps is not None and not 0 < fps < float("inf"):
            raise ValueError(f"fps ({fps}) must be positive")
        if clip_size is not None and (len(clip_size) != 3 or min(clip_size) < 1):
            raise ValueError(f"clip_size must be three positive integers (frames, height, width), got {clip_size!r}")
        self.root, self.clip_size, self.fps = Path(root).expanduser(), clip_size, fps
        self.look, self.augment = COLOUR._replace(mirror=mirror), augment
        self.batch_size, self.num_workers, self.limit = batch_size, num_workers, limit
        self.classes: tuple[str, ...] = ()
        self.parts: dict[str, ClipFiles] = {}
        self.skipped: dict[Path, str] = {}
        self.seen = self.said = 0

    def setup(self, stage: str | None = None) -> None:
        """Finds the clips and leaves out those whose head or first frame cannot be read, once."""
        if self.parts:
            return
        import_av()
        folders = part_folders(self.root, type(self).__name__)
        self.classes = tuple(list_folders(folders["train"]))
        parts = {part: self._find(part, folder) for part, folder in folders.items()}
        for part in ("test", "val"):
            if part not in parts:
                if len(parts["train"].labels) < 2:
                    raise ValueError(f"root ({self.root}) has too few clips to set some aside for {part}")
                parts["train"], parts[part] = set_aside(parts["train"])
        self.parts = parts

    def train_dataloader(self) -> DataLoader[Any]:
        """Shuffled and augmented."""
        return self._loader(self.parts["train"], train=True)

    def val_dataloader(self) -> DataLoader[Any]:
        """What the checkpoint is chosen by."""
        return self._loader(self.parts["val"])

    def test_dataloader(self) -> DataLoader[Any]:
        """What nothing is chosen by."""
        return self._loader(self.parts["test"])

    def predict_dataloader(self) -> DataLoader[Any]:
        """The test clips again."""
        return self._loader(self.parts["test"])

    @property
    def form(self) -> ClipForm:
        """What clips are like."""
        frames, height, width = self._expected("clip_size", self.clip_size)
        return ClipForm(frames, (height, width), self._expected("fps", self.fps))

    def evaluation_loader(
        self,
        part: Literal["train", "val", "test"],
        form: ClipForm | None = None,
        *,
        shuffled: bool = False,
        limit: int | None = None,
    ) -> DataLoader[Any]:
        """The middle of each clip in another form; one that is shorter is left out of that form.

        Args:
            part: Whose clips.
            form: Another number of frames, another size or another rate.
            shuffled: Whether the frames of each clip are in an order of chance, the same always.
            limit: Most clips, spread over the classes.
        """
        return self._loader(limit_samples(self.parts[part], limit), check_form(form or self.form), shuffled=shuffled)

    def file_loader(self, names: Sequence[str | Path], form: ClipForm, channels: int) -> DataLoader[Any]:
        """The middle of each clip that is named or lies in a folder, in their order; the labels mean nothing.

        Raises:
            FileNotFoundError: If there is no such file or folder, or no clip in a folder.
        """
        import_av()
        paths = find_files(names, find_clips, f"clips ({', '.join(CLIP_EXTENSIONS)})")
        return self._loader(ClipFiles(paths, torch.zeros(len(paths)).long()), form, channels=channels)

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Names the clips that could not be decoded and goes on with the others.

        Raises:
            OSError: If no clip of a part is left.
        """
        for path, error in batch.errors.items():
            self._skip(path, error)
        if not batch.paths:
            for part, files in self.parts.items():
                if all(path in self.skipped for path in files.paths):
                    raise OSError(
                        f"none of the {len(files.paths)} clips of {part} can be decoded; the last: "
                        f"{self.skipped[files.paths[-1]]}"
                    )
        return batch[:3]

    def teardown(self, stage: str) -> None:
        """Says how many clips were left out, if there are more than were said."""
        if len(self.skipped) > self.said:
            self.said = len(self.skipped)
            _warn(f"{self.said} of {self.seen} clips below {self.root} were skipped: {listed(list(self.skipped))}")

    def _find(self, part: str, folder: Path) -> ClipFiles:
        """The clips of a part, as many as are wanted, without those that cannot be read."""
        paths, labels = label_files(part, folder, self.classes, find_clips, what="clips", example="cat/1.mp4")
        files = limit_samples(ClipFiles(paths, torch.tensor(labels)), self.limit)
        errors = [check_clip(path, self._sampling()) for path in files.paths]
        self.seen += len(errors)
        for path, error in zip(files.paths, errors, strict=True):
            if error is not None:
                self._skip(path, error)
        whole = files.take(torch.tensor([error is None for error in errors]).nonzero()[:, 0])
        if not whole.paths:
            raise OSError(f"none of the {len(errors)} clips below {folder} can be read; the last: {errors[-1]}")
        if part == "train" and (gone := set(files.labels.tolist()) - set(whole.labels.tolist())):
            names = ", ".join(self.classes[label] for label in sorted(gone))
            raise OSError(f"{folder} has no clip of {names} that can be read; see the warnings")
        return whole

    def _skip(self, path: Path, error: str) -> None:
        if path not in self.skipped:
            self.skipped[path] = error
            _warn(f"skipped: {error}")

    def _sampling(self, *, shuffle: bool = False) -> Sampling:
        return Sampling(self.form.frames, self.form.fps, shuffle)

    def _expected(self, name: str, given: Any) -> Any:
        """What is given, else what the model that is trained expects."""
        module = None if self.trainer is None else self.trainer.lightning_module
        expected = given if given is not None or module is None else module.hparams.get(name)
        if expected is None:
            raise ValueError(f"{name} (None) must be given: clips differ in it, and no model is attached")
        return expected

    def _loader(
        self,
        files: ClipFiles,
        form: ClipForm | None = None,
        *,
        train: bool = False,
        shuffled: bool = False,
        channels: int | None = None,
    ) -> DataLoader[Any]:
        frames, height, width = (form := form or self.form).clip_size
        module = None if self.trainer is None else self.trainer.lightning_module
        if channels is None:
            channels = 3 if module is None else module.hparams["in_chans"]
        transform = picture_transform(self.look, (height, width), channels, augment=train and self.augment)
        shape = (channels, frames, height, width)
        return make_loader(
            Clips(files, Sampling(frames, form.fps, train), transform, shape, shuffled=shuffled),
            batch_size=self.batch_size,
            num_workers=self.num_workers,
            shuffle=train,
            trainer=self.trainer,
        )


class Clips(Dataset[Any]):
    """Files in batches of clips of a shape (c, frames, height, width), with their frames in an order of chance or not.

    One that cannot be decoded is left out, and its error kept.
    """

    def __init__(
        self,
        files: ClipFiles,
        sampling: Sampling,
        transform: Transform,
        shape: tuple[int, int, int, int],
        *,
        shuffled: bool = False,
    ):
        self.files, self.sampling, self.transform, self.shape = files, sampling, transform, shape
        self.shuffled = shuffled

    def __len__(self) -> int:
        return len(self.files.paths)

    def __getitems__(self, numbers: list[int]) -> ClipBatch:
        """The batch of these files."""
        clips, rows, errors = [], [], {}
        for number in numbers:
            path = self.files.paths[number]
            try:
                clip = self.transform(read_clip(path, self.sampling)).transpose(0, 1)
            except OSError as error:
                errors[path] = str(error)
                continue
            if self.shuffled:
                clip = clip[:, torch.randperm(clip.shape[1], generator=torch.Generator().manual_seed(number))]
            clips.append(clip)
            rows.append(number)
        files = self.files.take(torch.tensor(rows, dtype=torch.int64))
        batch = torch.stack(clips) if clips else torch.empty(0, *self.shape)
        return ClipBatch(batch, files.labels, self.sampling.fps, errors, files.paths)


def listed(paths: Sequence[Path], most: int = 5) -> str:
    """The first paths and how many more there are."""
    return ", ".join(map(str, paths[:most])) + (f" and {len(paths) - most} more" if len(paths) > most else "")


def _warn(message: str) -> None:
    logging.getLogger(__name__).warning(message)
