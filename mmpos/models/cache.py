"""What a decoder keeps of the tokens that it has seen."""

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from ..attend import LayerCache


class Cache:
    """Keys and values of every layer, and the positions of the tokens that they are of.

    Rows may be padded on the left: pads are in the cache but not seen. By default keys are rotated when they come, each
    token keeps its position for ever, and all are kept. With a ``window`` the cache streams: it keeps the first
    ``sinks`` tokens and the last ``window``, keys stay as they are before rotation, and positions are counted within
    the cache anew at every step, so they never grow.

    Args:
        depth: Layers of the model.
        window: Tokens that are kept at the end; all if None.
        sinks: Tokens that are kept at the beginning, where there is a window.

    Raises:
        ValueError: If ``window`` is not positive, or ``sinks`` negative or given without a window.

    Reference:
        Xiao et al., Efficient streaming language models with attention sinks, 2023, sec. 3.2.
        https://arxiv.org/abs/2309.17453
    """

    def __init__(self, depth: int, *, window: int | None = None, sinks: int = 0):
        if window is not None and window < 1:
            raise ValueError(f"window must be positive, got {window}")
        if sinks < 0 or (sinks and window is None):
            raise ValueError(f"sinks ({sinks}) must not be negative, and 0 without a window")
        self.window, self.sinks = window, sinks
        self.layers = [LayerCache(is_rotated=window is None) for _ in range(depth)]
        self.coords: Int[Tensor, "b n 1"] | None = None
        self.real: Bool[Tensor, "b n"] | None = None

    def __len__(self) -> int:
        return 0 if self.real is None else self.real.shape[-1]

    @property
    def streams(self) -> bool:
        """Whether tokens are dropped and positions counted anew."""
        return self.window is not None

    def extend(
        self, real: Bool[Tensor, "b m"]
    ) -> tuple[Int[Tensor, "b m 1"], Int[Tensor, "b n 1"], Bool[Tensor, "b n"]]:
        """Makes room for new tokens: their positions, and positions and reality of all, those included."""
        everything = real if self.real is None else torch.cat([self.real, real], dim=-1)
        counted = (everything.cumsum(-1) - 1).where(everything, 0)[..., None]
        self.coords, self.real = counted, everything
        return counted[:, -real.shape[-1] :], counted, everything

    def trim(self) -> None:
        """Drops what lies between sinks and window, once every layer has appended."""
        if self.window is None or self.real is None or len(self) <= self.sinks + self.window:
            return
        seen = len(self)
        sinks = (~self.real).to(torch.uint8).argsort(dim=-1, stable=True)[:, : self.sinks]  # the first that are no pads
        window = torch.arange(seen - self.window, seen, device=sinks.device).expand(len(sinks), -1)
        columns = torch.cat([sinks, window], dim=-1)
        self.real = self.real.take_along_dim(columns, dim=-1)
        self.real[:, : self.sinks] &= sinks < seen - self.window  # the window of a short row has its first tokens
        for layer in self.layers:
            layer.take(columns)
