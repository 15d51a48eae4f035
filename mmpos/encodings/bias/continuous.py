"""Swin Transformer V2's continuous relative position bias."""

import math
from collections.abc import Sequence
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from ..base import AttentionBias
from ..checks import check_pair, check_positive
from .content import inner_products
from .differences import differences
from .lookup import flat_index, take_columns
from .offsets import check_window

Mode = Literal["swin", "linear", "cr"]
REACH, GAIN = 8.0, 16.0  # Swin V2's range of offsets before the logarithm, and its largest bias


class ContinuousBias(AttentionBias):
    """A small learned function of the offset of a query from a key, for offsets of any size.

    With ``d = q_coord - k_coord`` on each axis and ``w`` tokens there, the function is::

        mode      bias                sees on each axis
        "swin"    16 sigmoid(mlp(x))  x = sign(d) log2(1 + |8 d / (w - 1)|) / 3
        "linear"  16 sigmoid(mlp(x))  x = d / (w - 1)
        "cr"      mlp(x)              x = sign(d) ln(1 + |d|)

    where ``w - 1`` is 1 for an axis of one token. "linear" is the alternative of the paper, "cr" timm's. The network is
    ``Linear, ReLU, Linear``; the last has a bias in mode "cr" only. No tensor has the size of a window, so weights
    move between windows: `resize` changes nothing, and offsets keep the unit they were learned in. (Swin V2 without
    its ``pretrained_window_size`` stretches the unit instead: build with the new window and load the state.)

    ``mlp`` has the keys of Swin V2's ``cpb_mlp``. Integer offsets that are there many times are computed once, except
    in compiled code.

    Args:
        num_heads: Heads of queries ``h``.
        window: Tokens on each axis of the window whose farthest offset should be 8 (1 in mode "linear"); one number
            for a sequence. In mode "cr" only the number of axes matters.
        mode: See above.
        hidden_dim: Width of the hidden layer.

    Raises:
        ValueError: If a size is not positive, there are more than three axes, or the mode is unknown.

    Example:
        >>> bias, coords = ContinuousBias(num_heads=6, window=(7, 5)), grid_coords(height=9, width=8)
        >>> bias(coords, coords).shape, sum(p.numel() for p in bias.parameters())
        (torch.Size([6, 72, 72]), 4608)

    Reference:
        Liu et al., Swin transformer V2, 2022, sec. 3.3. https://arxiv.org/abs/2111.09883
    """

    def __init__(self, num_heads: int, window: int | Sequence[int], *, mode: Mode = "swin", hidden_dim: int = 512):
        super().__init__()
        check_positive("num_heads", num_heads)
        check_positive("hidden_dim", hidden_dim)
        if not isinstance(mode, str) or mode not in get_args(Mode):
            raise ValueError(f"mode must be one of {', '.join(get_args(Mode))}, got {mode!r}")
        self.num_heads, self.mode, self.hidden_dim = num_heads, mode, hidden_dim
        self.window = check_window("window", window)
        self.axes = len(self.window)
        with torch.random.fork_rng(devices=[]):  # drawn once, below, as what begins on the meta device is
            self.mlp = nn.Sequential(
                nn.Linear(self.axes, hidden_dim), nn.ReLU(), nn.Linear(hidden_dim, num_heads, bias=mode == "cr")
            )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws weights anew from a normal distribution of standard deviation 0.02, cut at 2; biases are 0."""
        for parameter in self.mlp.parameters():
            if parameter.ndim == 2:
                nn.init.trunc_normal_(parameter, std=0.02)
            else:
                nn.init.zeros_(parameter)

    def forward(
        self,
        q_coords: Shaped[Tensor, "*batch q a"],
        k_coords: Shaped[Tensor, "*batch k a"],
        *,
        query: Float[Tensor, "*rows h q d"] | None = None,
        key: Float[Tensor, "*rows g k d"] | None = None,
        tokens: Float[Tensor, "*rows k c"] | None = None,
    ) -> Float[Tensor, "*batch h q k"]:
        check_pair(q_coords, k_coords, self.axes, owner="ContinuousBias(window={order})")
        steps = differences(q_coords, k_coords)
        if steps.is_floating_point():
            # NaN would reach the gradients of the weights even where nobody uses the bias.
            unknown = steps.isnan().any(-1)
            bias = self._network(steps.masked_fill(unknown[..., None], 0)).masked_fill(unknown, torch.nan)
        elif torch.compiler.is_compiling() or steps.is_meta or not steps.numel():
            bias = self._network(steps)
        else:
            bias = self._at_integers(steps)
        return bias.movedim(0, -3)

    def _at_integers(self, steps: Int[Tensor, "*shape a"]) -> Float[Tensor, "h *shape"]:
        """Computes each offset of the box that they span once, unless the box has more of them than there are."""
        low, high = steps.flatten(0, -2).aminmax(dim=0)
        first, last = torch.stack([low, high]).tolist()
        sides = [b - a + 1 for a, b in zip(first, last, strict=True)]
        if math.prod(sides) > steps[..., 0].numel():
            return self._network(steps)
        number = torch.arange(math.prod(sides), device=steps.device)
        box = torch.stack(torch.unravel_index(number, sides), dim=-1) + low
        index = flat_index((steps - low).unbind(-1), sides)
        return take_columns(self._network(box), index)

    def _network(self, steps: Shaped[Tensor, "*shape a"]) -> Float[Tensor, "h *shape"]:
        """The function at these offsets, in float32 whatever the parameters are and autocast says."""
        seen = self._seen(steps.float()).flatten(0, -2)
        first, offset, last, *last_offset = (parameter.float() for parameter in self.mlp.parameters())
        hidden = (inner_products(seen[None], first[None]) + offset).relu()
        result = inner_products(last[None], hidden).view(self.num_heads, *steps.shape[:-1])
        if last_offset:
            result = result + last_offset[0].view(-1, *(1,) * (steps.ndim - 1))
        return result if self.mode == "cr" else GAIN * result.sigmoid()

    def _seen(self, steps: Float[Tensor, "*shape a"]) -> Float[Tensor, "*shape a"]:
        """What the network sees of offsets."""
        if self.mode != "cr":
            steps = steps / torch.tensor([max(side - 1, 1) for side in self.window], device=steps.device)
        if self.mode == "linear":
            return steps
        sign = torch.where(steps < 0, -1.0, 1.0)  # unlike torch.sign it leaves a gradient at 0
        if self.mode == "cr":
            return sign * (sign * steps).log1p()
        return sign * (REACH * sign * steps).log1p() / math.log(REACH)

    def extra_repr(self) -> str:
        return f"num_heads={self.num_heads}, window={self.window}, mode={self.mode!r}, hidden_dim={self.hidden_dim}"
