"""Attention with linear biases."""

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from ..base import AttentionBias
from ..checks import check_coords, check_positive


class ALiBi(AttentionBias):
    """Attention with linear biases: minus the head's slope times the sum over axes of ``|q_coord - k_coord|``.

    The bias is symmetric, so it serves encoders as well; a causal mask is the model's own.

    Args:
        num_heads: Heads of queries ``h``. Head ``i`` of a power of two has the slope ``2 ** (-8 (i + 1) / h)``; for
            other counts the next lower power of two ``c`` is followed by every other slope of ``2 c`` heads, so
            slopes are not in order.
        axes: Axes of the coordinates.

    Raises:
        ValueError: If ``num_heads`` or ``axes`` is not positive.

    Example:
        >>> coords = grid_coords(height=14, width=10)
        >>> ALiBi(num_heads=12, axes=2)(coords, coords).shape
        torch.Size([12, 140, 140])

    Reference:
        Press et al., Train short, test long, 2021, sec. 3, and its released code for other head counts.
        https://arxiv.org/abs/2108.12409
    """

    def __init__(self, num_heads: int, axes: int = 1):
        super().__init__()
        check_positive("num_heads", num_heads)
        check_positive("axes", axes)
        self.num_heads, self.axes = num_heads, axes
        self.slopes = alibi_slopes(num_heads)

    def forward(
        self,
        q_coords: Shaped[Tensor, "*batch q a"],
        k_coords: Shaped[Tensor, "*batch k a"],
        *,
        query: Float[Tensor, "*rows h q d"] | None = None,
        key: Float[Tensor, "*rows g k d"] | None = None,
        tokens: Float[Tensor, "*rows k c"] | None = None,
    ) -> Float[Tensor, "*batch h q k"]:
        check_coords(q_coords, self.axes, "q_coords", owner="ALiBi(axes={axes})")
        check_coords(k_coords, self.axes, "k_coords", owner="ALiBi(axes={axes})")
        distance = _distance(q_coords[..., :, None, :], k_coords[..., None, :, :])
        return -self._slopes(q_coords.device)[:, None, None] * distance.unsqueeze(-3)

    def score(
        self, head: Int[Tensor, ""], q_coord: Shaped[Tensor, " a"], k_coord: Shaped[Tensor, " a"]
    ) -> Float[Tensor, ""]:
        return -self._slopes(q_coord.device)[head] * _distance(q_coord, k_coord)

    def _slopes(self, device: torch.device) -> Float[Tensor, " h"]:
        return torch.tensor(self.slopes, dtype=torch.float32, device=device)

    def extra_repr(self) -> str:
        return f"num_heads={self.num_heads}, axes={self.axes}"


def _distance(
    q_coords: Shaped[Tensor, "*#batch q 1 a"] | Shaped[Tensor, " a"],
    k_coords: Shaped[Tensor, "*#batch 1 k a"] | Shaped[Tensor, " a"],
) -> Float[Tensor, "..."]:
    """Sum of absolute differences, exact until it is rounded to float32; NaN where a coordinate is not finite."""
    total = None
    for axis in range(q_coords.shape[-1]):
        q, k = (coords[..., axis] for coords in (q_coords, k_coords))
        if not q.is_floating_point() and not k.is_floating_point():
            q, k = q.long(), k.long()
        difference = (q - k).abs()
        total = difference if total is None else total + difference
    assert total is not None
    return total.masked_fill(~total.isfinite(), torch.nan).float() if total.is_floating_point() else total.float()


def alibi_slopes(num_heads: int) -> tuple[float, ...]:
    """Slopes of Press et al.'s released code: the lower power of two, then every other one of the next."""
    lower = 1 << (num_heads.bit_length() - 1)
    slopes = [2.0 ** (-8 * i / lower) for i in range(1, lower + 1)]
    return (*slopes, *(2.0 ** (-4 * i / lower) for i in range(1, 2 * (num_heads - lower), 2)))
