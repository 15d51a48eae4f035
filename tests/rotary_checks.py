"""Rotations compared with a formula in float64 and with what another package returns."""

import torch


def angles_of(coords, freqs):
    """``sum_a coords[a] * freqs[..., a, p]`` in float64, of frequencies ``(a, p)`` or ``(h, a, p)``."""
    freqs = torch.as_tensor(freqs, dtype=torch.float64)
    freqs = freqs.reshape(-1, *freqs.shape[-2:])
    return (coords.double()[..., None, :, :, None] * freqs[:, None]).sum(-2)


def geometric(base, width):
    """``base ** (-2 i / width)`` for the pairs of a block of ``width`` channels."""
    return base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)


def blocks(*freqs):
    """Rows ``(a, p)`` of blocks of pairs that an axis owns each, in axis order."""
    return torch.block_diag(*[block[None] for block in freqs])


def turned(x, angles, layout, factor=1.0):
    """The first channels of ``x`` turned by ``angles`` ``(..., h, n, p)``, as complex numbers in float64."""
    pairs = angles.shape[-1]
    head, tail = x.double().split([2 * pairs, x.shape[-1] - 2 * pairs], dim=-1)
    shape = (pairs, 2) if layout == "interleaved" else (2, pairs)
    head = head.unflatten(-1, shape)
    head = head if layout == "interleaved" else head.mT
    head = torch.view_as_complex(head.contiguous()) * torch.polar(torch.ones_like(angles) * factor, angles)
    head = torch.view_as_real(head)
    head = head if layout == "interleaved" else head.mT
    return torch.cat([head.flatten(-2), tail.expand(*head.shape[:-2], -1)], dim=-1)


def half_width(full, layout):
    """One entry a pair of a peer's full-width table."""
    return full[..., ::2] if layout == "interleaved" else full[..., : full.shape[-1] // 2]


def check_turns(rope, coords, angles, *, shipped=None, tables=None, factor=1.0, length=None, heads=4, slack=1):
    """Cos, sin and rotated tensors are those of the formula to 1e-6, and the peer's as near as float32 takes it.

    Args:
        rope: Our encoding.
        coords: Coordinates ``(*batch, n, a)``.
        angles: The peer's formula in float64, ``(*batch, h, n, p)``.
        shipped: What rotates ``x`` in the peer.
        tables: The peer's cos and sin, broadcast to ours.
        factor: The attention factor.
        length: See `RoPE`.
        heads: Heads of ``x``.
        slack: Multiplies ``1e-6 + 2 ** -23`` times the largest angle, which is how near the peer should come.
    """
    rotation = rope(coords, length=length)
    torch.testing.assert_close(rotation.cos.double(), angles.cos() * factor, atol=1e-6, rtol=0)
    torch.testing.assert_close(rotation.sin.double(), angles.sin() * factor, atol=1e-6, rtol=0)
    x = torch.rand(*angles.shape[:-3], heads, angles.shape[-2], rope.head_dim, dtype=torch.float64) - 0.5
    want = turned(x, angles, rope.layout, factor)
    torch.testing.assert_close(rotation.apply(x), want, atol=1e-6, rtol=0)

    atol = (1e-6 + 2**-23 * angles.abs().max().item()) * max(factor, 1) * slack
    if tables is not None:
        for got, theirs in zip(rotation[:2], tables, strict=True):
            torch.testing.assert_close(got, theirs.float().expand_as(got), atol=atol, rtol=0)
    if shipped is not None:
        torch.testing.assert_close(rotation.apply(x.float()), shipped(x.float()), atol=atol, rtol=0)


def check_spectrum(rope, freqs, length=None):
    """Every pair that turns has the frequency of ``(a, p)`` or ``(h, a, p)`` to 1e-6; only for pairs of one axis.

    A pair is asked where its angle should be 1.
    """
    freqs = torch.as_tensor(freqs, dtype=torch.float64)
    freqs = freqs.reshape(-1, *freqs.shape[-2:])
    coords = torch.where(freqs == 0, 0, 1 / freqs).mT  # (h, p, a): token p is for pair p
    rotation = rope(coords, length=length)
    heads, pairs = torch.arange(len(freqs))[:, None], torch.arange(freqs.shape[-1])
    own = heads if rotation.cos.shape[-3] == len(freqs) else heads * 0
    cos, sin = (part[heads, own, pairs, pairs].double() for part in rotation[:2])
    want = (freqs != 0).any(-2).double()
    torch.testing.assert_close(torch.atan2(sin, cos), want, atol=1e-6, rtol=0)
