"""What all backends are given."""

from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ..masks import Sight
from .pairs import PairBias


class Problem(NamedTuple):
    """Attention with its positions prepared: ``softmax(scale * q . k + bias) v`` where the mask lets a query see.

    Args:
        q: Queries, rotated and scaled, in one axis for the batch.
        k: Keys, rotated.
        v: Values.
        bias: What is added to the logits, or to the weights behind the softmax.
        sight: Which keys queries see.
        scale: Factor of the logits.
        attn_drop: Probability that a weight is dropped.
    """

    q: Float[Tensor, "b h q d"]
    k: Float[Tensor, "b g k d"]
    v: Float[Tensor, "b g k e"]
    bias: PairBias | None
    sight: Sight
    scale: float
    attn_drop: float

    @property
    def pairs(self) -> int:
        """Numbers that bias and mask have for all pairs of queries and keys."""
        batch, heads = self.sight.rows
        copies = max(batch * heads, 1 if self.bias is None else self.bias.copies)
        return copies * self.sight.queries * self.sight.keys

    @property
    def wants_gradients(self) -> bool:
        """Whether there will be a backward pass."""
        wanted = [part.requires_grad for part in (self.q, self.k, self.v)]
        return torch.is_grad_enabled() and (any(wanted) or (self.bias is not None and self.bias.requires_grad))

    @property
    def writes_weights(self) -> bool:
        """Whether kernels write out the weights of all pairs: on CPUs, for gradients of a bias or to drop some."""
        learns = self.bias is not None and self.bias.requires_grad and torch.is_grad_enabled()
        return self.q.device.type == "cpu" and (learns or self.attn_drop > 0)

    @property
    def numbers(self) -> int:
        """Numbers of what is written out for all pairs: bias and mask, or weights."""
        batch, heads, queries, _ = self.q.shape
        return batch * heads * queries * self.sight.keys if self.writes_weights else self.pairs


def autocasts(device: torch.device) -> bool:
    """Whether autocast is on."""
    return device.type != "meta" and torch.is_autocast_enabled(device.type)


def no_autocast(device: torch.device) -> AbstractContextManager:
    """Leaves float32 alone; the meta device has no autocast to switch off."""
    return nullcontext() if device.type == "meta" else torch.autocast(device.type, enabled=False)


def exact(dtype: torch.dtype) -> torch.dtype:
    """The precision of biases: float32, or float64 where queries have it."""
    return torch.promote_types(dtype, torch.float32)
