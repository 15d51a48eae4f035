"""Encodings that add a bias to attention logits."""

from .alibi import ALiBi
from .buckets import T5Bias
from .continuous import ContinuousBias
from .erpe import ERPE
from .group import GroupBias
from .kernels import FIRE, KERPLE
from .periodic import PeriodicBias, sandwich_bias
from .relative import RelativeLogits
from .relative_sinusoids import RelativeSinusoids
from .swin import SwinBias

__all__ = [
    "ERPE",
    "FIRE",
    "KERPLE",
    "ALiBi",
    "ContinuousBias",
    "GroupBias",
    "PeriodicBias",
    "RelativeLogits",
    "RelativeSinusoids",
    "SwinBias",
    "T5Bias",
    "sandwich_bias",
]
