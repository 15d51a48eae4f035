"""A bias of who belongs together: variates, chains, speakers, modalities."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from ..base import AttentionBias
from ..checks import check_pair, check_positive
from .differences import Coord, widen
from .lookup import read_entry, read_rows


class GroupBias(AttentionBias):
    """One learned number for keys of the query's own group and one for all others: ``weight[q_id == k_id]``.

    Ids stand on one axis of the coordinates. They are names only: any numbers will do, there may be any number of
    groups, and giving them other ids changes nothing. This is Moirai's bias of variates, whose ``emb.weight`` is this
    ``weight``, the number of other groups first.

    With ``num_groups`` each ordered pair of groups has a number, ``weight[q_id, k_id]``, for few groups that mean
    something, such as modalities. Ids are then 0 to ``num_groups - 1`` (fractional ones mix two groups); others are an
    error in eager mode, and NaN in compiled code.

    Args:
        num_heads: Heads of queries ``h``.
        axes: Axes of the coordinates.
        axis: The axis of the ids.
        num_groups: Number of groups, for a number for each pair of them.

    Raises:
        ValueError: If a number is not positive or ``axis`` is none of the axes.

    Example:
        >>> variate_and_time = grid_coords(height=3, width=20)
        >>> bias = GroupBias(num_heads=6, axes=2, axis=0)
        >>> bias(variate_and_time, variate_and_time).shape, bias.weight.shape
        (torch.Size([6, 60, 60]), torch.Size([2, 6]))

    Reference:
        Woo et al., Unified training of universal time series forecasting transformers, 2024, sec. 3.1.
        https://arxiv.org/abs/2402.02592
    """

    def __init__(self, num_heads: int, *, axes: int = 1, axis: int = 0, num_groups: int | None = None):
        super().__init__()
        sizes = {"num_heads": num_heads, "axes": axes, "num_groups": 1 if num_groups is None else num_groups}
        for name, size in sizes.items():
            check_positive(name, size)
        if isinstance(axis, bool) or not isinstance(axis, int):
            raise TypeError(f"axis must be an integer, got {axis!r}")
        if not 0 <= axis < axes:
            raise ValueError(f"axis must be from 0 to {axes - 1}, got {axis}")
        self.num_heads, self.axes, self.axis, self.num_groups = num_heads, axes, axis, num_groups
        sides = (2,) if num_groups is None else (num_groups, num_groups)
        self.weight = nn.Parameter(torch.empty(*sides, num_heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws all numbers anew from the standard normal distribution, as Moirai does."""
        nn.init.normal_(self.weight)

    def example_coords(self, n: int) -> Int[Tensor, "n a"]:
        """``n`` coordinates with a few groups, for tests."""
        token = torch.arange(n)
        coords = torch.stack([token % 11] * self.axes, dim=-1)
        coords[:, self.axis] = token % (self.num_groups or 4)
        return coords

    def forward(
        self,
        q_coords: Shaped[Tensor, "*batch q a"],
        k_coords: Shaped[Tensor, "*batch k a"],
        *,
        query: Float[Tensor, "*rows h q d"] | None = None,
        key: Float[Tensor, "*rows g k d"] | None = None,
        tokens: Float[Tensor, "*rows k c"] | None = None,
    ) -> Float[Tensor, "*batch h q k"]:
        check_pair(q_coords, k_coords, self.axes, owner="GroupBias(axes={axes})")
        q_ids, k_ids = (self._id(coords.unbind(-1)) for coords in (q_coords, k_coords))
        if self.num_groups is not None:
            self._check_ids("q_coords", q_ids, self.num_groups)
            self._check_ids("k_coords", k_ids, self.num_groups)
            return read_rows(self.weight, torch.broadcast_tensors(q_ids[..., :, None], k_ids[..., None, :]))
        other, own = self.weight.float()[..., None, None]
        return _choose(q_ids[..., None, :, None], k_ids[..., None, None, :], own, other)

    def score(self, head: Int[Tensor, ""], q_coord: Coord, k_coord: Coord) -> Float[Tensor, ""]:
        q_id, k_id = (self._id([coord[axis] for axis in range(self.axes)]) for coord in (q_coord, k_coord))
        if self.num_groups is not None:
            return read_entry(self.weight, head, (q_id, k_id))
        return _choose(q_id, k_id, self.weight[1, head].float(), self.weight[0, head].float())

    def _id(self, coord: Sequence[Shaped[Tensor, "*n"]]) -> Shaped[Tensor, "*n"]:
        """The ids among numbers on each axis; NaN where one of these is not finite."""
        ids = widen(coord[self.axis])
        if ids.is_floating_point():
            for other in coord:
                ids = ids.masked_fill(~other.isfinite(), torch.nan)
        return ids

    @staticmethod
    def _check_ids(name: str, ids: Tensor, num_groups: int) -> None:
        if torch.compiler.is_compiling() or ids.is_meta:
            return
        found = ids.detach()[ids.isfinite()]
        if found.numel() and (found.min() < 0 or found.max() > num_groups - 1):
            raise ValueError(
                f"{name} must have ids from 0 to {num_groups - 1} for num_groups={num_groups}, got ids from "
                f"{found.min().item()} to {found.max().item()}"
            )

    def extra_repr(self) -> str:
        groups = "" if self.num_groups is None else f", num_groups={self.num_groups}"
        return f"num_heads={self.num_heads}, axes={self.axes}, axis={self.axis}{groups}"


def _choose(
    q_ids: Shaped[Tensor, "*#shape"], k_ids: Shaped[Tensor, "*#shape"], own: Tensor, other: Tensor
) -> Float[Tensor, "*shape"]:
    """``own`` where ids are the same, else ``other``; NaN where one is NaN."""
    chosen = torch.where(q_ids == k_ids, own, other)
    for ids in (q_ids, k_ids):
        if ids.is_floating_point():
            chosen = chosen.masked_fill(ids.isnan(), torch.nan)
    return chosen
