"""Learned tables: a vector for each cell of a grid."""

import math
from collections.abc import Sequence
from itertools import product

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from ...resample import resample_table
from ..base import AdditiveEncoding
from ..checks import check_coords, check_length, check_positive


class LearnedTable(AdditiveEncoding):
    """One learned vector per cell of a grid of one to three axes.

    Integer coordinates pick their cell, float ones interpolate linearly between cells. Outside the grid is an error
    in eager mode; compiled, exported and on the meta device such a token gets NaN.

    Args:
        dim: Channels of a token.
        size: Number of cells on each axis; one number for a sequence.

    Raises:
        ValueError: If a size is not positive, there are more than three, or ``dim`` is not positive.

    Example:
        >>> table = LearnedTable(dim=384, size=(14, 10))
        >>> table(grid_coords(height=14, width=10)).shape
        torch.Size([140, 384])
        >>> table.resize(16, 16).weight.shape
        torch.Size([16, 16, 384])

    Reference:
        Dosovitskiy et al., An image is worth 16x16 words, 2020, sec. 3.1. https://arxiv.org/abs/2010.11929
    """

    needs_cells = True

    def __init__(self, dim: int, size: int | Sequence[int]):
        super().__init__()
        if isinstance(size, str):
            raise TypeError(f"size must be an integer or a sequence of them, got {size!r}")
        sides = tuple(size) if isinstance(size, Sequence) else (size,)
        if not 1 <= len(sides) <= 3:
            raise ValueError(f"size must have one to three axes, got {size}")
        for name, value in [("dim", dim), *(("size", side) for side in sides)]:
            check_positive(name, value)
        self.dim, self.size, self.axes = dim, sides, len(sides)
        self.weight = nn.Parameter(torch.empty(*sides, dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the vectors anew from a normal distribution of standard deviation 0.02, cut at 2."""
        nn.init.trunc_normal_(self.weight, std=0.02)

    def example_coords(self, n: int) -> Int[Tensor, "n a"]:
        """``n`` coordinates that the table holds, for tests."""
        cells = torch.tensor(list(product(*(range(side) for side in self.size))))
        return cells[torch.arange(n) % len(cells)]

    def resize(self, *size: int, mode: str = "bicubic", antialias: bool = True) -> "LearnedTable":
        """A new table of another size, resampled from this one; see `resample_table`."""
        weight = resample_table(self.weight.detach(), size, mode=mode, antialias=antialias)
        with torch.device("meta"):  # draws no random numbers
            table = LearnedTable(self.dim, size)
        table.weight = nn.Parameter(weight.clone(), requires_grad=self.weight.requires_grad)
        return table.train(self.training)

    def forward(
        self, coords: Shaped[Tensor, "*batch n a"], *, length: int | Int[Tensor, "*rows"] | None = None
    ) -> Float[Tensor, "*batch n dim"]:
        check_coords(coords, self.axes, owner="LearnedTable(size={order})")
        check_length(length)
        last = torch.tensor(self.size, device=coords.device) - 1
        outside = (coords < 0) | (coords > last)
        if coords.is_floating_point():
            outside = outside | ~coords.isfinite()
        self._check_inside(coords, outside)
        outside = outside.any(-1, keepdim=True)
        coords = coords.masked_fill(outside, 0)
        if coords.is_floating_point():
            return self._interpolate(coords).masked_fill(outside, torch.nan)
        return self._cells(coords).masked_fill(outside, torch.nan)

    def _cells(self, coords: Shaped[Tensor, "*batch n a"]) -> Float[Tensor, "*batch n dim"]:
        index = coords[..., 0].long()
        for axis in range(1, self.axes):
            index = index * self.size[axis] + coords[..., axis]
        return nn.functional.embedding(index, self.weight.flatten(0, -2))

    def _interpolate(self, coords: Float[Tensor, "*batch n a"]) -> Float[Tensor, "*batch n dim"]:
        low = coords.detach().floor()
        share = coords - low
        last = torch.tensor(self.size, device=coords.device) - 1
        corners = []
        for corner in product((0, 1), repeat=self.axes):
            steps = torch.tensor(corner, device=coords.device)
            # At the far edge the upper corner has the weight 0 and would lie outside.
            cells = torch.minimum(low.long() + steps, last)
            weight = torch.where(steps == 1, share, 1 - share).prod(-1, keepdim=True)
            exact = torch.promote_types(self.weight.dtype, torch.float32)
            corners.append(self._cells(cells).to(exact) * weight.to(exact))
        return torch.stack(corners).sum(0).to(self.weight.dtype)

    def _check_inside(self, coords: Tensor, outside: Tensor) -> None:
        if torch.compiler.is_compiling() or coords.is_meta or not coords.numel():
            return
        wrong = outside & coords.isfinite()
        if wrong.any():
            rows = coords.flatten(0, -2)
            rows = rows[rows.isfinite().all(-1)]
            low, high = (tuple(bound.tolist()) for bound in (rows.amin(0), rows.amax(0)))
            call = ", ".join(str(max(math.ceil(h) + 1, side)) for h, side in zip(high, self.size, strict=True))
            reach = f"up to {high}" if min(low) >= 0 else f"from {low} to {high}"
            raise ValueError(
                f"LearnedTable holds {' x '.join(map(str, self.size))} positions, got coords {reach}; "
                + (f"resize it with table.resize({call})" if min(low) >= 0 else "coords must not be negative")
            )

    def _load_from_state_dict(
        self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
    ):
        """Explains a table of another size."""
        weight = state_dict.get(prefix + "weight")
        if weight is not None and weight.shape != self.weight.shape:
            old, new = tuple(weight.shape), tuple(self.weight.shape)
            hint = ""
            if len(old) == len(new) and old[-1] == new[-1]:
                size = ", ".join(map(str, new[:-1]))
                hint = f"; load it into LearnedTable({old[-1]}, size={old[:-1]}) and call .resize({size}) on that"
            error_msgs.append(f"{prefix}weight of the checkpoint has shape {old}, this LearnedTable {new}{hint}")
            return
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )

    def extra_repr(self) -> str:
        return f"dim={self.dim}, size={self.size}"
