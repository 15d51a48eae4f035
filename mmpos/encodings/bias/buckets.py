"""A learned bias for each range of distances, fine for near keys and coarse for far ones."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from ...arguments import check_flag, check_is_number, read_numbers
from ..base import AttentionBias
from ..checks import check_pair, check_positive
from .differences import Coord, subtract, widen

LAST = 2**63 - 1  # of int64


class T5Bias(AttentionBias):
    """T5's bias: ``weight[bucket, head]`` summed over axes, where the bucket holds a range of ``q_coord - k_coord``.

    Of the ``n`` buckets of a direction the first half hold one distance each, from 0, and the others grow by a
    constant factor so that the last begins short of ``max_distance`` and has no end. With ``bidirectional`` keys
    behind the query (and at it) have the first half of the buckets and keys ahead the second; without it keys ahead
    share bucket 0 with the query itself.

    Every axis has a table of its own, as in LayoutLMv2; one table for all axes together would need
    ``num_buckets ** axes`` rows, and one shared by the axes could not tell a row from a column. Coordinates may be
    real: a distance ``d`` lies in the bucket of the last boundary that is not above it. Buckets agree with
    transformers' at integers; where a boundary lies within float32's rounding of one, the true side counts here.

    Args:
        num_heads: Heads of queries.
        num_buckets: Buckets on each axis, for both directions together; even if there are two.
        max_distance: Where T5's last bucket would end, in coordinate units.
        bidirectional: Whether keys ahead have buckets of their own.
        axes: Axes of the coordinates.
        boundaries: Distances at which bucket 1, 2, ... of a direction begins, in coordinate units, instead of T5's:
            ``(60, 3600, 86400, 604800)`` bins seconds by minute, hour, day and week. ``num_buckets`` follows from it.

    Raises:
        ValueError: If a size is not positive, buckets are odd or fewer than two for a direction, ``max_distance`` is
            too small for them, or boundaries do not rise from above 0.

    Example:
        >>> coords = grid_coords(height=3, width=5)
        >>> bias = T5Bias(num_heads=8, axes=2)
        >>> bias(coords, coords).shape, bias.weight.shape
        (torch.Size([8, 15, 15]), torch.Size([64, 8]))

    Reference:
        Raffel et al., Exploring the limits of transfer learning, 2019, sec. 2.1, and its released code.
        https://arxiv.org/abs/1910.10683. Xu et al., LayoutLMv2, 2020, for two axes.
        https://arxiv.org/abs/2012.14740
    """

    def __init__(
        self,
        num_heads: int,
        num_buckets: int = 32,
        max_distance: float = 128,
        bidirectional: bool = True,
        axes: int = 1,
        *,
        boundaries: Sequence[float] | None = None,
    ):
        super().__init__()
        for name, value in [("num_heads", num_heads), ("num_buckets", num_buckets), ("axes", axes)]:
            check_positive(name, value)
        check_flag("bidirectional", bidirectional)
        directions = 2 if bidirectional else 1
        if boundaries is not None and (num_buckets, max_distance) != (32, 128):
            raise ValueError(
                f"give boundaries or num_buckets and max_distance, got {num_buckets} and {max_distance} too"
            )
        if boundaries is None:
            if num_buckets % directions:
                raise ValueError(f"num_buckets ({num_buckets}) must be even where it is bidirectional")
            boundaries = t5_boundaries(num_buckets // directions, max_distance)
        self.num_heads, self.axes, self.bidirectional = num_heads, axes, bidirectional
        self.boundaries = _check_boundaries(boundaries)
        self.num_buckets = directions * (len(self.boundaries) + 1)
        self.weight = nn.Parameter(torch.empty(axes * self.num_buckets, num_heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the biases anew from a normal distribution of standard deviation 0.02."""
        nn.init.normal_(self.weight, std=0.02)

    def forward(
        self,
        q_coords: Shaped[Tensor, "*batch q a"],
        k_coords: Shaped[Tensor, "*batch k a"],
        *,
        query: Float[Tensor, "*rows h q d"] | None = None,
        key: Float[Tensor, "*rows g k d"] | None = None,
        tokens: Float[Tensor, "*rows k c"] | None = None,
    ) -> Float[Tensor, "*batch h q k"]:
        check_pair(q_coords, k_coords, self.axes, owner="T5Bias(axes={axes})")
        q, k = widen(q_coords)[..., :, None, :], widen(k_coords)[..., None, :, :]
        rows = self.weight.float().mT
        total = None
        for axis in range(self.axes):
            step = q[..., axis] - k[..., axis]
            bucket = self._bucket(step) + axis * self.num_buckets
            bias = _or_nan(rows.index_select(1, bucket.flatten()).view(self.num_heads, *bucket.shape), step)
            total = bias if total is None else total + bias
        assert total is not None
        return total.movedim(0, -3)

    def score(self, head: Int[Tensor, ""], q_coord: Coord, k_coord: Coord) -> Float[Tensor, ""]:
        total = None
        for axis in range(self.axes):
            step = subtract(q_coord[axis], k_coord[axis])
            bias = _or_nan(self.weight[self._counted(step) + axis * self.num_buckets, head].float(), step)
            total = bias if total is None else total + bias
        assert total is not None
        return total

    def bucket(
        self, q_coords: Shaped[Tensor, "*batch q a"], k_coords: Shaped[Tensor, "*batch k a"]
    ) -> Int[Tensor, "*batch q k a"]:
        """The number of the bucket of each pair on each axis, from 0 to ``num_buckets - 1``."""
        step = widen(q_coords)[..., :, None, :] - widen(k_coords)[..., None, :, :]
        return self._bucket(step)

    def _bucket(self, step: Shaped[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
        edges = torch.tensor(self._edges(step), dtype=step.dtype, device=step.device)
        return self._with_direction(torch.bucketize(self._size(step), edges, right=True), step)

    def _counted(self, step: Shaped[Tensor, ""]) -> Int[Tensor, ""]:
        """`_bucket` of one number, for kernels that cannot make tensors."""
        size = self._size(step)
        bucket = sum(((size >= edge).long() for edge in self._edges(step)), torch.zeros_like(size, dtype=torch.int64))
        return self._with_direction(bucket, step)

    def _edges(self, step: Tensor) -> list[float] | list[int]:
        """Boundaries in the dtype of the steps: an integer is not below a number if it is not below its ceiling."""
        if step.is_floating_point():
            return list(self.boundaries)
        return [min(math.ceil(edge), LAST) for edge in self.boundaries]

    def _size(self, step: Shaped[Tensor, "*shape"]) -> Shaped[Tensor, "*shape"]:
        return step.abs() if self.bidirectional else step.clamp(min=0)

    def _with_direction(self, bucket: Int[Tensor, "*shape"], step: Shaped[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
        return bucket + (step < 0) * (self.num_buckets // 2) if self.bidirectional else bucket

    def extra_repr(self) -> str:
        direction = "" if self.bidirectional else ", bidirectional=False"
        return f"num_heads={self.num_heads}, num_buckets={self.num_buckets}, axes={self.axes}{direction}"


def t5_boundaries(num_buckets: int, max_distance: float) -> list[float]:
    """Distances at which T5's buckets of one direction begin, without the first, which begins at 0.

    The first half hold one distance each; bucket ``b`` of the others, of which ``e`` is the first, begins at
    ``e * (max_distance / e) ** ((b - e) / (num_buckets - e))``.
    """
    check_is_number("max_distance", max_distance)
    exact = num_buckets // 2
    if exact < 1:
        raise ValueError(f"num_buckets must be at least 2 for each direction, got {num_buckets}")
    if not exact < max_distance < math.inf:
        raise ValueError(f"max_distance ({max_distance}) must be above half the buckets of a direction ({exact})")
    grown = num_buckets - exact
    far = [exact * (max_distance / exact) ** (step / grown) for step in range(1, grown)]
    # A power that is a whole number may come out a last digit above it.
    return [*map(float, range(1, exact + 1)), *(_snap(edge) for edge in far)]


def _snap(edge: float) -> float:
    return float(round(edge)) if math.isclose(edge, round(edge), rel_tol=1e-13) else edge


def _or_nan(bias: Float[Tensor, "*out"], step: Shaped[Tensor, "*shape"]) -> Float[Tensor, "*out"]:
    return bias.masked_fill(step.isnan(), torch.nan) if step.is_floating_point() else bias


def _check_boundaries(boundaries: Sequence[float]) -> tuple[float, ...]:
    if isinstance(boundaries, str) or (
        isinstance(boundaries, Sequence) and any(isinstance(edge, str) for edge in boundaries)
    ):
        raise TypeError(f"boundaries must be numbers, got {boundaries!r}")
    edges = read_numbers("boundaries", boundaries)
    if not edges or not all(low < high < math.inf for low, high in zip((0.0, *edges), edges, strict=False)):
        raise ValueError(f"boundaries must rise from above 0 and be finite, got {boundaries}")
    return edges
