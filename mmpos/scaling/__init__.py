"""Scalings: a spectrum trained on one length or grid, mapped to one for a longer context or a finer grid.

A scaling is a value. It changes the frequency of a pair on one axis, so one may serve all axes or each have its own.
"""

import math
from collections.abc import Sequence
from decimal import localcontext

from ..frequencies import Pair, Spectrum
from ..phases import DIGITS
from .base import Scaling
from .by_length import DynamicNTK, Growing, LongRoPE, Switched
from .fixed import NTK, ClipLow, Llama3, PositionInterpolation, Proportional, RIFLEx, YaRN

__all__ = [
    "NTK",
    "ClipLow",
    "DynamicNTK",
    "Llama3",
    "LongRoPE",
    "PositionInterpolation",
    "Proportional",
    "RIFLEx",
    "Scaling",
    "YaRN",
    "scale_spectrum",
]


def scale_spectrum(spectrum: Spectrum, scalings: Sequence[Scaling | None]) -> Spectrum | Switched | Growing:
    """The spectrum with the scaling of each axis, as something that gives cosines and sines.

    Raises:
        ValueError: If a scaling cannot be had for this spectrum, or two different ones depend on the length.
    """
    by_length = {each for each in scalings if isinstance(each, DynamicNTK | LongRoPE)}
    if len(by_length) > 1:
        raise ValueError(f"only one scaling may depend on the length, got {by_length}")
    scaled = _scaled(spectrum, scalings)
    match next(iter(by_length), None):
        case LongRoPE() as scaling:
            long = [each.long() if isinstance(each, LongRoPE) else each for each in scalings]
            return Switched(scaled, _scaled(spectrum, long), scaling.train_length)
        case DynamicNTK() as scaling:
            return Growing(scaled, scaling, tuple(each is not None and each == scaling for each in scalings))
    return scaled


def _scaled(spectrum: Spectrum, scalings: Sequence[Scaling | None]) -> Spectrum:
    def scale(pair: Pair) -> Pair:
        freqs, factors = list(pair.freqs), {}
        for axis, scaling in enumerate(scalings):
            if scaling is not None and freqs[axis]:
                freqs[axis] = scaling.frequency(freqs[axis], pair.place)
                factors[scaling] = scaling.attention()
        return pair._replace(freqs=tuple(freqs), factor=math.prod(factors.values(), start=pair.factor))

    with localcontext(prec=DIGITS):
        return spectrum.map(scale)
