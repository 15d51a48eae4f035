"""LightningModules, one for each modality's task."""

from .image import ImageClassifier

__all__ = ["ImageClassifier"]
