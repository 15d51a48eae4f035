"""Bumps: features that are high near a place and low elsewhere."""

from collections.abc import Callable, Sequence
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from ...arguments import check_number
from ..base import AdditiveEncoding
from ..checks import check_coords, check_length, check_positive
from .finite import finite_or_nan

Kernel = Literal["gaussian", "exponential", "indicator"]
KERNELS: dict[str, Callable[[Tensor], Tensor]] = {
    "gaussian": lambda distance: (-distance.square() / 2).exp(),
    "exponential": lambda distance: (-distance).exp(),
    "indicator": lambda distance: (distance < 1).to(distance.dtype),
}
FURTHEST = 2**1023  # what a float holds
FAR = 1024.0  # widths from which every kernel is 0, and no square overflows


class RadialBasis(AdditiveEncoding):
    """A bump for each center and width, ``kernel(|coords[a] - center| / width)``, on a circle or on a line.

    With a period, by default the one turn of `calendar_coords`, bumps stand evenly on a circle: December is near
    January. Without one they stand on a line; those at 0 of several widths turn the distance to an event, as
    `event_coords` gives it, into features: ``RadialBasis(centers=[0], period=None, widths=[1, 3, 7])``.

    Args:
        dim: Channels of a token; a learned linear map takes the features to as many. None: the features themselves, one
            for each axis, center and width, in this order, with nothing to learn.
        axes: Axes of the coordinates; all have the same bumps.
        centers: Places of the bumps in coordinate units, or how many stand evenly on the circle, from 0 on.
        period: Coordinate units round the circle; None for a line.
        widths: Width of the bumps in coordinate units, or several; the distance of neighbours if None.
        kernel: Of the distance ``r`` in widths: "gaussian" ``exp(-r^2 / 2)``, "exponential" ``exp(-r)`` or "indicator",
            1 where ``r < 1`` and 0 elsewhere.

    Raises:
        ValueError: If a size, a width or the period is not positive, the kernel is unknown, a number of centers has no
            period, or places have no widths.
        TypeError: If they are not numbers.

    Example:
        >>> times = torch.tensor([1709164800, 1711846800])  # 2024-02-29 00:00 and 2024-03-31 01:00 UTC
        >>> RadialBasis(axes=2)(calendar_coords(times, ["fraction_of_day", "fraction_of_year"])).shape
        torch.Size([2, 24])

    Reference:
        Of distances to holidays: Alexandrov et al., GluonTS, 2019, and its released code (SpecialDateFeatureSet), whose
        kernels take ``alpha`` for ``1 / width`` or ``1 / (2 width^2)``. https://arxiv.org/abs/1906.05264
    """

    def __init__(
        self,
        dim: int | None = None,
        axes: int = 1,
        *,
        centers: int | Sequence[float] = 12,
        period: float | None = 1.0,
        widths: float | Sequence[float] | None = None,
        kernel: Kernel = "gaussian",
    ):
        super().__init__()
        check_positive("dim", 1 if dim is None else dim)
        check_positive("axes", axes)
        if not isinstance(kernel, str) or kernel not in get_args(Kernel):
            raise ValueError(f"kernel must be one of {', '.join(KERNELS)}, got {kernel!r}")
        if period is not None:
            check_number("period", period)
            period = float(period)
        self.axes, self.period = axes, period
        self.kernel: Kernel = kernel
        self.centers, spacing = _centers(centers, period)
        self.widths = _widths(spacing if widths is None else widths)
        num_features = axes * len(self.centers) * len(self.widths)
        self.dim = num_features if dim is None else dim
        self.proj = None if dim is None else nn.Linear(num_features, dim)

    def reset_parameters(self) -> None:
        """Draws the linear map anew, if there is one."""
        if self.proj is not None:
            self.proj.reset_parameters()

    def forward(
        self, coords: Shaped[Tensor, "*batch n a"], *, length: int | Int[Tensor, "*rows"] | None = None
    ) -> Float[Tensor, "*batch n dim"]:
        check_coords(coords, self.axes, owner="RadialBasis(axes={axes})")
        check_length(length)
        coords = finite_or_nan(coords).double()
        centers, widths = (coords.new_tensor(numbers) for numbers in (self.centers, self.widths))
        distance = self._distance(coords[..., None] - centers)[..., None] / widths  # (..., n, axes, centers, widths)
        bumps = KERNELS[self.kernel](distance.clamp(max=FAR))
        features = bumps.masked_fill(distance.isnan(), torch.nan).flatten(-3).float()
        return features if self.proj is None else self.proj(features.to(self.proj.weight.dtype))

    def _distance(self, offset: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        if self.period is None:
            return offset.abs()
        ahead = offset.remainder(self.period)
        return torch.minimum(ahead, self.period - ahead)

    def extra_repr(self) -> str:
        parts = ("dim", "axes", "centers", "period", "widths", "kernel")
        return ", ".join(f"{part}={getattr(self, part)!r}" for part in parts)


def _centers(centers: int | Sequence[float], period: float | None) -> tuple[tuple[float, ...], float | None]:
    """Places of the bumps, and the distance of neighbours where they stand evenly."""
    if not isinstance(centers, Sequence):
        check_positive("centers", centers)
        if period is None:
            raise ValueError(f"centers ({centers}) stand evenly on a circle; without a period give their places")
        return tuple(period * number / centers for number in range(centers)), period / centers
    for place in centers:
        if isinstance(place, bool) or not isinstance(place, int | float):
            raise TypeError(f"centers must be numbers, got {place!r}")
    if not centers or not all(abs(place) < FURTHEST for place in centers):
        raise ValueError(f"centers must be finite numbers, at least one, got {centers}")
    return tuple(map(float, centers)), None


def _widths(widths: float | Sequence[float] | None) -> tuple[float, ...]:
    if widths is None:
        raise ValueError("widths must be given where centers are places")
    numbers = tuple(widths) if isinstance(widths, Sequence) else (widths,)
    if not numbers:
        raise ValueError(f"widths must be one or more, got {widths}")
    for width in numbers:
        check_number("widths", width)
    return tuple(map(float, numbers))
