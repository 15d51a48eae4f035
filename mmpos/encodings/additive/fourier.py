"""Fourier features: sines and cosines of fixed, random and learned frequencies."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from ...arguments import check_flag, check_number
from ...frequencies import Pair, Place, Series, Spectrum, angles
from ...phases import DIGITS, TURN
from ..base import AdditiveEncoding
from ..checks import check_coords, check_length, check_positive, keep_float32
from .finite import finite_or_nan

ORDER = ("axis", "band", "wave")


@dataclass(frozen=True)
class Octaves(Series):
    """Frequencies that double: pair ``i`` turns by ``pi * 2 ** i`` radians per coordinate unit.

    Args:
        times_pi: True: for coordinates from -1 to 1, over which the slowest pair makes one turn, as in NeRF's paper.
            False: pair ``i`` turns by ``2 ** i`` radians, for coordinates from -pi to pi, as in NeRF's released code.

    Example:
        >>> nerf = Fourier(axes=3, num_bands=10, bands=Octaves(), include_coords=True)
        >>> nerf(torch.rand(7, 3)).shape
        torch.Size([7, 63])

    Reference:
        Mildenhall et al., NeRF, 2020, sec. 5.1. https://arxiv.org/abs/2003.08934
    """

    times_pi: bool = True

    def pairs(self, num_pairs: int) -> list[tuple[Decimal, Place | None]]:
        with localcontext(prec=DIGITS):
            slowest = TURN / 2 if self.times_pi else Decimal(1)
            return [(slowest * 2**i, None) for i in range(num_pairs)]


OCTAVES = Octaves()


class Fourier(AdditiveEncoding):
    """Sine and cosine of ``coords[a] * freqs[i]`` for ``num_bands`` fixed frequencies on each axis.

    Bands are made for a range of coordinates: ``sin(pi x)`` at ``x = 0.5`` is 1, ``sin(x)`` is 0.479, and multiples of
    ``pi`` do not tell even numbers apart. `normalise` brings grids to the range from -1 to 1::

        convention           bands                     order             include_coords  coordinates
        NeRF, the paper      Octaves()                 "axis band wave"  False           -1 to 1
        NeRF, its code       Octaves(times_pi=False)   "band wave axis"  True            about -pi to pi
        Perceiver            Bands(side)               "wave axis band"  True            -1 to 1
        timm's FourierEmbed  Bands(224)                "wave band axis"  True            -1 to 1
        timm's, in octaves   Bands(224, "octaves")     "wave band axis"  True            -1 to 1
        timm's, not pixels   Geometric(10000)          "wave band axis"  True            indices from 0

    Args:
        dim: Channels of a token; a learned linear map takes the features to as many. None: the features themselves,
            ``2 * axes * num_bands`` and the coordinates if included, with nothing to learn.
        axes: Axes of the coordinates.
        num_bands: Frequencies on each axis.
        bands: The frequencies, a series such as `Octaves`, `Bands` or `Geometric` for all axes, or one for each.
        include_coords: Whether the coordinates themselves stand in front of the features.
        order: How the features are laid out, from slow to fast: the words axis, band, and wave for sine then cosine.

    Raises:
        ValueError: If a size is not positive, the bands are not one for all axes or one for each, or the order is not
            made of the three words.

    Example:
        >>> coords = normalise(grid_coords(height=14, width=10), (14, 10))
        >>> Fourier(axes=2, num_bands=6, include_coords=True)(coords).shape
        torch.Size([140, 26])
        >>> Fourier(dim=384, axes=2)(coords).shape
        torch.Size([140, 384])

    Reference:
        Mildenhall et al., NeRF, 2020, sec. 5.1. https://arxiv.org/abs/2003.08934
        Jaegle et al., Perceiver, 2021, sec. 3.2. https://arxiv.org/abs/2103.03206
    """

    def __init__(
        self,
        dim: int | None = None,
        *,
        axes: int = 1,
        num_bands: int = 10,
        bands: Series | Sequence[Series] = OCTAVES,
        include_coords: bool = False,
        order: str = "axis band wave",
    ):
        super().__init__()
        for name, size in (("dim", 1 if dim is None else dim), ("axes", axes), ("num_bands", num_bands)):
            check_positive(name, size)
        if not isinstance(order, str) or sorted(order.split()) != sorted(ORDER):
            raise ValueError(f"order must be the words axis, band and wave in any order, got {order!r}")
        check_flag("include_coords", include_coords)
        self.axes, self.num_bands, self.bands = axes, num_bands, bands
        self.include_coords, self.order = include_coords, order
        self.spectrum = _block_spectrum(bands, axes, num_bands)
        num_features = 2 * axes * num_bands + axes * include_coords
        self.dim = num_features if dim is None else dim
        self.proj = None if dim is None else nn.Linear(num_features, dim)

    def reset_parameters(self) -> None:
        """Draws the linear map anew, if there is one."""
        if self.proj is not None:
            self.proj.reset_parameters()

    def forward(
        self, coords: Shaped[Tensor, "*batch n a"], *, length: int | Int[Tensor, "*rows"] | None = None
    ) -> Float[Tensor, "*batch n dim"]:
        check_coords(coords, self.axes, owner="Fourier(axes={axes})")
        check_length(length)
        cos, sin = self.spectrum.cos_sin(coords)
        waves = torch.stack([sin, cos], dim=-1).squeeze(-4).unflatten(-2, (self.axes, self.num_bands))
        features = waves.movedim([ORDER.index(word) - 3 for word in self.order.split()], (-3, -2, -1)).flatten(-3)
        if self.include_coords:
            features = torch.cat([finite_or_nan(coords).to(features.dtype), features], dim=-1)
        return features if self.proj is None else self.proj(features.to(self.proj.weight.dtype))

    def extra_repr(self) -> str:
        parts = ("dim", "axes", "num_bands", "bands", "include_coords", "order")
        return ", ".join(f"{part}={getattr(self, part)!r}" for part in parts)


class GaussianFourier(AdditiveEncoding):
    """Sines, then cosines, of ``2 pi sum_a coords[a] * turns[a, p]`` with random frequencies from ``N(0, sigma^2)``.

    The draw is part of the model: it is saved and loaded as the parameter ``turns``, which takes no gradient unless
    ``learned``. SAM's matrix is ``turns`` with its rows (x, y) in our order: ``matrix.flip(0)``.

    Args:
        dim: Channels of a token, an even number.
        axes: Axes of the coordinates.
        sigma: Standard deviation of the frequencies in turns per coordinate unit. SAM has 1 for coordinates from -1 to
            1; the larger it is, the finer the details that tokens are told apart by.
        learned: Whether the frequencies are trained.

    Raises:
        ValueError: If ``dim`` is not a positive even number, or ``axes`` or ``sigma`` not positive.

    Example:
        >>> coords = normalise(grid_coords(height=14, width=10), (14, 10))
        >>> GaussianFourier(dim=256, axes=2)(coords).shape
        torch.Size([140, 256])

    Reference:
        Tancik et al., Fourier features let networks learn high frequency functions, 2020, sec. 5; cosines come first
        there. https://arxiv.org/abs/2006.10739
        Kirillov et al., Segment anything, 2023, app. A. https://arxiv.org/abs/2304.02643
    """

    def __init__(self, dim: int, *, axes: int = 2, sigma: float = 1.0, learned: bool = False):
        super().__init__()
        check_positive("dim", dim)
        check_positive("axes", axes)
        check_number("sigma", sigma)
        check_flag("learned", learned)
        if dim % 2:
            raise ValueError(f"dim ({dim}) must be even")
        self.dim, self.axes, self.sigma = dim, axes, sigma
        self.turns = nn.Parameter(torch.empty(axes, dim // 2), requires_grad=learned)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the frequencies anew."""
        nn.init.normal_(self.turns, std=self.sigma)

    def forward(
        self, coords: Shaped[Tensor, "*batch n a"], *, length: int | Int[Tensor, "*rows"] | None = None
    ) -> Float[Tensor, "*batch n dim"]:
        check_coords(coords, self.axes, owner="GaussianFourier(axes={axes})")
        check_length(length)
        turns = angles(finite_or_nan(coords).double(), self.turns.double()[None]).squeeze(-3)
        turned = 2 * math.pi * (turns - turns.detach().round())
        return torch.cat([turned.sin(), turned.cos()], dim=-1).to(self.turns.dtype)

    def _apply(self, fn, recurse=True):
        """Moves frequencies with the module but keeps them in float32 when it is cast to half precision."""
        return super()._apply(keep_float32(fn), recurse)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, axes={self.axes}, sigma={self.sigma}, learned={self.turns.requires_grad}"


class LearnableFourier(AdditiveEncoding):
    """A small network on cosines and sines of learned frequencies: ``MLP([cos(x W), sin(x W)] / sqrt(fourier_dim))``.

    Frequencies start as ``N(0, 1 / gamma^2)`` radians per coordinate unit, so that the inner product of the features
    of two places starts as ``exp(-distance^2 / (2 gamma^2)) / 2``: near is alike, in every direction. The network is
    a linear map, GELU and a linear map. Unlike the network, frequencies stay in float32 when the module is cast.

    Args:
        dim: Channels of a token, a multiple of ``groups``.
        axes: Axes of the coordinates, a multiple of ``groups``.
        fourier_dim: Number of cosines and sines, an even number; ``dim`` if None.
        hidden_dim: Width of the hidden layer.
        groups: Groups of as many axes, in order, that share all weights and have a block of channels each; for
            example 2 for the two corners (y, x, y, x) of a box.
        gamma: Distance in coordinate units over which places look alike at the start.

    Raises:
        ValueError: If a size or gamma is not positive, ``fourier_dim`` is odd, or groups do not divide axes or ``dim``.

    Example:
        >>> LearnableFourier(dim=384, axes=2)(grid_coords(height=14, width=10)).shape
        torch.Size([140, 384])

    Reference:
        Li et al., Learnable Fourier features for multi-dimensional spatial positional encoding, 2021, sec. 3.
        https://arxiv.org/abs/2106.02795
    """

    def __init__(
        self,
        dim: int,
        *,
        axes: int = 2,
        fourier_dim: int | None = None,
        hidden_dim: int = 32,
        groups: int = 1,
        gamma: float = 10.0,
    ):
        super().__init__()
        fourier_dim = dim if fourier_dim is None else fourier_dim
        sizes = {"dim": dim, "axes": axes, "fourier_dim": fourier_dim, "hidden_dim": hidden_dim, "groups": groups}
        for name, size in sizes.items():
            check_positive(name, size)
        check_number("gamma", gamma)
        if fourier_dim % 2:
            raise ValueError(f"fourier_dim ({fourier_dim}) must be even")
        for name in ("axes", "dim"):
            if sizes[name] % groups:
                raise ValueError(f"{name} ({sizes[name]}) must be a multiple of groups ({groups})")
        self.dim, self.axes, self.groups, self.gamma = dim, axes, groups, gamma
        self.freqs = nn.Parameter(torch.empty(axes // groups, fourier_dim // 2))
        self._draw()
        self.hidden, self.out = nn.Linear(fourier_dim, hidden_dim), nn.Linear(hidden_dim, dim // groups)

    def reset_parameters(self) -> None:
        """Draws frequencies and network anew."""
        self._draw()
        self.hidden.reset_parameters()
        self.out.reset_parameters()

    def _draw(self) -> None:
        nn.init.normal_(self.freqs, std=1 / self.gamma)

    def forward(
        self, coords: Shaped[Tensor, "*batch n a"], *, length: int | Int[Tensor, "*rows"] | None = None
    ) -> Float[Tensor, "*batch n dim"]:
        check_coords(coords, self.axes, owner="LearnableFourier(axes={axes})")
        check_length(length)
        members, pairs = self.freqs.shape
        grouped = finite_or_nan(coords).double().unflatten(-1, (self.groups, members))
        turned = angles(grouped, self.freqs.double()[None]).squeeze(-3)  # (..., n, groups, pairs)
        features = torch.cat([turned.cos(), turned.sin()], dim=-1) / math.sqrt(2 * pairs)
        return self.out(nn.functional.gelu(self.hidden(features.to(self.hidden.weight.dtype)))).flatten(-2)

    def _apply(self, fn, recurse=True):
        """Casts the network, but keeps frequencies in float32 when the module is cast to half precision."""
        if recurse:
            for layer in self.children():
                layer._apply(fn)
        return super()._apply(keep_float32(fn), recurse=False)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, axes={self.axes}, groups={self.groups}, gamma={self.gamma}"


def _block_spectrum(bands: Series | Sequence[Series], axes: int, num_bands: int) -> Spectrum:
    """A block of ``num_bands`` pairs for each axis, in axis order."""
    series = list(bands) if isinstance(bands, Sequence) else [bands] * axes
    if len(series) != axes:
        raise ValueError(f"bands must be one series for all axes or one for each of {axes}, got {len(series)}")
    for each in series:
        if not isinstance(each, Series):
            raise TypeError(f"bands must be a series such as Octaves, Bands or Geometric, got {each!r}")
    pairs = [
        Pair(tuple(freq if own == axis else Decimal(0) for own in range(axes)), place)
        for axis, each in enumerate(series)
        for freq, place in each.pairs(num_bands)
    ]
    return Spectrum((tuple(pairs),))
