"""Attention through PyTorch's fused kernels, of all queries at once or of a block of them at a time."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from ..masks import Span
from ..masks.sight import cut
from .pairs import PairBias
from .problem import Problem, exact, no_autocast

# Numbers of a bias that a block may have, 8 MB in float32.
BLOCK = 2**21
# Of bias, mask or weights no more numbers than this, 32 MB, are kept for the backward pass.
KEPT = 2**23
# Queries of a block, however many numbers they have: the share of q, k and v that a block of them takes is small.
ROWS = 32


def attend_whole(problem: Problem) -> Float[Tensor, "b h q e"]:
    """All queries in one call, with bias and mask as one tensor of all pairs, or without any."""
    sight = problem.sight
    if problem.bias is None and sight.is_plain and sight.is_causal and sight.queries == sight.keys > 1:
        return _call(problem, problem.q, problem.k, problem.v, None, is_causal=True)
    with _autocast(problem):
        problem = _cast(problem)
        return _attend(problem, problem.q, problem.bias, 0, sight.queries, Span(0, 0, sight.keys))


def attend_blocks(problem: Problem) -> Float[Tensor, "b h q e"]:
    """A block of queries at a time, each with the keys that it may see; in training the backward pass repeats it."""
    problem = _fix_sizes(problem)
    blocks = cut(problem.sight.queries, _rows_of_a_block(problem))
    sizes = [stop - start for start, stop in blocks]
    repeat = len(blocks) > 1 and problem.numbers > KEPT and problem.wants_gradients
    results = []
    with _autocast(problem):
        problem = _cast(problem)
        biases = [None] * len(blocks) if problem.bias is None else problem.bias.split(sizes)
        for (start, stop), q, bias in zip(blocks, problem.q.split(sizes, dim=-2), biases, strict=True):
            block = partial(_attend, problem, q, bias, start, stop, problem.sight.keys_seen(start, stop))
            results.append(_checkpoint(block, problem.attn_drop > 0) if repeat else block())
    return torch.cat(results, dim=-2)


def _fix_sizes(problem: Problem) -> Problem:
    """Makes numbers of sizes that compiled code keeps open, by counting: it writes blocks out, for these sizes only."""
    _, queries, _ = (len(range(size)) for size in problem.q.shape[1:])
    _, keys, _, _ = (len(range(size)) for size in (*problem.k.shape[1:], problem.v.shape[-1]))
    return problem._replace(sight=problem.sight._replace(queries=queries, keys=keys))


def _cast(problem: Problem) -> Problem:
    """With a bias all is float32 at least: kernels want both alike, and half precision cannot tell far keys apart."""
    if problem.bias is None:
        return problem
    q, k, v = (part.to(exact(problem.q.dtype)) for part in problem[:3])
    return problem._replace(q=q, k=k, v=v)


def _autocast(problem: Problem) -> AbstractContextManager:
    """Autocast as it is, or off where there is a bias."""
    return nullcontext() if problem.bias is None else no_autocast(problem.q.device)


def _rows_of_a_block(problem: Problem) -> int:
    sight = problem.sight
    copies = max(problem.numbers // max(sight.queries * sight.keys, 1), 1)
    if sight.width * 2 < sight.keys:  # a block as long as the window sees twice as much
        return min(max(BLOCK // (copies * 2 * sight.width), ROWS), max(sight.width, ROWS))
    rows = BLOCK // (copies * max(sight.keys, 1))
    if sight.is_causal:  # of eight blocks, the keys ahead of a block are left out in all but the last
        rows = min(rows, -(-sight.queries // 8))
    return max(rows, ROWS)


def _checkpoint(block: Callable[[], Tensor], random: bool) -> Tensor:
    from torch.utils.checkpoint import checkpoint

    return checkpoint(block, use_reentrant=False, preserve_rng_state=random)


def _attend(
    problem: Problem, q: Float[Tensor, "b h m d"], bias: PairBias | None, start: int, stop: int, keys: Span
) -> Float[Tensor, "b h m e"]:
    """Queries ``start`` to ``stop``, which are ``q`` and have this bias, with some keys."""
    sight = problem.sight
    k, v = keys.take(problem.k, -2), keys.take(problem.v, -2)
    visible = sight.dense(start, stop, keys)
    blind = ~visible.any(-1, keepdim=True) if visible is not None and sight.can_blind else None
    # The softmax of a query that sees no key is kept finite by letting it see all, and its result made 0.
    sighted = visible if visible is None or blind is None else visible | blind
    if bias is None:
        result = _call(problem, q, k, v, sighted)
    else:
        dense = bias.dense(keys).to(q.dtype)
        if bias.after_softmax:
            dense = dense if visible is None else torch.where(visible, dense, 0)
            result = _call(problem, q, k, v, sighted) + _weigh(dense, v, q.shape[1])
        else:
            dense = dense if sighted is None else torch.where(sighted, dense, -torch.inf)
            dense = dense if blind is None else dense.masked_fill(blind, 0)
            result = _call(problem, q, k, v, dense)
    return result if blind is None else result.masked_fill(blind, 0)


def _call(
    problem: Problem,
    q: Float[Tensor, "b h m d"],
    k: Float[Tensor, "b g n d"],
    v: Float[Tensor, "b g n e"],
    added: Bool[Tensor, "..."] | Float[Tensor, "..."] | None,
    is_causal: bool = False,
) -> Float[Tensor, "b h m e"]:
    width, grouped = v.shape[-1], False
    if q.shape[1] != k.shape[1]:  # a branch, since under dynamic shapes the comparison is no bool
        grouped = True
    more = q.shape[-1] - width  # kernels take one width only
    if more > 0:
        v = F.pad(v, (0, more))
    elif more < 0:
        q, k = F.pad(q, (0, -more)), F.pad(k, (0, -more))
    result = F.scaled_dot_product_attention(
        q, k, v, added, problem.attn_drop, is_causal=is_causal, scale=problem.scale, enable_gqa=grouped
    )
    return result[..., :width]


def _weigh(weights: Float[Tensor, "#b #h m n"], v: Float[Tensor, "b g n e"], heads: int) -> Float[Tensor, "b h m e"]:
    """The sum of values by weights, of grouped heads too."""
    rows, groups = weights.shape[-2], v.shape[1]
    weights = weights.expand(-1, heads, -1, -1).unflatten(1, (groups, -1)).flatten(2, 3)
    return (weights @ v).unflatten(2, (-1, rows)).flatten(1, 2)
