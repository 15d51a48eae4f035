"""Attention written out in float64, and what tests of it share."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mmpos import AttentionBias


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def turned(x, coords, base=10000.0):
    """RoPE of the half layout in float64."""
    pairs = x.shape[-1] // 2
    angles = coords.double() * base ** (-torch.arange(pairs, dtype=torch.float64) / pairs)
    first, second = x[..., :pairs], x[..., pairs:]
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def reference(q, k, v, bias=None, factor=None, visible=None, scale=None):
    """softmax(factor * scale * q . k + bias) v in float64, one head at a time; a query without keys gets 0."""
    groups = q.shape[-3] // k.shape[-3]
    shape = (*q.shape[:-1], k.shape[-2])
    bias = torch.zeros(shape).double() if bias is None else bias.double().expand(shape)
    visible = torch.ones(shape, dtype=torch.bool) if visible is None else visible.expand(shape)
    factor = torch.ones(q.shape[:-1]).double() if factor is None else factor.double().expand(q.shape[:-1])
    heads = []
    for head in range(q.shape[-3]):
        keys, values = k.double()[..., head // groups, :, :], v.double()[..., head // groups, :, :]
        logits = q.double()[..., head, :, :] @ keys.mT * (scale or q.shape[-1] ** -0.5)
        logits = logits * factor[..., head, :, None] + bias[..., head, :, :]
        weight = logits.exp() * visible[..., head, :, :]
        heads.append(weight / weight.sum(-1, keepdim=True).clamp(min=1e-300) @ values)
    return torch.stack(heads, dim=-3)


def causal(queries, keys):
    """The last query is aligned with the last key."""
    return torch.tensor([[j <= i + keys - queries for j in range(keys)] for i in range(queries)])


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Blocks of two queries, which the backward pass repeats, whatever their size."""
    for name, value in (("BLOCK", 1), ("ROWS", 2), ("KEPT", 0)):
        monkeypatch.setattr(f"mmpos.attend.fused.{name}", value)


class Largest(TorchDispatchMode):
    """The number of elements of the largest tensor made, views of others aside."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        given = {part.untyped_storage().data_ptr() for part in args if isinstance(part, torch.Tensor)}
        for part in result if isinstance(result, tuple | list) else [result]:
            if isinstance(part, torch.Tensor) and part.untyped_storage().data_ptr() not in given:
                self.elements = max(self.elements, part.numel())
        return result


class Steep(AttentionBias):
    """A slope times the difference: where no key lies ahead, one channel."""

    axes = 1

    def __init__(self, *slopes):
        super().__init__()
        self.slopes = torch.tensor(slopes)

    def forward(self, q_coords, k_coords, *, query=None, key=None, tokens=None):
        return -self.slopes[:, None, None] * (q_coords - k_coords.mT).abs().float().unsqueeze(-3)

    def factors(self, q_coords, k_coords, *, ordered=False, query=None, key=None, tokens=None):
        if not ordered:
            return None
        left = self.slopes[:, None, None].expand(*q_coords.shape[:-2], -1, q_coords.shape[-2], 1)
        return left, k_coords.float().unsqueeze(-3)

    def score(self, head, q_coord, k_coord):
        return -self.slopes[head] * (q_coord[0] - k_coord[0]).abs().float()


class Waves(AttentionBias):
    """A sum of cosines: two channels each, in any order."""

    axes = 1

    def __init__(self, count):
        super().__init__()
        self.freqs = 1 / (2.0 + torch.arange(count))

    def forward(self, q_coords, k_coords, *, query=None, key=None, tokens=None):
        return ((q_coords - k_coords.mT).float().unsqueeze(-3).unsqueeze(-1) * self.freqs).cos().sum(-1)

    def factors(self, q_coords, k_coords, *, ordered=False, query=None, key=None, tokens=None):
        left, right = (coords.float().unsqueeze(-3) * self.freqs for coords in (q_coords, k_coords))
        return tuple(torch.cat([angles.cos(), angles.sin()], -1) for angles in (left, right))


class Late(Steep):
    """The same behind the softmax."""

    after_softmax = True
