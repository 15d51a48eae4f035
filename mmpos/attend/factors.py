"""Biases that are inner products, as more channels of queries and keys."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from ..encodings import AttentionBias
from ..masks import Sight
from ..masks.sight import values_known
from .pairs import CoordinateBias
from .problem import Problem, autocasts, exact

# Channels of fused kernels come in eights.
CHANNELS = 8
# Three numbers of bfloat16, 8 bits each, hold one of float32.
PARTS = 3


class Factors(NamedTuple):
    """A bias as the inner product of what a query and a key have."""

    left: Float[Tensor, "#b #h q r"]
    right: Float[Tensor, "#b #h k r"]
    ordered: Bool[Tensor, "#b"] | None  # what they take for granted, where it could not be looked up


def find_factors(problem: Problem, *, claim: bool = False) -> Factors | str:
    """The factors of a problem's bias, or why it has none.

    Args:
        problem: What has a bias.
        claim: Whether to take coordinates for ordered where their values are not known.
    """
    bias = problem.bias
    if not isinstance(bias, CoordinateBias):
        return "a tensor has no factors"
    name = type(bias.module).__name__
    if type(bias.module).factors is AttentionBias.factors:
        return f"{name} has no factors"
    if bias.after_softmax:
        return f"{name} is added after the softmax"
    if not problem.scale:
        return "the scale is 0"
    if bias.q_prefix or bias.k_prefix:
        return "factors leave out a number of each query's own, which prefix tokens, whose bias is given, would lack"
    ordered, claimed = None, False
    if problem.sight.is_causal:
        ordered = _are_ordered(bias.q_coords, bias.k_coords, problem.sight)
        claimed = bool(ordered.all()) if values_known(ordered) else claim
    found = bias.module.factors(bias.q_coords, bias.k_coords, ordered=claimed, **bias.of_queries, **bias.of_keys)
    if found is None:
        return f"{name} has no factors" + ("" if claimed else " where coordinates do not grow along causal attention")
    left, right = (part[(None,) * (4 - part.ndim)] for part in found)
    return Factors(left, right, None if ordered is None or values_known(ordered) else ordered)


def count_channels(problem: Problem, rank: int) -> int:
    """How many channels factors of so many take."""
    return rank * PARTS * (PARTS + 1) // 2 if _dtype(problem.q) == torch.bfloat16 else rank


def widen(problem: Problem, factors: Factors) -> Problem:
    """The same attention without a bias: the factors are the first channels of queries and keys."""
    sight, dtype = problem.sight, _dtype(problem.q)
    q, k, v = (part.to(dtype) for part in (problem.q, problem.k, problem.v))
    left, right = factors.left.to(exact(dtype)) / problem.scale, factors.right.to(exact(dtype))
    # What the key at its own place gets is taken from all keys of a query, which leaves the softmax as it is. Being
    # the first channel it is the first number of the sum, so the biases of near keys lose no digits to their size.
    place = (torch.arange(sight.queries, device=q.device) + sight.keys - sight.queries).clamp(min=0)
    own = -(left * right[:, :, place]).sum(-1, keepdim=True).detach().nan_to_num(0.0, 0.0, 0.0)
    if dtype == torch.bfloat16:
        left, right = _split(left, right)
    left, right = torch.cat([own, left.expand(*own.shape[:-1], -1)], -1), F.pad(right, (1, 0), value=1.0)
    if right.shape[1] not in (1, k.shape[1]):
        k, v = (part.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for part in (k, v))
    return problem._replace(q=_join(left, q), k=_join(right, k), v=v, bias=None)


def _dtype(q: Tensor) -> torch.dtype:
    """What the attention is computed in: float16 is too small for positions, so it takes float32."""
    dtype = torch.get_autocast_dtype(q.device.type) if autocasts(q.device) and q.dtype != torch.float64 else q.dtype
    return torch.float32 if dtype == torch.float16 else dtype


def _join(factors: Float[Tensor, "#b #h n r"], x: Float[Tensor, "b h n d"]) -> Float[Tensor, "b h n c"]:
    missing = -(factors.shape[-1] + x.shape[-1]) % CHANNELS
    parts = [factors.to(x.dtype).expand(*x.shape[:-1], -1), x]
    return torch.cat(parts + [x.new_zeros(()).expand(*x.shape[:-1], missing)] * bool(missing), dim=-1)


def _split(
    left: Float[Tensor, "#b #h q r"], right: Float[Tensor, "#b #h k r"]
) -> tuple[Float[Tensor, "#b #h q s"], Float[Tensor, "#b #h k s"]]:
    """The same inner products of numbers that bfloat16 holds: sums of parts, whose smallest products are left out."""
    products = [
        (own, other) for i, own in enumerate(_parts(left)) for j, other in enumerate(_parts(right)) if i + j < PARTS
    ]
    lefts, rights = zip(*products, strict=True)
    return torch.cat(lefts, -1), torch.cat(rights, -1)


def _parts(x: Tensor) -> list[Tensor]:
    """Numbers of bfloat16, each of what those before it leave, that add up to ``x``."""
    parts = []
    for _ in range(PARTS):
        parts.append(x.bfloat16().to(x.dtype))
        x = x - parts[-1]
    return parts


def _are_ordered(
    q_coords: Shaped[Tensor, "*#b m a"], k_coords: Shaped[Tensor, "*#b n a"], sight: Sight
) -> Bool[Tensor, "*b"]:
    """Whether no key up to the place of a query lies past it on any axis, as far as growing coordinates say so."""
    shift = sight.keys - sight.queries
    grow = (k_coords[..., 1:, :] >= k_coords[..., :-1, :]).all(-1).all(-1)
    reach = q_coords[..., max(-shift, 0) :, :] >= k_coords[..., max(shift, 0) :, :]
    return grow & reach.all(-1).all(-1)
