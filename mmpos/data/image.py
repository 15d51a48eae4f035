"""Images for classification."""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

# The split belongs to the data: it is the same whatever seed a training run uses.
SPLIT_SEED = 0
NUM_TEST = 360
VALIDATION_SHARE = 0.1
BACKGROUND = -1.0


class Digits(LightningDataModule):
    """Scikit-learn's handwritten digits: grey images of 8 x 8 pixels in ten classes, with a fixed, stratified split.

    Batches are images (b, 1, 8, 8) and labels (b). All is in memory and nothing is downloaded.

    Args:
        batch_size: Images per training step on each device.
        max_shift: Pixels by which training images are shifted at random, either way on both axes.
    """

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
        return DataLoader(self.parts["train"], batch_size=self.batch_size, shuffle=True)

    def val_dataloader(self) -> DataLoader[Any]:
        """The tenth that chooses the checkpoint, in one batch."""
        return self._whole("val")

    def test_dataloader(self) -> DataLoader[Any]:
        """What nothing is chosen by, in one batch."""
        return self._whole("test")

    def predict_dataloader(self) -> DataLoader[Any]:
        """The test images again."""
        return self._whole("test")

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Shifts training images, on the device they are on."""
        if self.trainer is None or not self.trainer.training or not self.max_shift:
            return batch
        images, labels = batch
        return shift_images(images, torch.randint(2 * self.max_shift + 1, (2, len(images))) - self.max_shift), labels

    def _whole(self, part: str) -> DataLoader[Any]:
        return DataLoader(self.parts[part], batch_size=len(self.parts[part]))


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


def shift_images(
    images: Float[Tensor, "b c height width"], shifts: Int64[Tensor, "2 b"], background: float = BACKGROUND
) -> Float[Tensor, "b c height width"]:
    """Images moved by so many pixels, down and to the right; what comes in from outside is background.

    Example:
        >>> image = torch.tensor([[[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]]])
        >>> shift_images(image, torch.tensor([[1], [-1]]), background=0.0)
        tensor([[[[0., 0., 0.],
                  [2., 3., 0.]]]])
    """
    reach = int(shifts.abs().max())
    height, width = images.shape[-2:]
    windows = F.pad(images, (reach,) * 4, value=background).unfold(2, height, 1).unfold(3, width, 1)
    down, right = reach - shifts.to(images.device)
    return windows[torch.arange(len(images), device=images.device), :, down, right]
