"""Attention as it is defined, which the other backends are measured by."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from ..masks import Span
from .problem import Problem, exact, no_autocast


def attend_dense(problem: Problem) -> Float[Tensor, "b h q e"]:
    """Logits and weights of all pairs, in float32 or, for float64, in float64."""
    q, k, v, bias, sight, scale, attn_drop = problem
    dtype, keys = exact(q.dtype), Span(0, 0, sight.keys)
    visible = sight.dense(0, sight.queries, keys)
    with no_autocast(q.device):
        k, v = (part.to(dtype).repeat_interleave(q.shape[1] // k.shape[1], dim=1) for part in (k, v))
        logits, behind = scale * q.to(dtype) @ k.mT, None
        if bias is not None:
            added = bias.dense(keys).to(dtype)
            added = added if visible is None else torch.where(visible, added, 0)
            logits, behind = (logits, added) if bias.after_softmax else (logits + added, None)
        if visible is not None:
            logits = logits.masked_fill(~visible, -torch.inf)
        sees_nothing = (logits == -torch.inf).all(-1, keepdim=True)
        weights = logits.masked_fill(sees_nothing, 0).softmax(-1).masked_fill(sees_nothing, 0)
        weights = F.dropout(weights, attn_drop)
        return (weights if behind is None else weights + behind) @ v
