"""Logits by what a query holds and how far away a key is: an inner product with projected sinusoids of differences."""

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from ...arguments import check_real
from ...frequencies import check_base
from ...spectra import Axial
from ..base import AttentionBias
from ..checks import check_pair, check_positive
from .content import check_content, inner_products


class RelativeSinusoids(AttentionBias):
    """Transformer-XL's positions: ``scale * ((query + v) . W r(q_coord - k_coord) + u . key)``.

    ``r`` is `Sinusoidal` of the difference, whose channels are sines and cosines in turn, ``W`` projects it to the
    channels of each head, and ``u`` and ``v`` are vectors of each head; all three are learned. Sines of differences
    are sums of products, so the bias is an inner product of ``dim + 1`` channels, at any real coordinates.

    Args:
        num_heads: Heads of queries.
        head_dim: Channels per head of queries and keys.
        dim: Channels of the sinusoid, a multiple of ``2 * axes``.
        axes: Axes of the coordinates; each has a block of the channels.
        base: Pair ``i`` of an axis of width ``d`` turns by ``base ** (-2i / d)`` radians per coordinate unit.
        scale: Factor of the bias: that of the logits, ``head_dim ** -0.5``, unless given.

    Raises:
        ValueError: If a size or ``base`` is not positive, or ``dim`` no multiple of ``2 * axes``.

    Example:
        >>> coords = sequence_coords(20)
        >>> query, key = torch.randn(3, 8, 20, 64), torch.randn(3, 8, 20, 64)
        >>> RelativeSinusoids(num_heads=8, head_dim=64, dim=512)(coords, coords, query=query, key=key).shape
        torch.Size([3, 8, 20, 20])

    Reference:
        Dai et al., Transformer-XL, 2019, sec. 3.3; the same in Conformer. https://arxiv.org/abs/1901.02860
    """

    needs = frozenset({"query", "key"})

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        dim: int,
        *,
        axes: int = 1,
        base: float = 10000.0,
        scale: float | None = None,
    ):
        super().__init__()
        for name, size in {"num_heads": num_heads, "head_dim": head_dim, "dim": dim, "axes": axes}.items():
            check_positive(name, size)
        check_base(base)
        if scale is not None:
            check_real("scale", scale)
        self.num_heads, self.head_dim, self.dim, self.axes, self.base = num_heads, head_dim, dim, axes, base
        self.scale = head_dim**-0.5 if scale is None else scale
        self.spectrum = Axial().spectrum(dim, axes, base, name="dim")
        self.rank = dim + 1
        self.weight = nn.Parameter(torch.empty(num_heads, head_dim, dim))
        self.content_bias = nn.Parameter(torch.empty(num_heads, head_dim))
        self.position_bias = nn.Parameter(torch.empty(num_heads, head_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws ``W``, ``u`` and ``v`` anew from a normal distribution of standard deviation 0.02, cut at 2."""
        for parameter in self.parameters():
            nn.init.trunc_normal_(parameter, std=0.02)

    def no_weight_decay(self) -> set[str]:
        return {"content_bias", "position_bias"}

    def forward(
        self,
        q_coords: Shaped[Tensor, "*batch q a"],
        k_coords: Shaped[Tensor, "*batch k a"],
        *,
        query: Float[Tensor, "*rows h q d"] | None = None,
        key: Float[Tensor, "*rows g k d"] | None = None,
        tokens: Float[Tensor, "*rows q c"] | None = None,
    ) -> Float[Tensor, "*out h q k"]:
        by_query, by_key, q_turns, k_turns = self._parts(q_coords, k_coords, query, key)
        # A row that is no number would spoil the gradients of all others.
        lost = [turns.isnan().any(-1, keepdim=True) for turns in (q_turns, k_turns)]
        left = _turn(by_query, q_turns.masked_fill(lost[0], 0))
        bias = inner_products(left, k_turns.masked_fill(lost[1], 0)) + by_key.unsqueeze(-2)
        return bias.masked_fill(lost[0] | lost[1].mT, torch.nan).float()

    def factors(
        self,
        q_coords: Shaped[Tensor, "*batch q a"],
        k_coords: Shaped[Tensor, "*batch k a"],
        *,
        ordered: bool = False,
        query: Float[Tensor, "*rows h q d"] | None = None,
        key: Float[Tensor, "*rows g k d"] | None = None,
        tokens: Float[Tensor, "*rows q c"] | None = None,
    ) -> tuple[Float[Tensor, "*outq #h q r"], Float[Tensor, "*outk #h k r"]]:
        by_query, by_key, q_turns, k_turns = self._parts(q_coords, k_coords, query, key)
        left = _turn(by_query, q_turns)
        lead = torch.broadcast_shapes(k_turns.shape[:-3], by_key.shape[:-2])
        right = k_turns.expand(*lead, self.num_heads, *k_turns.shape[-2:])
        by_key = by_key.expand(*lead, *by_key.shape[-2:]).unsqueeze(-1)
        return torch.cat([left, torch.ones_like(left[..., :1])], -1).float(), torch.cat([right, by_key], -1).float()

    def _parts(
        self, q_coords: Tensor, k_coords: Tensor, query: Tensor | None, key: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """What queries make of each sine and cosine, what keys add, and the cosines and sines of their coordinates."""
        check_pair(q_coords, k_coords, self.axes, owner="RelativeSinusoids(axes={axes})")
        q_turns, k_turns = (torch.cat(self.spectrum.cos_sin(coords), -1) for coords in (q_coords, k_coords))
        by_query, by_key = self._by_query(query, q_coords.shape[-2]), self._by_key(key, k_coords.shape[-2])
        return by_query, by_key, q_turns, k_turns

    def _by_query(self, query: Tensor | None, count: int) -> Float[Tensor, "*rows h q dim"]:
        sizes = {"heads": self.num_heads, "queries": count, "channels": self.head_dim}
        query = check_content("RelativeSinusoids", "query", query, sizes)
        exact = query if query.dtype == torch.float64 else query.float()
        return self.scale * inner_products(exact + self.position_bias.to(exact.dtype)[:, None], self.weight.mT)

    def _by_key(self, key: Tensor | None, count: int) -> Float[Tensor, "*rows h k"]:
        key = check_content("RelativeSinusoids", "key", key, {"keys": count, "channels": self.head_dim})
        if key.ndim < 3 or not key.shape[-3] or self.num_heads % key.shape[-3]:
            raise ValueError(f"key must have heads that divide num_heads ({self.num_heads}), got {tuple(key.shape)}")
        groups = self.content_bias.unflatten(0, (key.shape[-3], -1))
        return self.scale * inner_products(key, groups).mT.flatten(-3, -2)

    def extra_repr(self) -> str:
        parts = ["num_heads", "head_dim", "dim", "axes", "base", "scale"]
        return ", ".join(f"{part}={getattr(self, part)!r}" for part in parts)


def _turn(
    by_query: Float[Tensor, "*#batch h q dim"], turns: Float[Tensor, "*#batch 1 q dim"]
) -> Float[Tensor, "*batch h q dim"]:
    """The factor ``left`` for which ``by_query . (sin(q - k), cos(q - k)) = left . (cos k, sin k)``."""
    sines, cosines = by_query[..., 0::2], by_query[..., 1::2]
    cos, sin = turns.chunk(2, dim=-1)
    return torch.cat([sines * sin + cosines * cos, cosines * sin - sines * cos], dim=-1)
