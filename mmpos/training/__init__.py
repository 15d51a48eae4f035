"""LightningModules, one for each modality's task, and callbacks."""

from .image import ImageClassifier
from .lengths import LengthEvaluation
from .multimodal import QuestionModel
from .resolution import ResolutionEvaluation
from .series import ForecastModel, SequenceClassifier
from .sharding import FullyShardedStrategy
from .text import LanguageModel
from .timm import TimmClassifier
from .video import ClipEvaluation, VideoClassifier

__all__ = [
    "ClipEvaluation",
    "ForecastModel",
    "FullyShardedStrategy",
    "ImageClassifier",
    "LanguageModel",
    "LengthEvaluation",
    "QuestionModel",
    "ResolutionEvaluation",
    "SequenceClassifier",
    "TimmClassifier",
    "VideoClassifier",
]
