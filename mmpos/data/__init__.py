"""A LightningDataModule per modality."""

from mmpos.data.image import Digits
from mmpos.data.text import TextBytes
from mmpos.data.vision import CIFAR10, CIFAR100, MNIST, FashionMNIST, ImageFolder

__all__ = ["CIFAR10", "CIFAR100", "MNIST", "Digits", "FashionMNIST", "ImageFolder", "TextBytes"]
