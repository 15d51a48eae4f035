"""The relative position encoding of ConvTran."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from ...arguments import check_flag
from ..base import AttentionBias
from ..checks import check_pair, check_positive
from .differences import Coord
from .offsets import cells_of, check_window, fit_table, offset_bias, offset_score, resize_table, table_shape


class ERPE(AttentionBias):
    """Efficient relative position encoding: ``weight[q_coord - k_coord + size - 1]``, added behind the softmax.

    The weights with which a query attends no longer sum to 1. ``weight`` starts at zero, so an untrained model attends
    as if without positions. Coordinates between whole numbers interpolate linearly. Pairs further apart than
    the table holds are an error in eager mode; compiled, exported and on the meta device they get NaN.

    Args:
        num_heads: Heads of queries ``h``.
        size: Tokens of the series, or on each of up to three axes. The paper has one axis.
        resize_on_load: Whether a checkpoint of another size is resized to this one, with a warning.

    Raises:
        ValueError: If a size is not positive or there are more than three axes.

    Example:
        >>> bias, coords = ERPE(num_heads=8, size=96), sequence_coords(96)
        >>> bias.weight.shape, bias(coords, coords).shape, bias.after_softmax
        (torch.Size([191, 8]), torch.Size([8, 96, 96]), True)
        >>> bias.resize(128).weight.shape
        torch.Size([255, 8])

    Reference:
        Foumani et al., Improving position encoding of transformers for multivariate time series classification, 2023,
        sec. 4.2. https://arxiv.org/abs/2305.16642
    """

    needs_cells = True
    after_softmax = True

    def __init__(self, num_heads: int, size: int | Sequence[int], *, resize_on_load: bool = False):
        super().__init__()
        check_positive("num_heads", num_heads)
        self.num_heads, self.size = num_heads, check_window("size", size)
        check_flag("resize_on_load", resize_on_load)
        self.axes, self.resize_on_load = len(self.size), resize_on_load
        self.weight = nn.Parameter(torch.empty(table_shape(self.size, num_heads)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Sets all entries to zero."""
        nn.init.zeros_(self.weight)

    def example_coords(self, n: int) -> Int[Tensor, "n a"]:
        """``n`` coordinates whose offsets the table holds, for tests."""
        return cells_of(self.size, n)

    def resize(self, *size: int, mode: str = "bicubic", antialias: bool = False) -> "ERPE":
        """A new bias of another size, resampled from this one by `resample_bias_table`."""
        weight = resize_table(self.weight.detach(), size, mode=mode, antialias=antialias)
        with torch.device("meta"):
            bias = ERPE(self.num_heads, size, resize_on_load=self.resize_on_load)
        bias.weight = nn.Parameter(weight.clone(), requires_grad=self.weight.requires_grad)
        return bias.train(self.training)

    def forward(
        self,
        q_coords: Shaped[Tensor, "*batch q a"],
        k_coords: Shaped[Tensor, "*batch k a"],
        *,
        query: Float[Tensor, "*rows h q d"] | None = None,
        key: Float[Tensor, "*rows g k d"] | None = None,
        tokens: Float[Tensor, "*rows k c"] | None = None,
    ) -> Float[Tensor, "*batch h q k"]:
        check_pair(q_coords, k_coords, self.axes, owner="ERPE(size={order})")
        return offset_bias(self.weight, q_coords, k_coords, owner="ERPE")

    def score(self, head: Int[Tensor, ""], q_coord: Coord, k_coord: Coord) -> Float[Tensor, ""]:
        return offset_score(self.weight, head, q_coord, k_coord)

    def _load_from_state_dict(
        self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
    ):
        """Explains or resizes a table of another size."""
        table = state_dict.get(prefix + "weight")
        if table is not None:
            try:
                fitted = fit_table(table, self.size, self.num_heads, "ERPE", self.resize_on_load)
            except ValueError as error:
                error_msgs.append(f"{prefix}weight of the checkpoint {error}")
                return
            state_dict[prefix + "weight"] = fitted
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )

    def extra_repr(self) -> str:
        return f"num_heads={self.num_heads}, size={self.size}"
