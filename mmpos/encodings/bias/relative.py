"""Logits by what a token holds and how far away a key is: an inner product with a learned table of differences."""

import math
from collections.abc import Callable, Sequence
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from ...arguments import check_flag, check_real
from ...resample import resample_table
from ..base import AttentionBias
from ..checks import check_pair, check_positive
from .content import check_content, inner_products
from .differences import differences
from .offsets import cells_of

Beyond = Literal["clip", "zero", "error"]


class RelativeLogits(AttentionBias):
    """Inner product of each query with a learned vector of its difference to the key, summed over axes.

    The bias is ``scale * sum_a query . table_a[q_coord - k_coord]``. What is learned grows with the extent, and what is
    computed besides the bias with tokens times extent. Differences between integers interpolate linearly.

    Args:
        num_heads: Heads of queries.
        head_dim: Channels per head of the queries; needed unless ``rank`` is given.
        extent: The largest difference ``q_coord - k_coord`` that a table holds, of keys behind the query; one number
            for a sequence, or one for each axis. A grid has differences up to its sides less 1.
        ahead: The same for keys ahead of the query, whose differences are negative; as ``extent`` unless given.
            With 0, for causal models, keys ahead count as being beyond.
        beyond: What larger differences get: the vector of the largest one ("clip", as Shaw et al. have it), a bias of
            0 ("zero"), or an error ("error"; compiled, exported and on the meta device NaN).
        per_head: Whether each head has tables of its own.
        rank: Takes a vector of so many channels per head, a learned projection of the query's token, in the place of
            the query itself.
        dim: Channels of a token, for ``rank``.
        scale: Factor of the bias: that of the logits, ``head_dim ** -0.5``, unless given; 1 with ``rank``.

    Raises:
        ValueError: If a size is not positive, an extent negative, ``head_dim`` or ``dim`` is missing, or ``beyond`` is
            unknown.

    Example:
        >>> coords, query = grid_coords(height=14, width=10), torch.randn(2, 6, 140, 64)
        >>> bias = RelativeLogits(num_heads=6, head_dim=64, extent=(13, 9), beyond="error")
        >>> bias(coords, coords, query=query).shape
        torch.Size([2, 6, 140, 140])

    Reference:
        Shaw et al., Self-attention with relative position representations, 2018, sec. 3; their vectors of values are
        left out. https://arxiv.org/abs/1803.02155
        Huang et al., Music Transformer, 2018, sec. 3.4. https://arxiv.org/abs/1809.04281
        Li et al., MViTv2, 2021, sec. 4.1, for axes that add up. https://arxiv.org/abs/2112.01526
    """

    def __init__(
        self,
        num_heads: int,
        head_dim: int | None = None,
        *,
        extent: int | Sequence[int],
        ahead: int | Sequence[int] | None = None,
        beyond: Beyond = "clip",
        per_head: bool = False,
        rank: int | None = None,
        dim: int | None = None,
        scale: float | None = None,
    ):
        super().__init__()
        extents = _extents("extent", extent)
        aheads = extents if ahead is None else _extents("ahead", ahead)
        if len(aheads) != len(extents):
            raise ValueError(f"ahead must have a number for each of {len(extents)} axes, as extent, got {ahead}")
        if not isinstance(beyond, str) or beyond not in get_args(Beyond):
            raise ValueError(f"beyond must be one of {', '.join(get_args(Beyond))}, got {beyond!r}")
        sizes = {"num_heads": num_heads} | ({"head_dim": head_dim} if rank is None else {"rank": rank, "dim": dim})
        for name, size in sizes.items():
            if size is None:
                raise ValueError(f"{name} must be given {'unless rank is' if rank is None else 'with rank'}")
            check_positive(name, size)
        width = head_dim if rank is None else rank
        assert width is not None

        self.num_heads, self.head_dim, self.rank, self.dim = num_heads, head_dim, rank, dim
        self.extent, self.ahead, self.beyond, self.per_head = extents, aheads, beyond, per_head
        self.axes, self.needs_cells = len(extents), beyond == "error"
        self.needs = frozenset({"query" if rank is None else "tokens"})
        check_flag("per_head", per_head)
        if scale is not None:
            check_real("scale", scale)
        self.scale = (width**-0.5 if rank is None else 1.0) if scale is None else scale
        self.rows = [behind + front + 1 for behind, front in zip(extents, aheads, strict=True)]
        self.weight = nn.Parameter(torch.empty(num_heads if per_head else 1, sum(self.rows), width))
        self.token_weight = None if rank is None or dim is None else nn.Parameter(torch.empty(num_heads, rank, dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws tables and projection anew from a normal distribution of standard deviation 0.02, cut at 2."""
        for parameter in self.parameters():
            nn.init.trunc_normal_(parameter, std=0.02)

    def no_weight_decay(self) -> set[str]:
        return {"weight"}

    def forward(
        self,
        q_coords: Shaped[Tensor, "*batch q a"],
        k_coords: Shaped[Tensor, "*batch k a"],
        *,
        query: Float[Tensor, "*rows h q d"] | None = None,
        key: Float[Tensor, "*rows g k d"] | None = None,
        tokens: Float[Tensor, "*rows q c"] | None = None,
    ) -> Float[Tensor, "*out h q k"]:
        check_pair(q_coords, k_coords, self.axes, owner="RelativeLogits(extent={order})")
        steps, tables = differences(q_coords, k_coords), self._tables(q_coords, query, tokens)
        parts = [self._on_axis(axis, tables[axis], steps[..., axis]) for axis in range(self.axes)]
        bias = sum(parts[1:], parts[0]).float()
        if self.beyond == "error" or steps.is_floating_point():
            bias = bias.masked_fill(self._nowhere(steps).any(-1).unsqueeze(-3), torch.nan)
        return bias

    def factors(
        self,
        q_coords: Shaped[Tensor, "*batch q a"],
        k_coords: Shaped[Tensor, "*batch k a"],
        *,
        ordered: bool = False,
        query: Float[Tensor, "*rows h q d"] | None = None,
        key: Float[Tensor, "*rows g k d"] | None = None,
        tokens: Float[Tensor, "*rows q c"] | None = None,
    ) -> tuple[Float[Tensor, "*outq #h q r"], Float[Tensor, "*outk #h k r"]] | None:
        """Each query's bias of every row and every column of keys, and for each key which of them are its own.

        None on one axis and where these are more than half as many as keys, which spares nothing; where compiled code
        cannot know them; and where gradients flow to coordinates of keys.
        """
        check_pair(q_coords, k_coords, self.axes, owner="RelativeLogits(extent={order})")
        if self.axes == 1 or torch.compiler.is_compiling() or k_coords.is_meta or k_coords.requires_grad:
            return None
        if not all(part.isfinite().all() for part in (q_coords, k_coords) if part.is_floating_point()):
            return None
        places = [k_coords[..., axis].unique(return_inverse=True) for axis in range(self.axes)]
        if 2 * sum(len(values) for values, _ in places) > k_coords.shape[-2]:
            return None
        tables = self._tables(q_coords, query, tokens)
        left, right = [], []
        for axis, (values, own) in enumerate(places):
            steps = differences(q_coords[..., axis, None], values[:, None])
            left.append(self._on_axis(axis, tables[axis], steps[..., 0]))
            right.append(F.one_hot(own, len(values)))
        return torch.cat(left, -1).float(), torch.cat(right, -1).unsqueeze(-3).float()

    @property
    def example_coords(self) -> Callable[[int], Int[Tensor, "n a"]] | None:
        """Coordinates whose differences the tables hold, for tests; None where all are legal."""
        return self._cells if self.beyond == "error" else None

    def resize(self, *size: int, mode: str = "bilinear", antialias: bool = False) -> "RelativeLogits":
        """The bias for a grid of these sides, its tables resampled to the differences there; see `resample_table`.

        Where larger differences are clipped or 0 the tables are tied to no grid, and it is the bias itself.
        """
        if self.beyond != "error":
            return self
        if len(size) != self.axes:
            raise ValueError(f"size must have {self.axes} numbers, as many as axes, got {size}")
        for side in size:
            check_positive("size", side)
        extent = [side - 1 for side in size]
        ahead = [
            new if front == old else front * new // max(old, 1)
            for front, old, new in zip(self.ahead, self.extent, extent, strict=True)
        ]
        with torch.device("meta"):  # draws no random numbers
            bias = RelativeLogits(
                self.num_heads,
                self.head_dim,
                extent=extent,
                ahead=ahead,
                beyond=self.beyond,
                per_head=self.per_head,
                rank=self.rank,
                dim=self.dim,
                scale=self.scale,
            )
        tables = [
            resample_table(table.transpose(0, 1).flatten(1), (rows,), mode=mode, antialias=antialias)
            .unflatten(1, (-1, table.shape[-1]))
            .transpose(0, 1)
            for table, rows in zip(self.weight.detach().split(self.rows, dim=1), bias.rows, strict=True)
        ]
        bias.weight = nn.Parameter(torch.cat(tables, dim=1), requires_grad=self.weight.requires_grad)
        bias.token_weight = self.token_weight
        return bias.train(self.training)

    def _tables(
        self, q_coords: Tensor, query: Tensor | None, tokens: Tensor | None
    ) -> Sequence[Float[Tensor, "*rows h q r"]]:
        """The bias of each query at every difference that a table holds, for each axis."""
        count = q_coords.shape[-2]
        if self.token_weight is None:
            assert self.head_dim is not None
            sizes = {"heads": self.num_heads, "queries": count, "channels": self.head_dim}
            vectors = check_content("RelativeLogits", "query", query, sizes)
        else:
            assert self.dim is not None
            tokens = check_content("RelativeLogits", "tokens", tokens, {"queries": count, "channels": self.dim})
            vectors = inner_products(tokens.unsqueeze(-3), self.token_weight)
        weight = self.scale * self.weight.to(torch.promote_types(self.weight.dtype, torch.float32))
        return inner_products(vectors, weight).split(self.rows, dim=-1)

    def _on_axis(
        self, axis: int, table: Float[Tensor, "*rows h q r"], steps: Shaped[Tensor, "*batch q k"]
    ) -> Float[Tensor, "*out h q k"]:
        self._check_reach(steps, axis)
        if self.beyond == "zero":
            return _look_up(F.pad(table, (1, 1)), steps + (self.ahead[axis] + 1))
        return _look_up(table, steps + self.ahead[axis])

    def _nowhere(self, steps: Shaped[Tensor, "*batch q k a"]) -> Tensor:
        if self.beyond != "error":
            return steps.isnan()
        low, high = (torch.tensor(reach, device=steps.device) for reach in (self.ahead, self.extent))
        return ~((steps >= -low) & (steps <= high))

    def _check_reach(self, steps: Shaped[Tensor, "*batch q k"], axis: int) -> None:
        """Refuses differences on one axis that the table does not hold, where values can be seen."""
        if self.beyond != "error" or torch.compiler.is_compiling() or steps.is_meta:
            return
        wrong = steps[(steps < -self.ahead[axis]) | (steps > self.extent[axis])]
        if wrong.numel():
            low, high = wrong.min().item(), wrong.max().item()
            sides = [behind + 1 for behind in self.extent]
            sides[axis] = max(sides[axis], math.ceil(max(-low, high)) + 1)
            found, call = low if low == high else f"{low} to {high}", ", ".join(map(str, sides))
            raise ValueError(
                f"RelativeLogits holds differences from {-self.ahead[axis]} to {self.extent[axis]} on axis {axis}, got "
                f"{found}; resize it with bias.resize({call})"
            )

    def _cells(self, n: int) -> Int[Tensor, "n a"]:
        return cells_of([min(reach) + 1 for reach in zip(self.extent, self.ahead, strict=True)], n)

    def _load_from_state_dict(
        self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
    ):
        """Explains tables of another extent."""
        weight = state_dict.get(prefix + "weight")
        if weight is not None and weight.shape != self.weight.shape:
            error_msgs.append(
                f"{prefix}weight of the checkpoint has shape {tuple(weight.shape)}, this RelativeLogits "
                f"{tuple(self.weight.shape)}: heads or 1, differences on all axes, channels; load it into one with the "
                'extent it was trained with, and where beyond is "error" call .resize(*size) on that'
            )
            return
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )

    def extra_repr(self) -> str:
        parts = ["num_heads", "head_dim", "extent", "ahead", "beyond", "per_head", "rank", "dim", "scale"]
        return ", ".join(f"{part}={getattr(self, part)!r}" for part in parts if getattr(self, part) is not None)


def _look_up(table: Float[Tensor, "*rows h q r"], places: Shaped[Tensor, "*batch q k"]) -> Float[Tensor, "*out h q k"]:
    """Each query's entry at the place of each key, the last one past an end; between places it is interpolated."""
    places = places.unsqueeze(-3)
    if not places.is_floating_point():
        return _take(table, places)
    places = places.nan_to_num(0.0).clamp(0, table.shape[-1] - 1)
    low = places.detach().floor()
    share = (places - low).to(table.dtype)
    return _take(table, low.long()) * (1 - share) + _take(table, low.long() + 1) * share


def _take(table: Float[Tensor, "*rows h q r"], index: Int[Tensor, "*batch 1 q k"]) -> Float[Tensor, "*out h q k"]:
    lead = torch.broadcast_shapes(table.shape[:-3], index.shape[:-3])
    index = index.clamp(0, table.shape[-1] - 1).expand(*lead, table.shape[-3], *index.shape[-2:])
    return table.expand(*lead, *table.shape[-3:]).gather(-1, index)


def _extents(name: str, given: int | Sequence[int]) -> tuple[int, ...]:
    """Largest differences on each axis, from one number for a sequence or one for each axis."""
    if isinstance(given, str):
        raise TypeError(f"{name} must be an integer or a sequence of them, got {given!r}")
    extents = tuple(given) if isinstance(given, Sequence) else (given,)
    if not extents:
        raise ValueError(f"{name} must have a number for each axis, got {given}")
    for extent in extents:
        if isinstance(extent, bool) or not isinstance(extent, int):
            raise TypeError(f"{name} must be an integer or a sequence of them, got {given!r}")
        if extent < 0:
            raise ValueError(f"{name} must not be negative, got {given}")
    return extents
