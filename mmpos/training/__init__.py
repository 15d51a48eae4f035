"""LightningModules, one for each modality's task, and callbacks."""

from .image import ImageClassifier
from .resolution import ResolutionEvaluation

__all__ = ["ImageClassifier", "ResolutionEvaluation"]
