"""LightningModules, one for each modality's task, and callbacks."""

from .image import ImageClassifier
from .lengths import LengthEvaluation
from .resolution import ResolutionEvaluation
from .series import ForecastModel, SequenceClassifier
from .text import LanguageModel

__all__ = [
    "ForecastModel",
    "ImageClassifier",
    "LanguageModel",
    "LengthEvaluation",
    "ResolutionEvaluation",
    "SequenceClassifier",
]
