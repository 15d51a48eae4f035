"""Biases and masks as functions that FlexAttention compiles into its kernel."""

from functools import cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..encodings import AttentionBias
from .pairs import CoordinateBias
from .problem import Problem


def why_not_flex(problem: Problem) -> str | None:
    """What keeps a problem from FlexAttention; None if nothing does."""
    bias = problem.bias
    if problem.attn_drop:
        return "FlexAttention has no dropout of weights"
    if (
        problem.q.device.type == "cpu"
        and torch.is_grad_enabled()
        and any(part.requires_grad for part in (problem.q, problem.k, problem.v))
    ):
        return "FlexAttention has no backward pass on CPUs"
    if bias is None:
        return None
    if not isinstance(bias, CoordinateBias):
        return "FlexAttention takes biases of coordinates, not tensors"
    name = type(bias.module).__name__
    if bias.after_softmax:
        return f"{name} is added after the softmax"
    if type(bias.module).score is AttentionBias.score:
        return f"{name} has no score"
    return None


@cache
def _compiled(device_type: str) -> tuple[Any, Any]:
    """FlexAttention and its block masks, compiled once: uncompiled they write out all pairs."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    dynamic = False if device_type == "cpu" else None  # PyTorch 2.14 writes wrong C++ for sizes that change
    return torch.compile(flex_attention, dynamic=dynamic), torch.compile(create_block_mask, dynamic=dynamic)


def attend_flex(problem: Problem) -> Float[Tensor, "b h q e"]:
    """One kernel in which the bias of a pair is computed where it is needed."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    if not torch.compiler.is_compiling():
        flex_attention, create_block_mask = _compiled(problem.q.device.type)
    q, k, v, bias, sight, scale, _ = problem
    mask, score = None, None
    if not sight.is_plain or sight.is_causal:
        mask = create_block_mask(
            lambda b, h, i, j: sight.sees(b, h, i, j), *sight.rows, sight.queries, sight.keys, device=q.device.type
        )
    if isinstance(bias, CoordinateBias):
        score = lambda logit, b, h, i, j: _add_score(bias, logit, b, h, i, j)  # noqa: E731
    grouped = q.shape[1] != k.shape[1]
    return flex_attention(q, k, v, score_mod=score, block_mask=mask, scale=scale, enable_gqa=grouped)


def _add_score(bias: CoordinateBias, logit: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """A logit and its bias, from the indices of row, head, query and key."""
    q_coord = _coord(bias.q_coords, b, (i - bias.q_prefix).clamp(min=0))
    k_coord = _coord(bias.k_coords, b, (j - bias.k_prefix).clamp(min=0))
    score = bias.module.score(h, q_coord, k_coord)
    if bias.q_prefix or bias.k_prefix:
        values = bias.module.prefix_bias()
        to_tokens, of_tokens, between = (0.0, 0.0, 0.0) if values is None else (row[h] for row in values)
        of_prefix = torch.where(j >= bias.k_prefix, to_tokens, between)
        score = torch.where(i >= bias.q_prefix, torch.where(j >= bias.k_prefix, score, of_tokens), of_prefix)
    return logit + score


def _coord(coords: Tensor, b: Tensor, place: Tensor) -> Any:
    """The coordinate of one token; compiled, a kernel takes a row of numbers for one, so they come one by one."""
    if coords.ndim == 2:
        return [coords[place, axis] for axis in range(coords.shape[-1])]
    row = b if coords.shape[0] > 1 else 0
    return [coords[row, place, axis] for axis in range(coords.shape[-1])]
