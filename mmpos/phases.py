"""Exact cosines and sines of large angles, in integer arithmetic.

A phase matters only up to whole turns. So a frequency is kept as its share of a turn in units of 2^-64, an integer,
and multiplied with the coordinate in int64, whose overflow drops whole turns and nothing else. The cosine of the
remaining phase is an integer polynomial. There is no rounding before the last step, so the result is right at any
coordinate, and has the same bits in eager and compiled code and on every device.
"""

import math
from collections.abc import Sequence
from decimal import Decimal, localcontext

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor

DIGITS = 60
TURN = Decimal("6.28318530717958647692528676655900576839433879875021164194988918")  # 2 pi

# A coordinate is a sum of 32-bit limbs, limb k in units of 2^(32 k): integers have the first two, floats all four.
LIMBS = (0, 1, -1, -2)

# sin(pi / 2 x) / x as a polynomial of x^2 on [-1, 1] in units of 2^-31; minimax, off by 1.4e-11 at most.
QUARTER_SINE = (3373259426, -1387197326, 171138528, -10053703, 344064, -7341)

# Angles that are computed at a time: what is between, in int64, then stays in a processor's cache.
ANGLES = 2**18

# A table of the coordinates of single axes is worth it for so many angles, and so many times more tokens than rows.
MANY = 2**14
FEWER = 4

Steps = tuple[tuple[tuple[tuple[int, ...], ...], ...], ...]  # (limb, h, a, p)


def phase_steps(freqs: Sequence[Sequence[Sequence[Decimal]]]) -> Steps:
    """What one unit of each limb of a coordinate adds to the phase, for frequencies ``(h, a, p)`` in radians."""
    return tuple(
        tuple(tuple(tuple(_turn_share(freq, limb) for freq in row) for row in head) for head in freqs) for limb in LIMBS
    )


def exact_cos_sin(
    coords: Shaped[Tensor, "*batch n a"], steps: Steps
) -> tuple[Float[Tensor, "*batch h n p"], Float[Tensor, "*batch h n p"]]:
    """Cosine and sine of every pair's angle in float32, within 1e-7 of the true value at any coordinate.

    A coordinate that is NaN, infinite or beyond int64 gives NaN for its token. No gradient flows to coordinates.
    """
    if (turns := _turns_by_axis(coords, steps)) is not None:
        return turns
    tokens = _tokens_at_a_time(coords, steps)
    if tokens is not None:
        parts = [exact_cos_sin(part, steps) for part in coords.split(tokens, dim=-2)]
        cos, sin = (torch.cat(part, dim=-2) for part in zip(*parts, strict=True))
        return cos, sin
    if not coords.is_floating_point():
        return _cos_sin(_phase(_integer_limbs(coords.to(torch.int64)), steps))
    valid = (coords.abs() < 2.0**63).all(-1, keepdim=True)
    cos, sin = _cos_sin(_phase(_float_limbs(coords.where(valid, 0)), steps))
    valid = valid.unsqueeze(-3)
    return cos.where(valid, torch.nan), sin.where(valid, torch.nan)


def _turns_by_axis(
    coords: Shaped[Tensor, "*batch n a"], steps: Steps
) -> tuple[Float[Tensor, "*batch h n p"], Float[Tensor, "*batch h n p"]] | None:
    """The same, made once for each coordinate that an axis has, as the few rows and columns of a grid; None elsewhere.

    Every pair must turn with one axis alone. Looking at coordinates would stop a device that is not the processor.
    """
    if torch.compiler.is_compiling() or type(coords) is not Tensor or is_functorch_wrapped_tensor(coords):
        return None
    if coords.device.type != "cpu" or coords.is_floating_point():
        return None
    heads, axes, pairs = len(steps[0]), len(steps[0][0]), len(steps[0][0][0])
    tokens = coords.numel() // max(axes, 1)
    if tokens * heads * pairs < MANY:
        return None
    turning = [
        {axis for axis in range(axes) for head in range(heads) for limb in steps if limb[head][axis][pair]}
        for pair in range(pairs)
    ]
    if any(len(found) > 1 for found in turning):
        return None
    lows, highs = (end.tolist() for end in coords.flatten(0, -2).to(torch.int64).aminmax(dim=0))
    if FEWER * (sum(highs) - sum(lows) + axes) > tokens:
        return None
    parts, order = [], []
    for axis, (low, high) in enumerate(zip(lows, highs, strict=True)):
        own = [pair for pair, found in enumerate(turning) if found == {axis} or (not found and axis == 0)]
        of_axis = tuple(tuple((tuple(head[axis][pair] for pair in own),) for head in limb) for limb in steps)
        table = torch.cat(exact_cos_sin(torch.arange(low, high + 1)[:, None], of_axis), dim=0)
        parts.append(table[:, coords[..., axis].to(torch.int64) - low])
        order += own
    turns = torch.cat(parts, dim=-1)
    if order != sorted(order):
        turns = turns[..., torch.tensor(order).argsort()]
    cos, sin = (part.movedim(0, -3) for part in turns.chunk(2))
    return cos, sin


def _tokens_at_a_time(coords: Shaped[Tensor, "*batch n a"], steps: Steps) -> int | None:
    """So many tokens that what is computed between stays in a processor's cache; None for all. Kernels need no such."""
    if torch.compiler.is_compiling() or coords.is_meta:
        return None
    angles = math.prod(coords.shape[:-2]) * len(steps[0]) * len(steps[0][0][0])
    tokens = max(ANGLES // max(angles, 1), 1)
    return tokens if tokens < coords.shape[-2] else None


def _turn_share(freq: Decimal, limb: int) -> int:
    """The share of a turn that a coordinate step of ``2 ** (32 limb)`` makes, in units of 2^-64, as a signed int64."""
    with localcontext(prec=DIGITS):
        share = int((freq / TURN * Decimal(2) ** (64 + 32 * limb)).to_integral_value()) % 2**64
    return share - 2**64 if share >= 2**63 else share


def _integer_limbs(coords: Int[Tensor, "*shape"]) -> list[Int[Tensor, "*shape"]]:
    return [coords & 0xFFFFFFFF, coords >> 32]


def _float_limbs(coords: Float[Tensor, "*shape"]) -> list[Int[Tensor, "*shape"]]:
    """Exact: a float's fraction and its product with a power of two are floats again."""
    upper = coords.frac() * 2**32
    lower = upper.frac() * 2**32
    return [*_integer_limbs(coords.to(torch.int64)), upper.to(torch.int64), lower.to(torch.int64)]


def _phase(limbs: Sequence[Int[Tensor, "*batch n a"]], steps: Steps) -> Int[Tensor, "*batch h n p"]:
    """The angle in units of 2^-64 turns, modulo whole turns."""
    table = torch.tensor(steps[: len(limbs)], dtype=torch.int64, device=limbs[0].device)
    terms = [
        limb[..., None, :, axis, None] * rows[:, None, axis]
        for limb, rows in zip(limbs, table, strict=True)
        for axis in range(table.shape[-2])
    ]
    return sum(terms[1:], terms[0])


def _cos_sin(phase: Int[Tensor, "*shape"]) -> tuple[Float[Tensor, "*shape"], Float[Tensor, "*shape"]]:
    # A quarter turn is 2^62. The sine of a phase is that of a triangle wave between minus and plus a quarter turn.
    quarter = 2**62
    wave = torch.stack([phase, phase - quarter]).abs_().neg_().add_(quarter)
    x = wave.bitwise_right_shift_(31)
    square = (x * x).bitwise_right_shift_(31)
    result = torch.full_like(x, QUARTER_SINE[-1])
    for coefficient in QUARTER_SINE[-2::-1]:
        result = result.mul_(square).bitwise_right_shift_(31).add_(coefficient)
    cos, sin = result.mul_(x).float().mul_(2.0**-62).unbind()
    return cos, sin
