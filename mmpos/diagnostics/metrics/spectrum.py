"""How fast the parts of an encoding turn, read off its derivatives, so that any encoding of the interfaces is seen."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from ...encodings import AdditiveEncoding, RotaryEncoding

# Where the waves of an additive encoding are looked at: no multiples of each other, near 0 and further off.
POINTS = (0.31, 1.73, 5.9, 14.2, 33.1)
CHANNELS_AT_ONCE = 64
ALIAS = 2.0
"""Steps per turn below which a pair looks as if it turned slower, or backwards."""
QUARTER = 0.25
"""Turns below which sine rises and cosine falls all the way, so that both tell where a token is."""


class Wave(NamedTuple):
    """Channels that are a sine, or a sine and its cosine, of one angle.

    Args:
        freqs: Radians per coordinate unit on each axis.
        channels: The sine and the cosine, or the one channel that there is.
    """

    freqs: tuple[float, ...]
    channels: tuple[int, ...]


class PeriodRow(NamedTuple):
    """A pair on an axis that turns it.

    Args:
        head: The head whose frequency it is; 0 where all have the same.
        pair: Number of the pair, or of the wave of an additive encoding.
        axis: Number of the axis.
        period: Coordinate units per turn.
        turns: Turns from the first to the last token.
        note: "aliases" where a turn takes less than two steps, "less than a quarter turn", or nothing.
    """

    head: int
    pair: int
    axis: int
    period: float
    turns: float
    note: str


def rotary_freqs(rotary: RotaryEncoding, *, length: int | None = None) -> Float[Tensor, "h a p"]:
    """Radians per coordinate unit of each pair on each axis: the slope of its sine at coordinate 0.

    Args:
        rotary: The encoding.
        length: For encodings that depend on it.

    Raises:
        ValueError: If the sines have no gradient with respect to coordinates.

    Example:
        >>> from mmpos.diagnostics import rotary_freqs
        >>> rotary_freqs(RoPE(head_dim=8))[0, 0]
        tensor([1.0000, 0.1000, 0.0100, 0.0010], dtype=torch.float64)
    """
    origin = torch.zeros(1, rotary.axes, dtype=torch.float64, device=_device(rotary))
    pairs = rotary(origin, length=length).cos.shape[-1]
    with torch.enable_grad():
        coords = origin.repeat(pairs, 1).requires_grad_()  # a token for each pair, so that one gradient serves all
        sines = rotary(coords, length=length).without_factor().sin.diagonal(dim1=-2, dim2=-1)
        if not sines.requires_grad:
            raise ValueError(f"{type(rotary).__name__} has no gradient with respect to coordinates")
        slopes = [torch.autograd.grad(head.sum(), coords, retain_graph=True)[0].mT for head in sines]
    return torch.stack(slopes)


def additive_waves(additive: AdditiveEncoding, *, length: int | None = None) -> list[Wave]:
    """The channels that are sinusoids, found by ``f'' = -freq^2 f``; a sine and its cosine make one wave.

    Tables, networks and other channels that are none are left out.

    Args:
        additive: The encoding.
        length: For encodings that depend on it.

    Example:
        >>> from mmpos.diagnostics import additive_waves
        >>> [(round(wave.freqs[0], 6), wave.channels) for wave in additive_waves(Sinusoidal(dim=4))]
        [(1.0, (0, 1)), (0.01, (2, 3))]
    """
    if additive.needs_cells:
        return []
    blocks = []
    for start in range(0, additive.dim, CHANNELS_AT_ONCE):
        channels = torch.arange(start, min(start + CHANNELS_AT_ONCE, additive.dim), device=_device(additive))
        block = _derivatives(additive, channels, length)
        if block is None:
            return []
        blocks.append(block)
    value, slope, curve = (torch.cat(parts, dim=1) for parts in zip(*blocks, strict=True))

    power = value.square().sum(0)
    steepness = -(value[..., None] * curve.diagonal(dim1=-2, dim2=-1)).sum(0) / power[:, None]  # freq^2 (c, a)
    main = steepness.argmax(-1)
    freq = steepness.amax(-1).clamp(min=0).sqrt()
    row = curve.take_along_dim(main[None, :, None, None], dim=-2).squeeze(-2)  # (m, c, a)
    freqs = -(value[..., None] * row).sum(0) / power[:, None] / freq[:, None]
    gap = row + freq[:, None] * freqs * value[..., None]
    is_wave = (gap.square().sum((0, 2)) <= 1e-6 * row.square().sum((0, 2))) & (freq > 0) & (power > 0)
    ahead = slope.take_along_dim(main[None, :, None], dim=-1).squeeze(-1) / freq  # the wave a quarter turn further
    return _pair_up(is_wave, freqs.where(freqs.abs() > 1e-4 * freq[:, None], 0), value, ahead)


def period_rows(
    encoding: RotaryEncoding | AdditiveEncoding,
    sizes: Sequence[int],
    spacing: float = 1.0,
    *,
    length: int | None = None,
    waves: Sequence[Wave] | None = None,
) -> list[PeriodRow]:
    """The period of every pair on each axis that turns it, and what it means on a grid.

    Args:
        encoding: The encoding.
        sizes: Tokens on each axis.
        spacing: Coordinate units between neighbours.
        length: For encodings that depend on it.
        waves: Of an additive encoding, where `additive_waves` has found them already.

    Raises:
        ValueError: If there is not one size for each axis.

    Example:
        >>> from mmpos.diagnostics import period_rows
        >>> [f"{row.period:.1f} {row.note}" for row in period_rows(Sinusoidal(dim=8), [50])]
        ['6.3 ', '62.8 ', '628.3 less than a quarter turn', '6283.2 less than a quarter turn']
    """
    if len(sizes) != encoding.axes:
        raise ValueError(f"sizes must be one for each of the {encoding.axes} axes, got {list(sizes)}")
    if isinstance(encoding, RotaryEncoding):
        heads = rotary_freqs(encoding, length=length).mT.tolist()
    else:
        waves = additive_waves(encoding, length=length) if waves is None else waves
        heads = [[wave.freqs for wave in waves]]
    return [
        _period_row(head, pair, axis, abs(freq), sizes[axis], spacing)
        for head, pairs in enumerate(heads)
        for pair, freqs in enumerate(pairs)
        for axis, freq in enumerate(freqs)
        if freq
    ]


def rotary_decay(
    rotary: RotaryEncoding, coords: Shaped[Tensor, "n a"], *, length: int | None = None
) -> Float[Tensor, "h n"]:
    """The bound of RoFormer on how logits decay: the mean over ``j`` of ``|sum_(i < j) exp(i angle_i)|``.

    ``angle_i`` is the angle between a token at coordinate 0 and one at ``coords``. Any logit is at most this times
    the number of pairs times the largest change from a pair's product of query and key to the next.

    Reference:
        Su et al., RoFormer, 2021, sec. 3.4.3. https://arxiv.org/abs/2104.09864
    """
    rotation = rotary(coords, length=length).without_factor()
    sums = torch.complex(rotation.cos.double(), rotation.sin.double()).cumsum(-1)
    return sums.abs().mean(-1)


def axis_name(axis: int, axes: int) -> str:
    """The letter of an axis, or its number where there are more than three."""
    return "tyx"[axis - axes] if axes <= 3 and axes > 1 else str(axis)


def _derivatives(
    additive: AdditiveEncoding, channels: Tensor, length: int | None
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Some channels ``(m, c)`` at the points, their first derivatives ``(m, c, a)`` and second ones ``(m, c, a, a)``.

    A token for each point and channel, so that one gradient serves all. None where there are no derivatives.
    """
    axes = additive.axes
    places = torch.tensor([[point * (1 + 0.37 * axis) for axis in range(axes)] for point in POINTS])
    coords = places.to(channels.device, torch.float64)[:, None].repeat(1, len(channels), 1)
    with torch.enable_grad():
        coords.requires_grad_()
        encoded = additive(coords.flatten(0, 1), length=length).unflatten(0, coords.shape[:2])
        value = encoded[:, torch.arange(len(channels)), channels]
        slope = _gradient(value, coords)
        if slope is None:
            return None
        rows = [_gradient(slope[..., axis], coords) for axis in range(axes)]
    curve = torch.stack([torch.zeros_like(coords) if row is None else row for row in rows], dim=-2)
    return value.detach().double(), slope.detach(), curve.detach()


def _gradient(value: Tensor, coords: Tensor) -> Tensor | None:
    if not value.requires_grad:
        return None
    return torch.autograd.grad(value.sum(), coords, create_graph=True, allow_unused=True)[0]


def _pair_up(is_wave: Tensor, freqs: Tensor, value: Tensor, ahead: Tensor) -> list[Wave]:
    """Every wave with the one that is a quarter turn ahead of it, in the order of channels."""
    places = is_wave.nonzero().flatten()
    freqs, value, ahead = freqs[places].cpu(), value[:, places].T.cpu(), ahead[:, places].T.cpu()
    largest = freqs.abs().amax(-1).clamp(min=1e-300)
    alike = torch.cdist(freqs, freqs) <= 1e-4 * largest[:, None]
    gaps = torch.cdist(ahead, value).masked_fill(~alike, math.inf)
    numbers, waves, paired = places.tolist(), [], set()
    for sine in range(len(numbers)):
        cosine = int(gaps[sine].argmin())
        if gaps[sine, cosine] <= 1e-3 * value[cosine].norm():
            waves.append(Wave(tuple(freqs[sine].tolist()), (numbers[sine], numbers[cosine])))
            paired |= {sine, cosine}
    waves += [Wave(tuple(freqs[i].tolist()), (numbers[i],)) for i in range(len(numbers)) if i not in paired]
    return sorted(waves, key=lambda wave: min(wave.channels))


def _period_row(head: int, pair: int, axis: int, freq: float, size: int, spacing: float) -> PeriodRow:
    period = 2 * math.pi / freq
    turns = (size - 1) * spacing / period
    note = "less than a quarter turn" if turns < QUARTER else ""
    return PeriodRow(head, pair, axis, period, turns, "aliases" if period < ALIAS * spacing else note)


def _device(encoding: torch.nn.Module) -> torch.device:
    return next((parameter.device for parameter in encoding.parameters()), torch.device("cpu"))
