"""Attention with linear biases."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from ...arguments import check_flag, check_number, read_numbers
from ..base import AttentionBias
from ..checks import check_pair, check_positive, keep_float32
from .differences import FAR, Coord, Metric, check_metric, check_per, distances, pair_distance, pick, widen


class ALiBi(AttentionBias):
    """Attention with linear biases: minus the head's slope times the distance between query and key.

    The distance is the sum over axes of ``|q_coord - k_coord|``, so the bias is symmetric: keys ahead lose as much as
    keys behind, none gains, and the same module serves encoders and, under the model's causal mask, decoders.

    Distances are real numbers as well. For events, ``per=3600`` with coordinates in seconds makes an hour what a
    position is in text; timestamps of any size are subtracted before anything is rounded.

    Args:
        num_heads: Heads of queries ``h``. Head ``i`` of a power of two has the slope ``2 ** (-8 (i + 1) / h)``; for
            other counts the next lower power of two ``c`` is followed by every other slope of ``2 c`` heads, so
            slopes are not in order.
        axes: Axes of the coordinates.
        metric: "sum" of the axes' absolute differences, "euclidean" or "max".
        per: Coordinate units that count as one position, for all axes or for each.
        max_bias: The 8 in the exponent, MPT's ``alibi_bias_max``.
        slopes: Slopes of the heads, instead of the published ones; not negative.
        learned: Whether slopes are learned, as ``2 ** exponents``, which keeps them positive.

    Raises:
        ValueError: If a size, a unit or ``max_bias`` is not positive, the metric is unknown, or slopes do not fit.

    Example:
        >>> coords = grid_coords(height=14, width=10)
        >>> ALiBi(num_heads=12, axes=2)(coords, coords).shape
        torch.Size([12, 140, 140])

    Reference:
        Press et al., Train short, test long, 2021, sec. 3, and its released code for other head counts.
        https://arxiv.org/abs/2108.12409
    """

    def __init__(
        self,
        num_heads: int,
        axes: int = 1,
        *,
        metric: Metric = "sum",
        per: float | Sequence[float] = 1.0,
        max_bias: float = 8.0,
        slopes: Sequence[float] | None = None,
        learned: bool = False,
    ):
        super().__init__()
        check_positive("num_heads", num_heads)
        check_positive("axes", axes)
        check_metric(metric)
        check_number("max_bias", max_bias)
        check_flag("learned", learned)
        if slopes is not None:
            slopes = read_numbers("slopes", slopes)
            _check_slopes(slopes, num_heads, max_bias, learned)
        self.num_heads, self.axes, self.per = num_heads, axes, check_per(per, axes)
        self.metric: Metric = metric
        self.slopes = alibi_slopes(num_heads, max_bias) if slopes is None else slopes
        self.learned = learned
        if learned:
            self.exponents = nn.Parameter(torch.empty(num_heads, dtype=torch.float32))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Sets learned slopes to where they start."""
        if self.learned:
            with torch.no_grad():
                exponents = [math.log2(slope) for slope in self.slopes]
                self.exponents.copy_(torch.tensor(exponents, dtype=torch.float32))

    def forward(
        self,
        q_coords: Shaped[Tensor, "*batch q a"],
        k_coords: Shaped[Tensor, "*batch k a"],
        *,
        query: Float[Tensor, "*rows h q d"] | None = None,
        key: Float[Tensor, "*rows g k d"] | None = None,
        tokens: Float[Tensor, "*rows k c"] | None = None,
    ) -> Float[Tensor, "*batch h q k"]:
        self._check(q_coords, k_coords)
        distance = distances(q_coords, k_coords, self.metric, self.per)
        return -self._slopes(q_coords.device)[:, None, None] * distance.unsqueeze(-3)

    def score(self, head: Int[Tensor, ""], q_coord: Coord, k_coord: Coord) -> Float[Tensor, ""]:
        slope = self.exponents[head].exp2().float() if self.learned else pick(self.slopes, head)
        return -slope * pair_distance(q_coord, k_coord, self.metric, self.per)

    def factors(
        self,
        q_coords: Shaped[Tensor, "*batch q a"],
        k_coords: Shaped[Tensor, "*batch k a"],
        *,
        ordered: bool = False,
        query: Float[Tensor, "*rows h q d"] | None = None,
        key: Float[Tensor, "*rows g k d"] | None = None,
        tokens: Float[Tensor, "*rows k c"] | None = None,
    ) -> tuple[Float[Tensor, "*batch h q 1"], Float[Tensor, "*batch 1 k 1"]] | None:
        """Where no key lies past its query: the slope times how far the key lies from the furthest query.

        Each logit is off by at most ``2 ** -22 * slope * span`` in float32, where ``span`` is the largest distance
        between a query and a key of the same row: padding should have coordinates near those of the other tokens.
        """
        self._check(q_coords, k_coords)
        if not ordered or (self.metric != "sum" and self.axes > 1):
            return None
        q, k = widen(q_coords), widen(k_coords)
        known = ~q.isnan().any(-1, keepdim=True)
        units = torch.tensor(self.per, dtype=torch.float64, device=k.device)
        behind = ((k - _furthest(q.detach(), known)) / units).sum(-1, keepdim=True).clamp(-FAR, FAR).float()
        slopes = self._slopes(q.device)[:, None, None]
        return slopes.where(known.unsqueeze(-3), torch.nan), behind.unsqueeze(-3)

    def _check(self, q_coords: Tensor, k_coords: Tensor) -> None:
        check_pair(q_coords, k_coords, self.axes, owner="ALiBi(axes={axes})")

    def _slopes(self, device: torch.device) -> Float[Tensor, " h"]:
        if self.learned:
            return self.exponents.exp2().float()
        return torch.tensor(self.slopes, dtype=torch.float32, device=device)

    def _apply(self, fn, recurse=True):
        """Moves learned slopes with the module but keeps them in float32 when it is cast to half precision."""
        return super()._apply(keep_float32(fn), recurse)

    def extra_repr(self) -> str:
        changed = {"metric": "sum", "per": (1.0,) * self.axes, "learned": False}
        extra = [f", {name}={getattr(self, name)!r}" for name, usual in changed.items() if getattr(self, name) != usual]
        return f"num_heads={self.num_heads}, axes={self.axes}" + "".join(extra)


def alibi_slopes(num_heads: int, max_bias: float = 8.0) -> tuple[float, ...]:
    """Slopes of Press et al.'s released code: the lower power of two, then every other one of the next."""
    lower = 1 << (num_heads.bit_length() - 1)
    slopes = [2.0 ** (-max_bias * i / lower) for i in range(1, lower + 1)]
    return (*slopes, *(2.0 ** (-max_bias * i / (2 * lower)) for i in range(1, 2 * (num_heads - lower), 2)))


def _furthest(q: Shaped[Tensor, "*batch q a"], known: Bool[Tensor, "*batch q 1"]) -> Shaped[Tensor, "*batch #q a"]:
    """The largest coordinate on each axis of the queries that have one, exact."""
    if not q.shape[-2]:
        return q.new_zeros(*q.shape[:-2], 1, q.shape[-1])
    lowest = -math.inf if q.is_floating_point() else torch.iinfo(q.dtype).min
    return q.masked_fill(~known, lowest).amax(-2, keepdim=True)


def _check_slopes(slopes: Sequence[float], num_heads: int, max_bias: float, learned: bool) -> None:
    if max_bias != 8.0:
        raise ValueError(f"give slopes or max_bias, not both; got max_bias {max_bias}")
    if len(slopes) != num_heads:
        raise ValueError(f"slopes must be one for each of {num_heads} heads, got {len(slopes)}")
    for slope in slopes:
        if not 0 <= slope < math.inf or (learned and slope == 0):
            rule = "positive where they are learned" if learned else "finite and not negative"
            raise ValueError(f"slopes must be {rule}, got {slope}")
