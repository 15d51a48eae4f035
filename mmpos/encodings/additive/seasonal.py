"""Seasons: harmonics of the day, the week, the year or of any other period."""

from collections.abc import Sequence
from decimal import Decimal

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from ...frequencies import block_spectrum, periods_of_axes, season_waves
from ..base import AdditiveEncoding
from ..checks import check_coords, check_length, check_positive

Period = float | Decimal


class Seasonal(AdditiveEncoding):
    """Sine and cosine of ``2 pi k coords[a] / period`` for ``k = 1 .. harmonics`` of every period: a Fourier series.

    By default coordinates are turns, as `calendar_coords` gives them, whose months and years have their true lengths.
    With elapsed time name the periods: ``Seasonal(periods=(86400, 604800))`` for a day and a week in seconds. Phases
    are exact however long ago 1970 was, and an instant has the same features in every window.

    Args:
        dim: Channels of a token; a learned linear map takes the features to as many. None: the features themselves,
            two for each wave, with nothing to learn.
        periods: Periods in coordinate units: one for all axes; several for a single axis; or a sequence for each axis.
        axes: Axes of the coordinates.
        harmonics: Waves of each period, or a number for each. Features are in the order of axes, periods and
            harmonics, each sine then cosine.

    Raises:
        ValueError: If a size, a period or a number of harmonics is not positive, or they do not fit each other.
        TypeError: If they are not numbers.

    Example:
        >>> times = torch.tensor([1709164800, 1711846800])  # 2024-02-29 00:00 and 2024-03-31 01:00 UTC
        >>> turns = calendar_coords(times, ["fraction_of_day", "fraction_of_year"], timezone="Europe/Berlin")
        >>> Seasonal(axes=2, harmonics=(4, 10))(turns).shape
        torch.Size([2, 28])
        >>> Seasonal(dim=384, periods=(86400, 604800))(time_coords(times)).shape
        torch.Size([2, 384])

    Reference:
        Taylor and Letham, Forecasting at scale (Prophet), 2017, sec. 3.2. https://doi.org/10.7287/peerj.preprints.3190
    """

    def __init__(
        self,
        dim: int | None = None,
        periods: Period | Sequence[Period] | Sequence[Sequence[Period]] = 1.0,
        axes: int = 1,
        *,
        harmonics: int | Sequence[int] = 4,
    ):
        super().__init__()
        check_positive("dim", 1 if dim is None else dim)
        check_positive("axes", axes)
        self.axes, self.periods = axes, periods_of_axes(periods, axes)
        self.harmonics = tuple(harmonics) if isinstance(harmonics, Sequence) else harmonics
        self.spectrum = block_spectrum(season_waves(self.periods, harmonics))
        num_features = 2 * len(self.spectrum.heads[0])
        self.dim = num_features if dim is None else dim
        self.proj = None if dim is None else nn.Linear(num_features, dim)

    def reset_parameters(self) -> None:
        """Draws the linear map anew, if there is one."""
        if self.proj is not None:
            self.proj.reset_parameters()

    def forward(
        self, coords: Shaped[Tensor, "*batch n a"], *, length: int | Int[Tensor, "*rows"] | None = None
    ) -> Float[Tensor, "*batch n dim"]:
        check_coords(coords, self.axes, owner="Seasonal(axes={axes})")
        check_length(length)
        cos, sin = self.spectrum.cos_sin(coords)
        features = torch.stack([sin, cos], dim=-1).squeeze(-4).flatten(-2)
        return features if self.proj is None else self.proj(features.to(self.proj.weight.dtype))

    def extra_repr(self) -> str:
        return f"dim={self.dim}, periods={self.periods}, axes={self.axes}, harmonics={self.harmonics}"
