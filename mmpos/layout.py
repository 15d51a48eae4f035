"""Weights of queries and keys between the two ways to pair channels."""

import re
from collections.abc import Mapping
from typing import overload

import torch
from jaxtyping import Shaped
from torch import Tensor

from .encodings.base import Layout
from .encodings.checks import check_layout, check_positive

QUERY_AND_KEY = r"(^|\.)(q|k|query|key|q_proj|k_proj)\.(weight|bias)$"


@overload
def convert_layout(
    weights: Tensor, to: Layout, *, head_dim: int, rotary_dim: int | None = ..., num_heads: int | None = ...
) -> Tensor: ...
@overload
def convert_layout(
    weights: Mapping[str, Tensor],
    to: Layout,
    *,
    head_dim: int,
    rotary_dim: int | None = ...,
    num_heads: int | None = ...,
    names: str = ...,
) -> dict[str, Tensor]: ...
def convert_layout(
    weights: Tensor | Mapping[str, Tensor],
    to: Layout,
    *,
    head_dim: int,
    rotary_dim: int | None = None,
    num_heads: int | None = None,
    names: str = QUERY_AND_KEY,
) -> Tensor | dict[str, Tensor]:
    """Permutes projections of queries and keys so that a rotation of the other layout has the same effect.

    ::

        interleaved   0 1 2 3 4 5        half   0 2 4 1 3 5
        pairs         a a b b c c        pairs  a b c a b c

    Logits are unchanged when queries and keys are both converted; values and the output projection stay as they are.
    There and back is the identity, to the bit.

    Args:
        weights: A weight ``(heads * head_dim, in)``, a bias or the weight of a norm ``(heads * head_dim,)``, or a
            state dict.
        to: The layout to convert to, from the other one.
        head_dim: Channels per head.
        rotary_dim: Channels that turn, the first of each head; all unless given.
        num_heads: Leading heads to convert, where a projection has others behind them: heads of queries plus heads of
            keys for a fused projection of q, k and v. All unless given.
        names: Regular expression for the entries of a state dict that are converted.

    Raises:
        ValueError: If the rows are not whole heads, there are fewer heads than ``num_heads``, ``rotary_dim`` is odd or
            more than ``head_dim``, the layout is unknown, or no name of a state dict matches.

    Example:
        >>> convert_layout(torch.arange(6.0), "half", head_dim=6)
        tensor([0., 2., 4., 1., 3., 5.])
    """
    check_layout(to)
    check_positive("head_dim", head_dim)
    rotary_dim = head_dim if rotary_dim is None else rotary_dim
    check_positive("rotary_dim", rotary_dim)
    if num_heads is not None:
        check_positive("num_heads", num_heads)
    if rotary_dim % 2 or not 0 < rotary_dim <= head_dim:
        raise ValueError(f"rotary_dim ({rotary_dim}) must be even and at most head_dim ({head_dim})")
    if isinstance(weights, Tensor):
        return _convert(weights, to, head_dim, rotary_dim, num_heads, "weights")
    if not isinstance(weights, Mapping):
        raise TypeError(f"weights must be a tensor or a state dict, got {type(weights).__name__}")
    if not isinstance(names, str):
        raise TypeError(f"names must be a regular expression, got {names!r}")
    chosen = [name for name in weights if re.search(names, name)]
    if not chosen:
        raise ValueError(f"no name of the state dict matches {names!r}; it has {', '.join(list(weights)[:5])}, ...")
    converted = {name: _convert(weights[name], to, head_dim, rotary_dim, num_heads, name) for name in chosen}
    return {**weights, **converted}


def _convert(
    weight: Shaped[Tensor, "rows *rest"], to: Layout, head_dim: int, rotary_dim: int, num_heads: int | None, name: str
) -> Shaped[Tensor, "rows *rest"]:
    if weight.ndim < 1 or weight.shape[0] % head_dim:
        raise ValueError(f"{name} has shape {tuple(weight.shape)}, whose rows are not whole heads of {head_dim}")
    heads = weight.unflatten(0, (-1, head_dim))
    num_heads = len(heads) if num_heads is None else num_heads
    if not 0 < num_heads <= len(heads):
        raise ValueError(f"{name} has {len(heads)} heads, so num_heads cannot be {num_heads}")
    channels = torch.arange(rotary_dim, device=weight.device)
    order = channels.unflatten(0, (-1, 2)).T if to == "half" else channels.unflatten(0, (2, -1)).T
    heads = heads.clone()
    heads[:num_heads, :rotary_dim] = heads[:num_heads, order.flatten()]
    return heads.flatten(0, 1)
