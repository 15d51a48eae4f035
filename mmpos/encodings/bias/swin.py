"""Swin Transformer's relative position bias, also BEiT's."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from ...arguments import check_flag
from ..base import AttentionBias
from ..checks import check_pair, check_positive
from .differences import Coord
from .offsets import cells_of, check_window, fit_table, offset_bias, offset_score, resize_table, table_shape

PREFIX_ROWS = 3


class SwinBias(AttentionBias):
    """A learned number for each head and offset of a query from a key: ``weight[q_coord - k_coord + window - 1]``.

    Integer coordinates pick their entry; between whole offsets it is interpolated linearly. Pairs further apart than
    the window holds are an error in eager mode; compiled, exported and on the meta device they get NaN.

    The rows of ``weight`` are in the order of Swin's and BEiT's ``relative_position_bias_table``. Such a flat table
    loads as ``weight``; with ``prefix`` its last three rows go to ``prefix_weight``.

    Args:
        num_heads: Heads of queries ``h``.
        window: Tokens on each of one to three axes; one number for a sequence.
        prefix: Whether prefix tokens have a bias, as BEiT's class token has: one number for each head where they look
            at tokens, one where tokens look at them, one among themselves. Without it theirs is 0.
        resize_on_load: Whether a checkpoint of another window is resized to this one, with a warning.

    Raises:
        ValueError: If a size is not positive or there are more than three axes.

    Example:
        >>> bias, coords = SwinBias(num_heads=6, window=(7, 5)), grid_coords(height=7, width=5)
        >>> bias.weight.shape, bias(coords, coords).shape
        (torch.Size([13, 9, 6]), torch.Size([6, 35, 35]))
        >>> bias.resize(9, 8).weight.shape
        torch.Size([17, 15, 6])

    Reference:
        Liu et al., Swin transformer, 2021, sec. 3.2. https://arxiv.org/abs/2103.14030
        Bao et al., BEiT, 2021, and its released code for the class token. https://arxiv.org/abs/2106.08254
    """

    needs_cells = True

    def __init__(
        self, num_heads: int, window: int | Sequence[int], *, prefix: bool = False, resize_on_load: bool = False
    ):
        super().__init__()
        check_positive("num_heads", num_heads)
        self.num_heads, self.window = num_heads, check_window("window", window)
        check_flag("prefix", prefix)
        check_flag("resize_on_load", resize_on_load)
        self.axes, self.prefix, self.resize_on_load = len(self.window), prefix, resize_on_load
        self.weight = nn.Parameter(torch.empty(table_shape(self.window, num_heads)))
        self.prefix_weight = nn.Parameter(torch.empty(PREFIX_ROWS, num_heads)) if prefix else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws all entries anew from a normal distribution of standard deviation 0.02, cut at 2."""
        for weight in self.parameters():
            nn.init.trunc_normal_(weight, std=0.02)

    def example_coords(self, n: int) -> Int[Tensor, "n a"]:
        """``n`` coordinates whose offsets the table holds, for tests."""
        return cells_of(self.window, n)

    def resize(self, *window: int, mode: str = "bicubic", antialias: bool = False) -> "SwinBias":
        """A new bias of another window, resampled from this one by `resample_bias_table`; prefix tokens keep theirs."""
        weight = resize_table(self.weight.detach(), window, mode=mode, antialias=antialias)
        with torch.device("meta"):  # draws no random numbers
            bias = SwinBias(self.num_heads, window, prefix=self.prefix, resize_on_load=self.resize_on_load)
        bias.weight = nn.Parameter(weight.clone(), requires_grad=self.weight.requires_grad)
        if self.prefix_weight is not None:
            rows = self.prefix_weight
            bias.prefix_weight = nn.Parameter(rows.detach().clone(), requires_grad=rows.requires_grad)
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
        check_pair(q_coords, k_coords, self.axes, owner="SwinBias(window={order})")
        return offset_bias(self.weight, q_coords, k_coords, owner="SwinBias")

    def score(self, head: Int[Tensor, ""], q_coord: Coord, k_coord: Coord) -> Float[Tensor, ""]:
        return offset_score(self.weight, head, q_coord, k_coord)

    def prefix_bias(self) -> Float[Tensor, "3 h"] | None:
        return None if self.prefix_weight is None else self.prefix_weight.float()

    def _load_from_state_dict(
        self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
    ):
        """Takes the tables of Swin and BEiT as they are, and explains or resizes one of another window."""
        table = state_dict.get(prefix + "weight")
        if table is not None:
            try:
                table = self._split_prefix(table, state_dict, prefix)
                fitted = fit_table(table, self.window, self.num_heads, "SwinBias", self.resize_on_load)
            except ValueError as error:
                error_msgs.append(f"{prefix}weight of the checkpoint {error}")
                return
            state_dict[prefix + "weight"] = fitted
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )

    def _split_prefix(self, table: Tensor, state_dict: dict, prefix: str) -> Tensor:
        """Moves the last rows of BEiT's flat table, whose number is even with them and odd without, to their name."""
        if table.ndim != 2 or len(table) % 2 or len(table) <= PREFIX_ROWS:
            return table
        if self.prefix_weight is None:
            raise ValueError(
                f"has {len(table)} rows, an even number: {PREFIX_ROWS} are of a class token; build this SwinBias with "
                "prefix=True"
            )
        state_dict[prefix + "prefix_weight"] = table[-PREFIX_ROWS:]
        return table[:-PREFIX_ROWS]

    def extra_repr(self) -> str:
        return f"num_heads={self.num_heads}, window={self.window}" + (", prefix=True" if self.prefix else "")
