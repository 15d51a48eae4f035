"""Networks on coordinates."""

import math

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from ...frequencies import angles
from ..base import AdditiveEncoding
from ..checks import check_coords, check_length, check_positive, keep_float32
from .finite import finite_or_nan


class CoordinateMLP(AdditiveEncoding):
    """A learned continuous function of the coordinates: a linear map, GELU, a linear map.

    Without a hidden layer it is one linear map, the linear function of time of CTLPE. Such a network learns best from
    coordinates of the size of 1: `normalise` grids, count time in a unit as long as the window. What multiplies the
    coordinates stays in float32 when the module is cast, and their products are made in float64.

    Args:
        dim: Channels of a token.
        axes: Axes of the coordinates.
        hidden_dim: Width of the hidden layer; None for no such layer.

    Raises:
        ValueError: If a size is not positive.

    Example:
        >>> coords = normalise(grid_coords(height=14, width=10), (14, 10))
        >>> CoordinateMLP(dim=384, axes=2)(coords).shape
        torch.Size([140, 384])
        >>> sum(p.numel() for p in CoordinateMLP(dim=384, hidden_dim=None).parameters())
        768

    Reference:
        Kim and Lee, Continuous-time linear positional embedding for irregular time series forecasting, 2024.
        https://arxiv.org/abs/2409.20092
    """

    def __init__(self, dim: int, *, axes: int = 1, hidden_dim: int | None = 128):
        super().__init__()
        for name, size in (("dim", dim), ("axes", axes), ("hidden_dim", 1 if hidden_dim is None else hidden_dim)):
            check_positive(name, size)
        self.dim, self.axes, self.hidden_dim = dim, axes, hidden_dim
        width = dim if hidden_dim is None else hidden_dim
        self.weight = nn.Parameter(torch.empty(axes, width))
        self.bias = nn.Parameter(torch.empty(width))
        self._draw()
        self.out = None if hidden_dim is None else nn.Linear(hidden_dim, dim)

    def reset_parameters(self) -> None:
        """Draws all weights anew, as `torch.nn.Linear` does."""
        self._draw()
        if self.out is not None:
            self.out.reset_parameters()

    def _draw(self) -> None:
        bound = 1 / math.sqrt(self.axes)
        nn.init.uniform_(self.weight, -bound, bound)
        nn.init.uniform_(self.bias, -bound, bound)

    def forward(
        self, coords: Shaped[Tensor, "*batch n a"], *, length: int | Int[Tensor, "*rows"] | None = None
    ) -> Float[Tensor, "*batch n dim"]:
        check_coords(coords, self.axes, owner="CoordinateMLP(axes={axes})")
        check_length(length)
        hidden = angles(finite_or_nan(coords).double(), self.weight.double()[None]).squeeze(-3) + self.bias.double()
        if self.out is None:
            return hidden.to(self.weight.dtype)
        return self.out(nn.functional.gelu(hidden.to(self.out.weight.dtype)))

    def _apply(self, fn, recurse=True):
        """Casts the last map, but keeps the first in float32 when the module is cast to half precision."""
        if recurse and self.out is not None:
            self.out._apply(fn)
        return super()._apply(keep_float32(fn), recurse=False)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, axes={self.axes}, hidden_dim={self.hidden_dim}"
