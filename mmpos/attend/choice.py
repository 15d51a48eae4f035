"""Which backend computes an attention, and why."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ..masks.sight import serves_any_size
from .dense import attend_dense
from .factors import Factors, count_channels, find_factors, widen
from .flex import attend_flex, why_not_flex
from .fused import KEPT, attend_blocks, attend_whole
from .pairs import CoordinateBias
from .problem import Problem, no_autocast

BACKENDS = ("auto", "dense", "sdpa", "blocks", "factors", "flex")
# With fewer queries, more channels for all of q, k and v cost more than a bias does.
QUERIES = 1024
# With fewer queries, the keys that blocks leave out in causal attention are too few to be worth several calls.
CAUSAL = 512
# Weights of all pairs, 256 MB, that kernels of CPUs may write out for gradients of a bias.
WEIGHTS = 2**26
# Documents and windows of more pairs than this are worth going through block by block, for blocks leave out the others.
PACKED, WINDOWED = 2**18, 2**15


class Choice(NamedTuple):
    """What computes an attention.

    Args:
        backend: "dense", "sdpa", "blocks", "factors" or "flex".
        reason: Why it was chosen.
    """

    backend: str
    reason: str


def choose(problem: Problem, backend: str) -> tuple[Choice, Callable[[], Tensor]]:
    """The choice for a problem, and what carries it out.

    Raises:
        ValueError: If the backend that is asked for cannot compute it.
    """
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}")
    if 0 in (*problem.q.shape, *problem.k.shape):
        return Choice("sdpa", "there is nothing to attend to"), lambda: attend_whole(problem)
    if backend == "auto":
        choice, factors = _choose(problem)
    else:
        choice, factors = Choice(backend, "it was asked for"), _check(problem, backend)
    if factors is not None:
        return choice, lambda: _attend_factors(problem, factors)
    attend = {"dense": attend_dense, "sdpa": attend_whole, "blocks": attend_blocks, "flex": attend_flex}
    return choice, lambda: attend[choice.backend](problem)


def _choose(problem: Problem) -> tuple[Choice, Factors | None]:
    if serves_any_size():
        return Choice("sdpa", "an exported program takes any number of tokens"), None
    if problem.bias is None:
        return _choose_unbiased(problem), None
    pairs, many = problem.pairs, problem.pairs > KEPT
    learns = torch.is_grad_enabled() and problem.bias.requires_grad
    if many and problem.q.is_cuda and torch.compiler.is_compiling() and not learns and why_not_flex(problem) is None:
        return Choice("flex", "compiled on CUDA, and the bias has a score"), None
    why_not = _reason("{} queries are too few for factors", problem.sight.queries)
    if problem.sight.queries >= QUERIES:
        most = problem.q.shape[-1] if many else problem.q.shape[-1] // 4
        rank = problem.bias.module.rank if isinstance(problem.bias, CoordinateBias) else None
        channels = count_channels(problem, rank or 0)
        found = find_factors(problem) if channels <= most else None
        if isinstance(found, Factors):
            channels = count_channels(problem, found.left.shape[-1])
            if channels <= most:
                return Choice("factors", _reason("the bias is an inner product of {} channels", channels)), found
        why_not = found if isinstance(found, str) else _reason("its factors have {} channels", channels)
    if many or problem.numbers > WEIGHTS:
        return Choice("blocks", _reason("the bias has {} numbers, more than are kept; ", pairs) + why_not), None
    if not torch.compiler.is_compiling() and problem.sight.is_causal and problem.sight.queries >= CAUSAL:
        return Choice("blocks", f"blocks leave out keys ahead; {why_not}"), None
    return Choice("sdpa", _reason("the bias has {} numbers, few enough; ", pairs) + why_not), None


def _choose_unbiased(problem: Problem) -> Choice:
    sight = problem.sight
    square = not sight.is_causal or sight.queries in (1, sight.keys)
    if sight.is_plain and square and not problem.writes_weights:
        return Choice("sdpa", "no bias, and no mask that the kernel has not of its own")
    pairs = sight.queries * sight.keys
    if problem.numbers <= KEPT and _is_for_any_size(pairs):  # blocks would be compiled for each size anew
        return Choice("sdpa", "compiled for any number of tokens")
    if sight.width * 2 < sight.keys and pairs > WINDOWED:
        return Choice("blocks", _reason("no bias, and a window of {} among {} keys", sight.width, sight.keys))
    if sight.same and pairs > PACKED:
        return Choice("blocks", "no bias, and documents: a block leaves out those of others")
    if problem.numbers > KEPT:
        why = _reason("no bias, but {} numbers of mask or weights, more than are kept", problem.numbers)
        return Choice("blocks", why)
    return Choice("sdpa", _reason("no bias, and {} numbers of mask or weights, few enough", problem.numbers))


def _is_for_any_size(size: int) -> bool:
    """Whether code is compiled that keeps a size open."""
    if not torch.compiler.is_compiling():
        return False
    from torch.fx.experimental.symbolic_shapes import has_static_value  # slow to import, and there by now

    return not has_static_value(size)


def _reason(text: str, *sizes: int) -> str:
    """A reason with its sizes; while code is compiled without them, for it would be made for these sizes only."""
    return text if torch.compiler.is_compiling() else text.format(*sizes)


def _check(problem: Problem, backend: str) -> Factors | None:
    """Refuses a backend that cannot compute a problem; the factors, where it takes them."""
    why_not = why_not_flex(problem) if backend == "flex" else None
    found = None
    if backend == "factors":
        found = "there is no bias" if problem.bias is None else find_factors(problem, claim=True)
        why_not, found = (found, None) if isinstance(found, str) else (None, found)
    if why_not is not None:
        raise ValueError(f"backend {backend!r} cannot compute this: {why_not}")
    return found


def _attend_factors(problem: Problem, factors: Factors) -> Tensor:
    wide = widen(problem, factors)
    with no_autocast(problem.q.device):
        attend = attend_whole if _choose_unbiased(wide).backend == "sdpa" else attend_blocks
        result = attend(wide)
    if factors.ordered is not None:
        result = torch.where(factors.ordered.reshape(-1, 1, 1, 1), result, torch.nan)
    return result
