"""What happens to an image between its file and the model."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Int64, Shaped, UInt8
from torch import Tensor
from torch.nn.functional import pad
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from .samples import Transform

Size = int | str | Sequence[int]
"""A side of a square or (height, width), in pixels; as text "28" or "28x56"."""


class Look(NamedTuple):
    """How the images of a set look, and what of it training may change.

    Args:
        mean: Mean of each channel, from 0 to 1.
        std: Standard deviation of each channel.
        mirror: Whether a mirrored image is of the same class.
        margin: Pixels by which a training image is shifted at most, either way on both axes.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    mirror: bool
    margin: int = 0


def batch_transform(look: Look, size: tuple[int, int], channels: int, *, augment: bool) -> Transform:
    """For a batch of images that are all of one size: what is random is drawn for each of them."""
    change = [partial(shift_and_mirror, look=look)] if augment else []
    return v2.Compose([*change, v2.Resize(size, antialias=True), *_finish(look, channels)])


def picture_transform(look: Look, size: tuple[int, int], channels: int, *, augment: bool) -> Transform:
    """For pictures one by one: a random part in training, else all that has the ratio of the sides of ``size``."""
    change = [v2.RandomResizedCrop(size, antialias=True)] if augment else [partial(cover, size=size)]
    mirror = [v2.RandomHorizontalFlip()] if augment and look.mirror else []
    return v2.Compose([*change, *mirror, *_finish(look, channels)])


def shift_and_mirror(images: UInt8[Tensor, "b c height width"], look: Look) -> UInt8[Tensor, "b c height width"]:
    """`RandomCrop` with a margin of zeros and `RandomHorizontalFlip`, drawn for each image.

    Those of torchvision draw once for a batch, and image by image they take longer than a small model.
    """
    shifts = torch.randint(-look.margin, look.margin + 1, (2, len(images)))
    images = shift_images(images, shifts)
    if not look.mirror:
        return images
    return torch.where(torch.rand(len(images), 1, 1, 1) < 0.5, images.flip(-1), images)


def shift_images(
    images: Shaped[Tensor, "b c height width"], shifts: Int64[Tensor, "2 b"], background: float = 0.0
) -> Shaped[Tensor, "b c height width"]:
    """Images moved by so many pixels, down and to the right; what comes in from outside is background.

    Example:
        >>> image = torch.tensor([[[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]]])
        >>> shift_images(image, torch.tensor([[1], [-1]]))
        tensor([[[[0., 0., 0.],
                  [2., 3., 0.]]]])
    """
    reach = int(shifts.abs().max())
    height, width = images.shape[-2:]
    windows = pad(images, (reach,) * 4, value=background).unfold(2, height, 1).unfold(3, width, 1)
    down, right = reach - shifts.to(images.device)
    return windows[torch.arange(len(images), device=images.device), :, down, right]


def cover(picture: UInt8[Tensor, "*c y x"], size: tuple[int, int]) -> UInt8[Tensor, "*c height width"]:
    """The picture resized until it just covers the size, and the middle of it; its sides keep their ratio."""
    height, width = picture.shape[-2:]
    scale = max(size[0] / height, size[1] / width)
    covering = [max(round(height * scale), size[0]), max(round(width * scale), size[1])]
    return F.center_crop(F.resize(picture, covering, antialias=True), list(size))


def parse_size(name: str, size: Size) -> tuple[int, int]:
    """Height and width.

    Raises:
        ValueError: If they are not positive integers.

    Example:
        >>> parse_size("image_size", 28), parse_size("image_size", "28x56")
        ((28, 28), (28, 56))
    """
    sides = size.split("x") if isinstance(size, str) else [size] if isinstance(size, int) else list(size)
    try:
        height, width = (int(side) for side in (sides * 2 if len(sides) == 1 else sides))
    except ValueError:
        height = width = 0
    if min(height, width) < 1:
        raise ValueError(f"{name} must be a positive integer or (height, width), got {size!r}")
    return height, width


def _finish(look: Look, channels: int) -> list[v2.Transform]:
    """From bytes to numbers of mean 0 and deviation 1, in so many channels."""
    steps = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(look.mean, look.std)]
    if channels != len(look.mean):
        steps.append(v2.Grayscale() if channels == 1 else v2.RGB())
    return steps
