"""Sines and cosines of coordinates."""

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from ...frequencies import check_base
from ...spectra import Axial
from ..base import AdditiveEncoding
from ..checks import check_coords, check_length, check_positive


class Sinusoidal(AdditiveEncoding):
    """Sines and cosines: channels ``2i`` and ``2i + 1`` of an axis hold the sine and cosine of pair ``i``'s angle.

    Every axis has a block of ``width = dim // axes`` channels, in axis order, in which pair ``i`` turns by
    ``coords * base ** (-2i / width)`` radians.

    Args:
        dim: Channels of a token, a multiple of ``2 * axes``.
        axes: Axes of the coordinates.
        base: Pair ``i`` of an axis turns by ``base ** (-2i / width)`` radians per coordinate unit.

    Raises:
        ValueError: If ``dim`` is not a positive multiple of ``2 * axes`` or ``base`` is not positive.

    Example:
        >>> Sinusoidal(dim=384, axes=2)(grid_coords(height=14, width=10)).shape
        torch.Size([140, 384])

    Reference:
        Vaswani et al., Attention is all you need, 2017, sec. 3.5. https://arxiv.org/abs/1706.03762
    """

    def __init__(self, dim: int, axes: int = 1, base: float = 10000.0):
        super().__init__()
        check_positive("dim", dim)
        check_positive("axes", axes)
        check_base(base)
        self.dim, self.axes, self.base = dim, axes, base
        self.spectrum = Axial().spectrum(dim, axes, base, name="dim")

    def forward(
        self, coords: Shaped[Tensor, "*batch n a"], *, length: int | Int[Tensor, "*rows"] | None = None
    ) -> Float[Tensor, "*batch n dim"]:
        check_coords(coords, self.axes, owner="Sinusoidal(axes={axes})")
        check_length(length)
        cos, sin = self.spectrum.cos_sin(coords)
        return torch.stack([sin, cos], dim=-1).flatten(-2).squeeze(-3)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, axes={self.axes}, base={self.base}"
