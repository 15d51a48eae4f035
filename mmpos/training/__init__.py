"""LightningModules, one for each modality's task, and callbacks."""

from .image import ImageClassifier
from .lengths import LengthEvaluation
from .resolution import ResolutionEvaluation
from .text import LanguageModel

__all__ = ["ImageClassifier", "LanguageModel", "LengthEvaluation", "ResolutionEvaluation"]
