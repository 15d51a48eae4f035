"""Images for classification."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from .files import picture_loader
from .loaders import make_loader
from .samples import SPLIT_SEED, spread_rows
from .transforms import Look, Size, shift_images

NUM_TEST = 360
VALIDATION_SHARE = 0.1
BACKGROUND = -1.0


class Rows(TensorDataset):
    """Tensors whose rows come in finished batches."""

    def __getitems__(self, rows: list[int]) -> tuple[Tensor, ...]:
        """The batch of these rows."""
        return self[rows]  # pyright: ignore[reportArgumentType]


class Digits(LightningDataModule):
    """Scikit-learn's handwritten digits: grey images of 8 x 8 pixels in ten classes, with a fixed, stratified split.

    Batches are images (b, 1, 8, 8) and labels (b). All is in memory and nothing is downloaded.

    Args:
        batch_size: Images per training step on each device.
        max_shift: Pixels by which training images are shifted at random, either way on both axes.
    """

    classes = tuple("0123456789")

    def __init__(self, batch_size: int = 64, max_shift: int = 1):
        super().__init__()
        if batch_size < 1:
            raise ValueError(f"batch_size ({batch_size}) must be positive")
        if max_shift < 0:
            raise ValueError(f"max_shift ({max_shift}) must not be negative")
        self.batch_size, self.max_shift = batch_size, max_shift
        self.parts: dict[str, TensorDataset] = {}

    def setup(self, stage: str | None = None) -> None:
        """Reads the digits, once."""
        if not self.parts:
            images, labels = load_digits()
            self.parts = {
                part: TensorDataset(images[rows], labels[rows]) for part, rows in split_digits(labels).items()
            }

    def train_dataloader(self) -> DataLoader[Any]:
        """Shuffled; the last batch is smaller."""
        rows = Rows(*self.parts["train"].tensors)
        return make_loader(rows, batch_size=self.batch_size, shuffle=True, trainer=self.trainer)

    def val_dataloader(self) -> DataLoader[Any]:
        """The tenth that chooses the checkpoint, in one batch."""
        return self.evaluation_loader("val")

    def test_dataloader(self) -> DataLoader[Any]:
        """What nothing is chosen by, in one batch."""
        return self.evaluation_loader("test")

    def predict_dataloader(self) -> DataLoader[Any]:
        """The test images again."""
        return self.evaluation_loader("test")

    def evaluation_loader(
        self, part: Literal["val", "test"], image_size: tuple[int, int] | None = None, limit: int | None = None
    ) -> DataLoader[Any]:
        """All images in one batch; in another size, or so many of them only, if that is asked for."""
        images, labels = self.parts[part].tensors
        if limit is not None and limit < len(labels):
            rows = spread_rows(labels, limit)
            images, labels = images[rows], labels[rows]
        if image_size is not None and image_size != images.shape[-2:]:
            images = F.interpolate(images, image_size, mode="bilinear", antialias=True)
        return DataLoader(TensorDataset(images, labels), batch_size=len(labels))

    def picture_loader(self, image_size: Size, channels: int) -> Callable[[Path], Float[Tensor, "c height width"]]:
        """What makes an image of a file, in which ink should be light, as a model for this size takes it."""
        return picture_loader(Look(mean=(0.5,), std=(0.5,), mirror=False), image_size, channels)

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Shifts training images, on the device they are on."""
        if self.trainer is None or not self.trainer.training or not self.max_shift:
            return batch
        images, labels = batch
        shifts = torch.randint(-self.max_shift, self.max_shift + 1, (2, len(images)))
        return shift_images(images, shifts, BACKGROUND), labels


def load_digits() -> tuple[Float[Tensor, "n 1 8 8"], Int64[Tensor, " n"]]:
    """Scikit-learn's 1,797 digits, with ink from -1 (none) to 1, and their classes 0 to 9.

    Example:
        >>> images, labels = load_digits()
        >>> images.shape, labels.shape
        (torch.Size([1797, 1, 8, 8]), torch.Size([1797]))

    Reference:
        Alpaydin and Kaynak, Optical recognition of handwritten digits, 1998. https://doi.org/10.24432/C50P49
    """
    from sklearn import datasets  # slow to import, and other data do without

    pixels, labels = datasets.load_digits(return_X_y=True)
    images = torch.from_numpy(pixels).float().reshape(-1, 1, 8, 8) / 8 + BACKGROUND  # pixels are 0 to 16
    return images, torch.from_numpy(labels).long()


def split_digits(labels: Int64[Tensor, " n"]) -> dict[str, Int64[Tensor, " _"]]:
    """Row numbers of the parts, in each of which a class has the same share.

    360 rows are for the test; a tenth of the others is set aside to choose the checkpoint.

    Example:
        >>> {part: len(rows) for part, rows in split_digits(load_digits()[1]).items()}
        {'train': 1293, 'val': 144, 'test': 360}
    """
    from sklearn.model_selection import train_test_split

    def cut(rows: Tensor, size: float) -> tuple[Tensor, Tensor]:
        first, second = train_test_split(rows.numpy(), test_size=size, stratify=labels[rows], random_state=SPLIT_SEED)
        return torch.from_numpy(first), torch.from_numpy(second)

    rest, test = cut(torch.arange(len(labels)), NUM_TEST)
    train, val = cut(rest, VALIDATION_SHARE)
    return {"train": train, "val": val, "test": test}
