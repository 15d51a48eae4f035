"""A LightningDataModule per modality."""

from mmpos.data.audio import AudioFolder
from mmpos.data.image import Digits
from mmpos.data.moving import MovingDigits
from mmpos.data.questions import PictureQuestions, SoundQuestions
from mmpos.data.series import SeriesData
from mmpos.data.text import TextBytes
from mmpos.data.video import VideoFolder
from mmpos.data.vision import CIFAR10, CIFAR100, MNIST, FashionMNIST, ImageFolder
from mmpos.data.vowels import VowelData

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "MNIST",
    "AudioFolder",
    "Digits",
    "FashionMNIST",
    "ImageFolder",
    "MovingDigits",
    "PictureQuestions",
    "SeriesData",
    "SoundQuestions",
    "TextBytes",
    "VideoFolder",
    "VowelData",
]
