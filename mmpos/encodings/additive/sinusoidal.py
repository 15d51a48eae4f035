"""Sines and cosines of coordinates."""

import math
from itertools import groupby
from typing import Literal

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from ...arguments import check_choice, check_flag
from ...frequencies import Geometric, Spectrum, check_base
from ...spectra import Axial, Recipe
from ..base import AdditiveEncoding
from ..checks import check_coords, check_length, check_positive, keep_float32

SinusoidLayout = Literal["interleaved", "axis_half", "half"]


class Sinusoidal(AdditiveEncoding):
    """Sine and cosine of the angle ``sum_a coords[a] * freqs[a, p]`` of each channel pair ``p``.

    Unless told otherwise every axis has a block of ``width = dim // axes`` channels, in axis order, in which pair
    ``i`` turns by ``coords[a] * base ** (-2i / width)`` radians. Released weights have their channels in one of three
    orders, here of two pairs on each of the axes y and x::

        layout "interleaved":  sin y0  cos y0  sin y1  cos y1  sin x0  cos x0  sin x1  cos x1    the paper, DETR
        layout "axis_half":    sin y0  sin y1  cos y0  cos y1  sin x0  sin x1  cos x0  cos x1    V-JEPA 2, MAE
        layout "half":         sin y0  sin y1  sin x0  sin x1  cos y0  cos y1  cos x0  cos x1    timm, SAM

    With one axis the last two are the same. MAE and others put x before y: ``spectrum=Axial(order=(1, 0))``. DETR has
    coordinates from 0 to 1 in whole turns: ``spectrum=Axial(series=Periods(1, 10000, endpoint=False))``.

    Args:
        dim: Channels of a token, a multiple of ``2 * axes`` unless the spectrum or ``uneven`` says otherwise.
        axes: Axes of the coordinates.
        base: Pair ``i`` of an axis turns by ``base ** (-2i / width)`` radians per coordinate unit.
        spectrum: How pairs are shared out, in which order and how fast they turn: `Axial`, `Sections`, `Shared` or
            `Given`. Channels that it leaves over are 0.
        layout: The order of channels, see above. "axis_half" halves each run of pairs that turn on the same axes.
        cos_first: Whether cosines go before sines.
        uneven: What to do with any other ``dim``. "odd", for one axis: the published formula with ``width = dim``,
            whose last channel is a sine. "round_up": blocks of ``2 * ceil(dim / (2 * axes))`` channels, of which those
            past ``dim`` are cut off, as positional-encodings and V-JEPA 2 do.
        learned_scale: Whether all is multiplied by one learned number, at first ``dim ** -0.5``, as in x-transformers.

    Raises:
        ValueError: If ``dim`` is not a positive multiple of ``2 * axes`` and nothing allows it, ``base`` is not
            positive, layout or ``uneven`` is unknown, or the spectrum does not fit.
        TypeError: If the spectrum is not a fixed one.

    Example:
        >>> Sinusoidal(dim=384, axes=2)(grid_coords(height=14, width=10)).shape
        torch.Size([140, 384])
        >>> mae = Sinusoidal(dim=384, axes=2, layout="axis_half", spectrum=Axial(order=(1, 0)))

    Reference:
        Vaswani et al., Attention is all you need, 2017, sec. 3.5. https://arxiv.org/abs/1706.03762
    """

    def __init__(
        self,
        dim: int,
        axes: int = 1,
        base: float = 10000.0,
        *,
        spectrum: Recipe | None = None,
        layout: SinusoidLayout = "interleaved",
        cos_first: bool = False,
        uneven: Literal["odd", "round_up"] | None = None,
        learned_scale: bool = False,
    ):
        super().__init__()
        check_positive("dim", dim)
        check_positive("axes", axes)
        check_base(base)
        if not isinstance(spectrum, Recipe | None):
            raise TypeError(f"spectrum must be a fixed one: Axial, Sections, Shared or Given, got {spectrum!r}")
        check_choice("layout", layout, ("interleaved", "axis_half", "half"))
        if not isinstance(uneven, str | None) or uneven not in (None, "odd", "round_up"):
            raise ValueError(f"uneven must be 'odd', 'round_up' or None, got {uneven!r}")
        check_flag("cos_first", cos_first)
        check_flag("learned_scale", learned_scale)
        self.dim, self.axes, self.base, self.spectrum = dim, axes, base, spectrum
        self.layout: SinusoidLayout = layout
        self.cos_first, self.uneven = cos_first, uneven
        self._turns = self._make_spectrum()
        self._blocks = self._pairs_of_blocks()
        self.scale = nn.Parameter(torch.empty(1)) if learned_scale else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Sets a learned scale to where it starts."""
        if self.scale is not None:
            nn.init.constant_(self.scale, self.dim**-0.5)

    def forward(
        self, coords: Shaped[Tensor, "*batch n a"], *, length: int | Int[Tensor, "*rows"] | None = None
    ) -> Float[Tensor, "*batch n dim"]:
        check_coords(coords, self.axes, owner="Sinusoidal(axes={axes})")
        check_length(length)
        cos, sin = (part.squeeze(-3) for part in self._turns.cos_sin(coords))
        encoding = self._fit(self._lay_out(cos, sin) if self.cos_first else self._lay_out(sin, cos))
        return encoding if self.scale is None else encoding * self.scale.float()

    def _lay_out(
        self, first: Float[Tensor, "*batch n p"], second: Float[Tensor, "*batch n p"]
    ) -> Float[Tensor, "*batch n width"]:
        """The channels in their order."""
        if self.layout == "interleaved":
            return torch.stack([first, second], dim=-1).flatten(-2)
        blocks = zip(first.split(self._blocks, dim=-1), second.split(self._blocks, dim=-1), strict=True)
        return torch.cat([part for block in blocks for part in block], dim=-1)

    def _fit(self, encoding: Float[Tensor, "*batch n width"]) -> Float[Tensor, "*batch n dim"]:
        """The first ``dim`` channels, with 0, or NaN where all are, in place of those that are missing."""
        missing = self.dim - encoding.shape[-1]
        if missing <= 0:
            return encoding[..., : self.dim] if missing else encoding
        return nn.functional.pad(encoding, (0, missing)).masked_fill(encoding[..., :1].isnan(), torch.nan)

    def _make_spectrum(self) -> Spectrum:
        recipe, width, unit = self.spectrum or Axial(), self.dim, 2 * self.axes
        if self.uneven == "odd":
            if self.axes != 1 or self.spectrum is not None:
                raise ValueError(
                    f"uneven='odd' is for one axis without a spectrum, got axes={self.axes} and "
                    f"spectrum={self.spectrum}; uneven='round_up' serves all"
                )
            recipe, width = Axial(series=Geometric(self.base, width=self.dim)), self.dim + self.dim % 2
        elif self.uneven == "round_up":
            width = math.ceil(self.dim / unit) * unit
        elif self.spectrum is None and self.dim % unit:
            allowed = "uneven='odd' or 'round_up' allows" if self.axes == 1 else "uneven='round_up' allows"
            raise ValueError(f"dim ({self.dim}) must be a multiple of 2 * axes ({unit}); {allowed} others")
        spectrum = recipe.spectrum(width, self.axes, self.base, name="dim")
        if len(spectrum.heads) != 1:
            raise ValueError(f"the spectrum must be one for all, got one for each of {len(spectrum.heads)} heads")
        return spectrum

    def _pairs_of_blocks(self) -> list[int]:
        """Pairs that the layout halves together."""
        (pairs,) = self._turns.heads
        if self.layout == "half":
            return [len(pairs)]
        return [len(list(run)) for _, run in groupby(pairs, key=lambda pair: [freq != 0 for freq in pair.freqs])]

    def _apply(self, fn, recurse=True):
        """Moves a learned scale with the module but keeps it in float32 when that is cast to half precision."""
        return super()._apply(keep_float32(fn), recurse)

    def extra_repr(self) -> str:
        options = {
            "spectrum": self.spectrum,
            "layout": None if self.layout == "interleaved" else self.layout,
            "cos_first": self.cos_first or None,
            "uneven": self.uneven,
            "learned_scale": True if self.scale is not None else None,
        }
        shown = {"dim": self.dim, "axes": self.axes, "base": self.base} | options
        return ", ".join(f"{name}={value!r}" for name, value in shown.items() if value is not None)
