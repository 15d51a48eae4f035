"""From files to tensors: IDX files, pictures, and which files there are."""

import gzip
import logging
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from jaxtyping import UInt8
from PIL import Image, ImageOps
from torch import Tensor
from torchvision.datasets.folder import IMG_EXTENSIONS
from torchvision.transforms.v2.functional import pil_to_tensor

MODES = {1: "L", 3: "RGB"}
UNSIGNED_BYTE = 8


def read_idx(path: Path) -> UInt8[Tensor, "..."]:
    """The bytes of an IDX file, packed by gzip if its name ends in ``.gz``, in the shape that its head says.

    Raises:
        ValueError: If it is not an IDX file of bytes, or is cut short.

    Reference:
        LeCun et al., The MNIST database of handwritten digits, 1998. https://yann.lecun.com/exdb/mnist
    """
    try:
        data = (gzip.decompress if path.suffix == ".gz" else bytes)(path.read_bytes())
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} cannot be unpacked: {error}") from error
    if len(data) < 4 or data[:3] != bytes((0, 0, UNSIGNED_BYTE)):
        raise ValueError(f"{path} is not an IDX file of bytes; it starts with {data[:4].hex()}")
    axes = data[3]
    head = 4 * (1 + axes)
    shape = [int.from_bytes(data[start : start + 4], "big") for start in range(4, head, 4)]
    body = torch.frombuffer(bytearray(data), dtype=torch.uint8)[head:]
    if len(body) != torch.Size(shape).numel():
        raise ValueError(f"{path} should have {shape} bytes but has {len(body)}")
    return body.view(shape)


class PictureReader:
    """Reads picture files as bytes (c, height, width), grey or in colour, upright as their EXIF orientation says.

    A grey picture where colour is expected has three equal channels, one in colour where grey is expected its
    brightness; that this happens is said once, by all copies of a reader in worker processes together.

    Args:
        channels: 1 for grey, 3 for colour.
    """

    def __init__(self, channels: int):
        self.channels = channels
        self.said = torch.zeros(1, dtype=torch.bool).share_memory_()

    def __call__(self, path: Path) -> UInt8[Tensor, "c height width"]:
        """The picture.

        Raises:
            OSError: If the file is not a whole picture; the message names it.
        """
        mode = MODES[self.channels]
        try:
            with Image.open(path) as file:
                picture = ImageOps.exif_transpose(file)
                picture.load()
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:  # what Pillow raises
            raise OSError(f"{path} cannot be read as a picture: {error}") from error
        if picture.mode.startswith("I;16"):  # Pillow would cut off what is above 255
            picture = picture.point(lambda value: value / 256).convert("L")
        self._say(path, grey=picture.mode in ("1", "L", "LA", "La", "I", "F"))
        return pil_to_tensor(picture.convert(mode))

    def _say(self, path: Path, *, grey: bool) -> None:
        if grey != (self.channels == 1) and not self.said:
            self.said.fill_(True)
            is_, expected = ("grey", "colour") if grey else ("in colour", "grey")
            logging.getLogger(__name__).warning(
                f"{path} is {is_} where {expected} is expected; it is converted, and so are others"
            )


def find_pictures(folder: Path) -> list[Path]:
    """Files below a folder whose names end as those of pictures do, sorted."""
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in IMG_EXTENSIONS and path.is_file())


def find_files(
    names: Sequence[str | Path],
    find: Callable[[Path], list[Path]] = find_pictures,
    what: str = f"pictures ({', '.join(IMG_EXTENSIONS)})",
) -> list[Path]:
    """The files that a user names, and those that ``find`` sees below the folders.

    Raises:
        FileNotFoundError: If there is no such file or folder, or nothing in a folder.
    """
    files: list[Path] = []
    for name in names:
        path = Path(name).expanduser()
        found = find(path) if path.is_dir() else [path]
        if not path.exists():
            raise FileNotFoundError(f"files has {str(name)!r}, which does not exist")
        if not found:
            raise FileNotFoundError(f"files has {str(name)!r}, a folder without {what}")
        files += found
    return files


def list_folders(folder: Path) -> list[str]:
    """Names of the folders in a folder, sorted; hidden ones do not count."""
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def part_folders(root: Path, reader: str) -> dict[str, Path]:
    """Folders of the parts: ``train``, ``val`` and ``test`` in ``root``, as far as they are there, else all to train.

    With no ``test``, ``val`` is the test.

    Raises:
        FileNotFoundError: If ``root`` is not a folder.
    """
    if not root.is_dir():
        raise FileNotFoundError(f"root ({root}) is not a folder; {reader} wants one with a folder for each class")
    folders = {part: root / part for part in ("train", "val", "test") if (root / part).is_dir()}
    if "train" not in folders:
        folders = {"train": root}
    if "test" not in folders and "val" in folders:
        folders["test"] = folders.pop("val")
    return folders


def label_files(
    part: str,
    folder: Path,
    classes: Sequence[str],
    find: Callable[[Path], list[Path]],
    *,
    what: str = "pictures",
    example: str = "cat/1.png",
) -> tuple[list[Path], list[int]]:
    """The files in the folders of the classes, and the number of the class of each.

    Raises:
        ValueError: If there is a class that training never sees.
        FileNotFoundError: If there are no files, or none of a class to train on.
    """
    found = {name: find(folder / name) for name in list_folders(folder)}
    known = f"those of training are {', '.join(classes)}"
    if strange := [name for name in found if name not in classes]:
        raise ValueError(f"{folder} has {', '.join(strange)}, a class that training never sees; {known}")
    if not any(found.values()):
        raise FileNotFoundError(f"{folder} has no {what} in folders of classes, such as {folder}/{example}")
    if part == "train" and (empty := [name for name, paths in found.items() if not paths]):
        raise FileNotFoundError(f"{folder} has no {what} of {', '.join(empty)}; {known}")
    labels = [classes.index(name) for name, paths in found.items() for _ in paths]
    return [path for paths in found.values() for path in paths], labels
