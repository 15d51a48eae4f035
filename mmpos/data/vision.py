"""Images through torchvision: sets that it can download, and folders of pictures."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader
from torchvision import datasets

from .files import picture_loader
from .loaders import make_loader
from .readers import PictureReader, find_pictures, label_files, list_folders, part_folders, read_idx
from .samples import Batches, InMemory, OnDisk, Samples, limit_samples, set_aside
from .transforms import Look, Size, batch_transform, parse_size, picture_transform


class VisionData(LightningDataModule, ABC):
    """Labelled images in batches (b, c, height, width) and labels (b), about 0 with a deviation of 1.

    Where a set has no images to choose a checkpoint by, a tenth of those for training is set aside, the same whatever
    the training seed. Images come in the size and the channels that the model is made for.

    Args:
        root: Folder of the files.
        download: Whether torchvision downloads what ``root`` does not have.
        image_size: A side or (height, width) in pixels, if other than what the model is made for.
        augment: Whether training images are shifted or cut at random, and mirrored where that keeps the class.
        batch_size: Images per training step on each device.
        num_workers: Processes that load images; with 0 the training process does.
        limit: Most images of each part.

    Raises:
        ValueError: If a number is out of range.
    """

    look: ClassVar[Look]
    classes: tuple[str, ...] = ()
    """Names of the classes, in the order of labels; known after `setup`."""

    def __init__(
        self,
        root: str = "data",
        download: bool = False,
        image_size: int | tuple[int, int] | None = None,
        augment: bool = True,
        batch_size: int = 128,
        num_workers: int = 0,
        limit: int | None = None,
    ):
        super().__init__()
        least = {"batch_size": (batch_size, 1), "num_workers": (num_workers, 0), "limit": (limit, 1)}
        for name, (number, bound) in least.items():
            if number is not None and number < bound:
                raise ValueError(f"{name} ({number}) must be at least {bound}")
        self.root, self.download, self.augment = Path(root).expanduser(), download, augment
        self.image_size = None if image_size is None else parse_size("image_size", image_size)
        self.batch_size, self.num_workers, self.limit = batch_size, num_workers, limit
        self.parts: dict[str, Samples] = {}

    @abstractmethod
    def read(self) -> dict[str, Samples]:
        """Sets `classes` and returns what ``root`` has of "train", "val" and "test"."""

    @abstractmethod
    def fetch(self) -> None:
        """Downloads the files into ``root``."""

    def prepare_data(self) -> None:
        """Downloads what is missing, if that is wanted."""
        if self.download:
            try:
                self.read()
            except FileNotFoundError:
                try:
                    self.fetch()
                except (OSError, RuntimeError) as error:  # torchvision raises either
                    raise OSError(f"{type(self).__name__} cannot be downloaded to {self.root}: {error}") from error

    def setup(self, stage: str | None = None) -> None:
        """Finds or reads the images, once."""
        channels = self._expected("in_chans", len(self.look.mean))
        if channels not in (1, 3):
            raise ValueError(f"in_chans ({channels}) must be 1 or 3, for images are grey or in colour")
        if self.parts:
            return
        parts = self.read()
        for part in ("test", "val"):
            if part not in parts:
                if len(parts["train"].labels) < 2:
                    raise ValueError(f"root ({self.root}) has too few images to set some aside for {part}")
                parts["train"], parts[part] = set_aside(parts["train"])
        self.parts = {part: limit_samples(samples, self.limit) for part, samples in parts.items()}
        if channels != len(self.look.mean):
            is_, expected = ("grey", "colour") if channels == 3 else ("in colour", "grey")
            logging.getLogger(__name__).warning(
                f"{type(self).__name__} is {is_} where the model expects {expected}; its images are converted"
            )

    def train_dataloader(self) -> DataLoader[Any]:
        """Shuffled and augmented."""
        return self._loader(self.parts["train"], self.image_size, train=True)

    def val_dataloader(self) -> DataLoader[Any]:
        """What the checkpoint is chosen by."""
        return self.evaluation_loader("val")

    def test_dataloader(self) -> DataLoader[Any]:
        """What nothing is chosen by."""
        return self.evaluation_loader("test")

    def predict_dataloader(self) -> DataLoader[Any]:
        """The test images again."""
        return self.evaluation_loader("test")

    def evaluation_loader(
        self, part: Literal["val", "test"], image_size: tuple[int, int] | None = None, limit: int | None = None
    ) -> DataLoader[Any]:
        """Images in a fixed order; in another size, or so many of them only, if that is asked for."""
        return self._loader(limit_samples(self.parts[part], limit), image_size or self.image_size)

    def picture_loader(self, image_size: Size, channels: int) -> Callable[[Path], Float[Tensor, "c height width"]]:
        """What makes an image of a file as a model for this size and so many channels takes it."""
        return picture_loader(self.look, self.image_size or image_size, channels)

    def _loader(self, samples: Samples, image_size: tuple[int, int] | None, *, train: bool = False) -> DataLoader[Any]:
        size = image_size or self._expected("image_size", None)
        if size is None:
            if not isinstance(samples, InMemory):
                raise ValueError("image_size (None) must be given: pictures differ in size, and no model is attached")
            size = tuple(samples.images.shape[-2:])
        make = batch_transform if isinstance(samples, InMemory) else picture_transform
        channels = self._expected("in_chans", len(self.look.mean))
        transform = make(self.look, parse_size("image_size", size), channels, augment=train and self.augment)
        return make_loader(
            Batches(samples, transform),
            batch_size=self.batch_size,
            num_workers=self.num_workers,
            shuffle=train,
            trainer=self.trainer,
        )

    def _expected(self, name: str, default: Any) -> Any:
        """What the model that is trained expects; the default without one."""
        module = None if self.trainer is None else self.trainer.lightning_module
        return default if module is None else module.hparams.get(name, default)


class MNIST(VisionData):
    """MNIST: 60,000 and 10,000 handwritten digits, grey, 28 x 28.

    Reference:
        LeCun et al., Gradient-based learning applied to document recognition, 1998.
    """

    look = Look(mean=(0.1307,), std=(0.3081,), mirror=False, margin=2)
    classes = tuple("0123456789")

    def read(self) -> dict[str, Samples]:
        return _read_idx_files(self.root, "MNIST")

    def fetch(self) -> None:
        datasets.MNIST(self.root, download=True)


class FashionMNIST(VisionData):
    """Fashion-MNIST: 60,000 and 10,000 pieces of clothing, grey, 28 x 28.

    ``root`` may be ``/usr/share/datasets/fashion-mnist``, which Debian's package ``dataset-fashion-mnist`` fills.

    Reference:
        Xiao et al., Fashion-MNIST, 2017. https://arxiv.org/abs/1708.07747
    """

    look = Look(mean=(0.2860,), std=(0.3530,), mirror=True, margin=2)
    classes = (
        "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"
    )  # fmt: skip

    def read(self) -> dict[str, Samples]:
        return _read_idx_files(self.root, "FashionMNIST")

    def fetch(self) -> None:
        datasets.FashionMNIST(self.root, download=True)


class CIFAR10(VisionData):
    """CIFAR-10: 50,000 and 10,000 photographs in colour, 32 x 32.

    Reference:
        Krizhevsky, Learning multiple layers of features from tiny images, 2009.
    """

    look = Look(mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616), mirror=True, margin=4)

    def read(self) -> dict[str, Samples]:
        self.classes, parts = _read_cifar(datasets.CIFAR10, self.root)
        return parts

    def fetch(self) -> None:
        datasets.CIFAR10(self.root, download=True)


class CIFAR100(VisionData):
    """CIFAR-100: the same of 100 classes.

    Reference:
        Krizhevsky, Learning multiple layers of features from tiny images, 2009.
    """

    look = Look(mean=(0.5071, 0.4865, 0.4409), std=(0.2673, 0.2564, 0.2762), mirror=True, margin=4)

    def read(self) -> dict[str, Samples]:
        self.classes, parts = _read_cifar(datasets.CIFAR100, self.root)
        return parts

    def fetch(self) -> None:
        datasets.CIFAR100(self.root, download=True)


class ImageFolder(VisionData):
    """Pictures of any size in a folder for each class, read from disk as they are needed.

    In ``root`` are either the folders of the classes, or the folders ``train`` and ``val`` or ``test`` or both with
    those of the classes in them. With no ``test``, ``val`` is the test; what is missing is set aside from the training
    pictures. In training a random part of a picture is seen, in evaluation as much of its middle as has the ratio of
    the sides of ``image_size``.
    """

    look = Look(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), mirror=True)

    def read(self) -> dict[str, Samples]:
        folders = part_folders(self.root, type(self).__name__)
        self.classes = tuple(list_folders(folders["train"]))
        read = PictureReader(len(self.look.mean))
        return {part: self._list(part, folder, read) for part, folder in folders.items()}

    def fetch(self) -> None:
        raise OSError("ImageFolder has no place to download from")

    def _list(self, part: str, folder: Path, read: PictureReader) -> OnDisk:
        paths, labels = label_files(part, folder, self.classes, find_pictures)
        return OnDisk(paths, torch.tensor(labels), read)


def _read_idx_files(root: Path, name: str) -> dict[str, Samples]:
    """Training and test images, in the folder itself or where torchvision puts them, packed or not."""
    parts: dict[str, Samples] = {}
    for part, prefix in (("train", "train"), ("test", "t10k")):
        images, labels = (
            read_idx(_find(root, name, f"{prefix}-{what}-ubyte")) for what in ("images-idx3", "labels-idx1")
        )
        if images.ndim != 3 or labels.shape != images.shape[:1]:
            raise ValueError(
                f"{prefix} files in {root} should have images (n, y, x) and labels (n), got {tuple(images.shape)} and "
                f"{tuple(labels.shape)}"
            )
        parts[part] = InMemory(images[:, None], labels.long())
    return parts


def _find(root: Path, name: str, file: str) -> Path:
    for path in (root / file, root / name / "raw" / file):
        for found in (path, path.with_name(f"{file}.gz")):
            if found.is_file():
                return found
    raise FileNotFoundError(_missing(root, name, f"{file}.gz"))


def _read_cifar(dataset: type[datasets.CIFAR10], root: Path) -> tuple[tuple[str, ...], dict[str, Samples]]:
    try:
        sets = {"train": dataset(root, train=True), "test": dataset(root, train=False)}
    except RuntimeError as error:
        raise FileNotFoundError(_missing(root, dataset.__name__, dataset.base_folder)) from error
    parts: dict[str, Samples] = {
        part: InMemory(torch.from_numpy(own.data).permute(0, 3, 1, 2).contiguous(), torch.tensor(own.targets))
        for part, own in sets.items()
    }
    return tuple(sets["train"].classes), parts


def _missing(root: Path, name: str, file: str) -> str:
    return (
        f"root ({root}) does not have {name} ({file}); point root to where it is, or download it with download=True "
        "(--data.download true)"
    )
