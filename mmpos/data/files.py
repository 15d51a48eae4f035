"""Picture files that a user names, for prediction."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from .loaders import make_loader
from .readers import PictureReader
from .samples import Transform
from .transforms import Look, Size, parse_size, picture_transform


@runtime_checkable
class PictureData(Protocol):
    """Data that knows how to read a picture file as its own images."""

    batch_size: int

    def picture_loader(self, image_size: Size, channels: int) -> Callable[[Path], Tensor]: ...


class FileBatch(NamedTuple):
    """Images of files, and what is wrong with the files that have none."""

    images: Float[Tensor, "b c height width"] | Float[Tensor, "0"]
    paths: list[Path]
    errors: dict[Path, str]


class PictureFiles(Dataset[Any]):
    """Files in batches of images; one that cannot be read is left out, and its error kept."""

    def __init__(self, paths: Sequence[Path], load: Callable[[Path], Float[Tensor, "c height width"]]):
        self.paths, self.load = paths, load

    def __len__(self) -> int:
        return len(self.paths)

    def __getitems__(self, numbers: list[int]) -> FileBatch:
        """The batch of these files."""
        images, paths, errors = [], [], {}
        for path in (self.paths[number] for number in numbers):
            try:
                images.append(self.load(path))
                paths.append(path)
            except OSError as error:
                errors[path] = str(error)
        return FileBatch(torch.stack(images) if images else torch.empty(0), paths, errors)


def file_loader(files: PictureFiles, *, batch_size: int, num_workers: int = 0) -> DataLoader[Any]:
    """A loader of the files in their order."""
    return make_loader(files, batch_size=batch_size, num_workers=num_workers)


def picture_loader(look: Look, image_size: Size, channels: int) -> Callable[[Path], Float[Tensor, "c height width"]]:
    """What makes of a file an image that looks as those of a set, of this size and in so many channels."""
    transform = picture_transform(look, parse_size("image_size", image_size), channels, augment=False)
    return partial(_load, read=PictureReader(len(look.mean)), transform=transform)


def _load(path: Path, read: PictureReader, transform: Transform) -> Float[Tensor, "c height width"]:
    return transform(read(path))
