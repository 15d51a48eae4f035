"""Learned tables: vectors for the cells of a grid."""

from collections.abc import Sequence
from functools import partial

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from ...arguments import check_flag
from ...resample import resample_table
from ...resample.grid import check_size
from ..base import AdditiveEncoding
from ..checks import check_coords, check_length, check_positive
from .cells import enclose, example_cells, interpolate, pick, sides
from .loading import of_this_grid


class LearnedTable(AdditiveEncoding):
    """One learned vector per cell of a grid of one to three axes.

    Integer coordinates pick their cell, float ones interpolate linearly between cells. Outside the grid is an error
    in eager mode; compiled, exported and on the meta device such a token gets NaN. All ``size`` cells are in use:
    none is set aside for padding.

    Args:
        dim: Channels of a token.
        size: Number of cells on each axis; one number for a sequence.
        resize_on_load: Whether a checkpoint of another grid is resampled as `resize` does by default, with a warning
            that names both grids. Otherwise it is refused.

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

    def __init__(self, dim: int, size: int | Sequence[int], *, resize_on_load: bool = False):
        super().__init__()
        check_positive("dim", dim)
        check_flag("resize_on_load", resize_on_load)
        self.dim, self.size, self.resize_on_load = dim, sides(size), resize_on_load
        self.axes = len(self.size)
        self.weight = nn.Parameter(torch.empty(*self.size, dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the vectors anew from a normal distribution of standard deviation 0.02, cut at 2."""
        nn.init.trunc_normal_(self.weight, std=0.02)

    def example_coords(self, n: int) -> Int[Tensor, "n a"]:
        """``n`` coordinates that the table holds, for tests."""
        return example_cells(self.size, n)

    def resize(
        self, *size: int, mode: str = "bicubic", antialias: bool = True, align_corners: bool = False, keep: int = 0
    ) -> "LearnedTable":
        """A new table of another size, resampled from this one; see `resample_table` for the options.

        ``LearnedTable(512, 77).resize(248, mode="bilinear", keep=20)`` leaves the first 20 rows alone, as Long-CLIP.
        """
        weight = resample_table(
            self.weight.detach(), size, mode=mode, antialias=antialias, align_corners=align_corners, keep=keep
        )
        with torch.device("meta"):  # draws no random numbers
            table = LearnedTable(self.dim, size, resize_on_load=self.resize_on_load)
        table.weight = nn.Parameter(weight.clone(), requires_grad=self.weight.requires_grad)
        return table.train(self.training)

    def forward(
        self, coords: Shaped[Tensor, "*batch n a"], *, length: int | Int[Tensor, "*rows"] | None = None
    ) -> Float[Tensor, "*batch n dim"]:
        check_coords(coords, self.axes, owner="LearnedTable(size={order})")
        check_length(length)
        coords, outside = enclose(coords, self.size, "LearnedTable")
        if coords.is_floating_point():
            return interpolate(self._cells, coords, self.size).to(self.weight.dtype).masked_fill(outside, torch.nan)
        return self._cells(coords).masked_fill(outside, torch.nan)

    def _cells(self, coords: Shaped[Tensor, "*batch n a"]) -> Float[Tensor, "*batch n dim"]:
        return pick(self.weight, coords)

    def _load_from_state_dict(
        self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
    ):
        """Explains a table of another grid, or resamples it."""
        state_dict = of_this_grid(self, self.size, self.resize_on_load, state_dict, prefix, error_msgs)
        if state_dict is not None:
            super()._load_from_state_dict(
                state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
            )

    def extra_repr(self) -> str:
        return f"dim={self.dim}, size={self.size}" + (", resize_on_load=True" if self.resize_on_load else "")


class FactorizedTable(AdditiveEncoding):
    """The sum of a learned vector per row and one per column of a grid, and one per frame of a video.

    A ``size`` of ``h x w`` cells takes ``h + w`` vectors instead of ``h * w``. Coordinates are taken as `LearnedTable`
    does, and the same are refused.

    Args:
        dim: Channels of a token.
        size: Number of cells on each axis, of which there are one to three.
        resize_on_load: Whether a checkpoint of another grid is resampled as `resize` does by default, with a warning
            that names both grids. Otherwise it is refused.

    Raises:
        ValueError: If a size is not positive, there are more than three, or ``dim`` is not positive.

    Example:
        >>> table = FactorizedTable(dim=384, size=(14, 10))
        >>> table(grid_coords(height=14, width=10)).shape
        torch.Size([140, 384])
        >>> table.weight_y.shape, table.weight_x.shape
        (torch.Size([14, 384]), torch.Size([10, 384]))

    Reference:
        Dehghani et al., Patch n' Pack, 2023, sec. 2.1. https://arxiv.org/abs/2307.06304
    """

    needs_cells = True

    def __init__(self, dim: int, size: int | Sequence[int], *, resize_on_load: bool = False):
        super().__init__()
        check_positive("dim", dim)
        check_flag("resize_on_load", resize_on_load)
        self.dim, self.size, self.resize_on_load = dim, sides(size), resize_on_load
        self.axes = len(self.size)
        self.names = tuple(f"weight_{axis}" for axis in ("t", "yx", "tyx")[self.axes - 1])
        for name, side in zip(self.names, self.size, strict=True):
            self.register_parameter(name, nn.Parameter(torch.empty(side, dim)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the vectors anew from a normal distribution of standard deviation 0.02, cut at 2."""
        for weight in self.weights():
            nn.init.trunc_normal_(weight, std=0.02)

    def weights(self) -> list[nn.Parameter]:
        """The table of each axis, in their order."""
        return [getattr(self, name) for name in self.names]

    def example_coords(self, n: int) -> Int[Tensor, "n a"]:
        """``n`` coordinates that the table holds, for tests."""
        return example_cells(self.size, n)

    def resize(
        self, *size: int, mode: str = "bicubic", antialias: bool = True, align_corners: bool = False
    ) -> "FactorizedTable":
        """A new table of another size; the table of each axis is resampled, see `resample_table` for the options."""
        new = check_size("size", size, self.axes)
        with torch.device("meta"):  # draws no random numbers
            table = FactorizedTable(self.dim, size, resize_on_load=self.resize_on_load)
        for name, side in zip(self.names, new, strict=True):
            old = getattr(self, name)
            weight = resample_table(old.detach(), (side,), mode=mode, antialias=antialias, align_corners=align_corners)
            setattr(table, name, nn.Parameter(weight.clone(), requires_grad=old.requires_grad))
        return table.train(self.training)

    def forward(
        self, coords: Shaped[Tensor, "*batch n a"], *, length: int | Int[Tensor, "*rows"] | None = None
    ) -> Float[Tensor, "*batch n dim"]:
        check_coords(coords, self.axes, owner="FactorizedTable(size={order})")
        check_length(length)
        coords, outside = enclose(coords, self.size, "FactorizedTable")
        parts = []
        for weight, place in zip(self.weights(), coords.split(1, dim=-1), strict=True):
            cells = partial(pick, weight)
            part = interpolate(cells, place, tuple(weight.shape[:1])) if place.is_floating_point() else cells(place)
            parts.append(part.to(torch.promote_types(part.dtype, torch.float32)))
        return torch.stack(parts).sum(0).to(self.weights()[0].dtype).masked_fill(outside, torch.nan)

    def _load_from_state_dict(
        self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
    ):
        """Explains tables of another grid, or resamples them."""
        state_dict = of_this_grid(self, self.size, self.resize_on_load, state_dict, prefix, error_msgs)
        if state_dict is not None:
            super()._load_from_state_dict(
                state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
            )

    def extra_repr(self) -> str:
        return f"dim={self.dim}, size={self.size}" + (", resize_on_load=True" if self.resize_on_load else "")
