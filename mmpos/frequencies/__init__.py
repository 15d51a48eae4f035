"""Spectra: how fast each channel pair turns on each axis, and which axis owns which pair.

A recipe (`Axial`, `Sections`, ...) makes the `Spectrum` of a given width, a value made of Python numbers alone; a
scaling maps a spectrum to a spectrum; `Spectrum.cos_sin` evaluates it exactly.
"""

from .seasons import Seasons, periods_of_axes, season_waves
from .series import Bands, Geometric, Harmonics, Periods, Series, check_base
from .spectrum import Pair, Place, Spectrum, angles, block_spectrum

__all__ = [
    "Bands",
    "Geometric",
    "Harmonics",
    "Pair",
    "Periods",
    "Place",
    "Seasons",
    "Series",
    "Spectrum",
    "angles",
    "block_spectrum",
    "check_base",
    "periods_of_axes",
    "season_waves",
]
