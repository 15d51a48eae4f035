"""A LightningDataModule per modality."""

from mmpos.data.image import Digits
from mmpos.data.series import SeriesData
from mmpos.data.text import TextBytes
from mmpos.data.vision import CIFAR10, CIFAR100, MNIST, FashionMNIST, ImageFolder
from mmpos.data.vowels import VowelData

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "MNIST",
    "Digits",
    "FashionMNIST",
    "ImageFolder",
    "SeriesData",
    "TextBytes",
    "VowelData",
]
