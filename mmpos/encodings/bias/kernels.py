"""Biases that are learned functions of the distance between query and key."""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from ...arguments import check_number
from ..base import AttentionBias
from ..checks import check_pair, check_positive, keep_float32
from .content import inner_products
from .differences import Coord, Metric, check_metric, check_per, distance, distances, pair_distance, widen
from .lookup import take_columns

Kernel = Literal["log", "power"]
KERNELS = ("log", "power")

# Powers of distances beyond this one, 4.6e18, would overflow float32.
POWER_REACH = 2.0**62


class KERPLE(AttentionBias):
    """Kernelised distances: ``-r1 log(1 + r2 d)``, or ``-r1 d ** r2`` with the kernel "power".

    ``d`` is the distance between query and key, ``r1`` and ``r2`` are positive numbers that each head learns, ``r2``
    below 2 in a power. They are parameters in float32 through ``r1 = exp(raw_r1)`` and ``r2 = exp(raw_r2)``, in a power
    ``r2 = 2 sigmoid(raw_r2)``; the released code clamps them instead. They start where that does, drawn evenly from
    0.01 to 2 (``r1`` of "log", ``r2`` of "power") or to 1. A power counts distances beyond 4.6e18 as that far.

    Args:
        num_heads: Heads of queries.
        axes: Axes of the coordinates.
        kernel: "log" or "power".
        metric: "sum" of the axes' absolute differences, "euclidean" or "max".
        per: Coordinate units that count as one position, for all axes or for each.

    Raises:
        ValueError: If a size or a unit is not positive, or kernel or metric are unknown.

    Example:
        >>> coords = grid_coords(height=3, width=5)
        >>> KERPLE(num_heads=6, axes=2)(coords, coords).shape
        torch.Size([6, 15, 15])

    Reference:
        Chi et al., KERPLE, 2022, and its released code. https://arxiv.org/abs/2205.09921
    """

    def __init__(
        self,
        num_heads: int,
        axes: int = 1,
        *,
        kernel: Kernel = "log",
        metric: Metric = "sum",
        per: float | Sequence[float] = 1.0,
    ):
        super().__init__()
        check_positive("num_heads", num_heads)
        check_positive("axes", axes)
        check_metric(metric)
        if kernel not in KERNELS:
            raise ValueError(f"kernel must be one of {', '.join(KERNELS)}, got {kernel!r}")
        self.num_heads, self.axes, self.per = num_heads, axes, check_per(per, axes)
        self.kernel: Kernel = kernel
        self.metric: Metric = metric
        self.raw_r1 = nn.Parameter(torch.empty(num_heads, dtype=torch.float32))
        self.raw_r2 = nn.Parameter(torch.empty(num_heads, dtype=torch.float32))
        self.reset_parameters()

    @property
    def r1(self) -> Float[Tensor, " h"]:
        """What multiplies the kernel."""
        return self.raw_r1.float().exp()

    @property
    def r2(self) -> Float[Tensor, " h"]:
        """The rate of the logarithm, or the power."""
        return self._to_r2(self.raw_r2.float())

    def reset_parameters(self) -> None:
        """Draws the learned numbers anew."""
        most = (2, 1) if self.kernel == "log" else (1, 2)
        r1, r2 = (torch.rand(self.num_heads, dtype=torch.float32).mul(end).clamp(0.01, 1.99) for end in most)
        with torch.no_grad():
            self.raw_r1.copy_(r1.log())
            self.raw_r2.copy_(r2.log() if self.kernel == "log" else (r2 / 2).logit())

    def forward(
        self,
        q_coords: Shaped[Tensor, "*batch q a"],
        k_coords: Shaped[Tensor, "*batch k a"],
        *,
        query: Float[Tensor, "*rows h q d"] | None = None,
        key: Float[Tensor, "*rows g k d"] | None = None,
        tokens: Float[Tensor, "*rows k c"] | None = None,
    ) -> Float[Tensor, "*batch h q k"]:
        check_pair(q_coords, k_coords, self.axes, owner="KERPLE(axes={axes})")
        apart = distances(q_coords, k_coords, self.metric, self.per).unsqueeze(-3)
        return self._bias(self.r1[:, None, None], self.r2[:, None, None], apart)

    def score(self, head: Int[Tensor, ""], q_coord: Coord, k_coord: Coord) -> Float[Tensor, ""]:
        r1, r2 = self.raw_r1[head].float().exp(), self._to_r2(self.raw_r2[head].float())
        return self._bias(r1, r2, pair_distance(q_coord, k_coord, self.metric, self.per))

    def _to_r2(self, raw: Tensor) -> Tensor:
        return raw.exp() if self.kernel == "log" else 2 * raw.sigmoid()

    def _bias(self, r1: Tensor, r2: Tensor, apart: Tensor) -> Tensor:
        if self.kernel == "log":
            return -r1 * (1 + r2 * apart).log()  # as good as log1p in absolute terms, which count, and twice as fast
        # A power below 1 is vertical at 0, where the gradient should be that of symmetry, 0.
        power = apart.clamp(max=POWER_REACH).where(apart != 0, 1).pow(r2)
        return -r1 * power.where(apart != 0, 0)

    def _apply(self, fn, recurse=True):
        """Moves learned numbers with the module but keeps them in float32 when it is cast to half precision."""
        return super()._apply(keep_float32(fn), recurse)

    def extra_repr(self) -> str:
        return f"num_heads={self.num_heads}, axes={self.axes}, kernel={self.kernel!r}, metric={self.metric!r}"


class FIRE(AttentionBias):
    """Functional interpolation: a small network of ``log(1 + c d) / log(1 + c max(L, |q|, |k|))``, a share of the way.

    ``d`` is the distance between query and key, ``|q|`` and ``|k|`` are theirs from coordinate 0. So the bias depends
    on where tokens are, not on differences only: sequences must start at 0, or the share means nothing. For keys up
    to the query, ``max(L, |q|, |k|)`` is the paper's ``max(L, q)``; keys ahead are divided by their own position, so
    that the bias is symmetric and the share between 0 and 1 in bidirectional attention as well.

    ``c`` and ``L`` are learned through their logarithms, the network is ``1 -> hidden -> num_heads`` with a ReLU; all
    of it stays in float32.

    Args:
        num_heads: Heads of queries.
        axes: Axes of the coordinates.
        hidden: Width of the network.
        threshold: Where ``L`` starts, in positions: shorter sequences are not interpolated.
        metric: "sum" of the axes' absolute differences, "euclidean" or "max".
        per: Coordinate units that count as one position, for all axes or for each.

    Raises:
        ValueError: If a size, a unit or the threshold is not positive, or the metric is unknown.

    Example:
        >>> coords = sequence_coords(20)
        >>> FIRE(num_heads=6)(coords[15:], coords).shape
        torch.Size([6, 5, 20])

    Reference:
        Li et al., Functional interpolation for relative positions improves long context transformers, 2023, sec. 3.
        https://arxiv.org/abs/2310.04418
    """

    def __init__(
        self,
        num_heads: int,
        axes: int = 1,
        *,
        hidden: int = 32,
        threshold: float = 512.0,
        metric: Metric = "sum",
        per: float | Sequence[float] = 1.0,
    ):
        super().__init__()
        for name, value in [("num_heads", num_heads), ("axes", axes), ("hidden", hidden)]:
            check_positive(name, value)
        check_metric(metric)
        check_number("threshold", threshold)
        self.num_heads, self.axes, self.per, self.threshold = num_heads, axes, check_per(per, axes), threshold
        self.metric: Metric = metric
        self.log_c = nn.Parameter(torch.empty(1, dtype=torch.float32))
        self.log_threshold = nn.Parameter(torch.empty(1, dtype=torch.float32))
        with torch.random.fork_rng(devices=[]):  # drawn once, below, as what begins on the meta device is
            self.first = nn.Linear(1, hidden, dtype=torch.float32)
            self.last = nn.Linear(hidden, num_heads, dtype=torch.float32)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Sets ``c`` to 0.1 and ``L`` to the threshold, and draws the network anew."""
        nn.init.constant_(self.log_c, math.log(0.1))
        nn.init.constant_(self.log_threshold, math.log(self.threshold))
        self.first.reset_parameters()
        self.last.reset_parameters()

    def forward(
        self,
        q_coords: Shaped[Tensor, "*batch q a"],
        k_coords: Shaped[Tensor, "*batch k a"],
        *,
        query: Float[Tensor, "*rows h q d"] | None = None,
        key: Float[Tensor, "*rows g k d"] | None = None,
        tokens: Float[Tensor, "*rows k c"] | None = None,
    ) -> Float[Tensor, "*batch h q k"]:
        check_pair(q_coords, k_coords, self.axes, owner="FIRE(axes={axes})")
        q, k = (distance(widen(coords).unbind(-1), self.metric, self.per) for coords in (q_coords, k_coords))
        share = self._share(distances(q_coords, k_coords, self.metric, self.per), q[..., :, None], k[..., None, :])
        return self._network(share).movedim(0, -3)

    def score(self, head: Int[Tensor, ""], q_coord: Coord, k_coord: Coord) -> Float[Tensor, ""]:
        q, k = (
            distance([widen(coord[axis]) for axis in range(self.axes)], self.metric, self.per)
            for coord in (q_coord, k_coord)
        )
        share = self._share(pair_distance(q_coord, k_coord, self.metric, self.per), q, k)
        total = self.last.bias[head].float()
        for unit in range(self.first.out_features):
            hidden = (share * self.first.weight[unit, 0].float() + self.first.bias[unit].float()).relu()
            total = total + self.last.weight[head, unit].float() * hidden
        return total

    def _network(self, share: Float[Tensor, "*shape"]) -> Float[Tensor, "h *shape"]:
        """The network at these shares; of one number it is linear between the knots where a unit turns on or off."""
        weight, offset = self.first.weight[:, 0].float(), self.first.bias.float()
        knots, order = (-offset / weight).detach().where(weight != 0, math.inf).sort()
        weight, offset, last = weight[order], offset[order], self.last.weight.float()[:, order]
        passed = torch.ones(len(knots) + 1, len(knots), device=share.device).tril(-1).bool()  # by piece and knot
        moves = weight != 0  # chosen by logic, for not every runtime chooses between booleans
        active = ((moves & (passed == (weight > 0))) | (~moves & (offset > 0))).float()
        slopes, starts = inner_products(torch.stack([last * weight, last * offset]), active[None])
        lines = torch.cat([slopes, starts + self.last.bias.float()[:, None]])
        slope, start = take_columns(lines, torch.bucketize(share.detach(), knots)).chunk(2)
        return slope * share + start

    def _share(self, apart: Tensor, q: Tensor, k: Tensor) -> Tensor:
        c, threshold = self.log_c[0].float().exp(), self.log_threshold[0].float().exp()
        reach = torch.maximum(torch.maximum(q, k), threshold)
        return (c * apart).log1p() / (c * reach).log1p()

    def _apply(self, fn, recurse=True):
        """Moves the network with the module but keeps it in float32 when it is cast to half precision."""
        return super()._apply(keep_float32(fn), recurse)

    def extra_repr(self) -> str:
        return f"num_heads={self.num_heads}, axes={self.axes}, threshold={self.threshold}, metric={self.metric!r}"
