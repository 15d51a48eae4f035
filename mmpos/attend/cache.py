"""Keys and values of earlier tokens."""

import torch
from jaxtyping import Float, Int
from torch import Tensor


class LayerCache:
    """What one layer keeps: keys, rotated already or not, and values."""

    def __init__(self, is_rotated: bool):
        self.is_rotated = is_rotated
        self.keys: Float[Tensor, "b g n d"] | None = None
        self.values: Float[Tensor, "b g n d"] | None = None

    def append(
        self, keys: Float[Tensor, "b g m d"], values: Float[Tensor, "b g m d"]
    ) -> tuple[Float[Tensor, "b g n d"], Float[Tensor, "b g n d"]]:
        """Adds tokens and returns all there are."""
        if self.keys is not None and self.values is not None:
            keys, values = torch.cat([self.keys, keys], dim=-2), torch.cat([self.values, values], dim=-2)
        self.keys, self.values = keys, values
        return keys, values

    def take(self, columns: Int[Tensor, "b n"]) -> None:
        """Keeps these tokens of each row."""
        if self.keys is not None and self.values is not None:
            index = columns[:, None, :, None]
            self.keys, self.values = (part.take_along_dim(index, dim=-2) for part in (self.keys, self.values))
