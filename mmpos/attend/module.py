"""Self-attention as a module, whose positions come in as arguments."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn

from ..encodings import AttentionBias, LogitScale, Rotation
from ..encodings.checks import check_heads, check_positive
from ..masks import AttentionMask
from ..masks.sight import serves_any_size
from .cache import LayerCache
from .function import attention


class Attention(nn.Module):
    """Self-attention of tokens ``(b, n, dim)`` that takes its positions as arguments.

    Args:
        dim: Channels of a token.
        num_heads: Heads of queries.
        num_kv_heads: Heads of keys and values, a divisor of ``num_heads``; as many unless given.
        head_dim: Channels per head; ``dim // num_heads`` unless given.
        qkv_bias: Whether the projections of q, k and v have a bias.
        qk_norm: Makes a normalisation of ``head_dim`` channels for queries and one for keys.
        attn_drop: Probability that an attention weight is dropped in training.
        proj_drop: Probability that an output is dropped in training.

    Raises:
        ValueError: If ``num_heads`` does not divide ``dim`` and no ``head_dim`` is given, or ``num_kv_heads`` does
            not divide ``num_heads``.

    Example:
        >>> coords = grid_coords(height=3, width=4)
        >>> Attention(dim=48, num_heads=4)(torch.randn(2, 12, 48), rotation=RoPE(12, axes=2)(coords)).shape
        torch.Size([2, 12, 48])
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        qkv_bias: bool = True,
        qk_norm: Callable[[int], nn.Module] | None = None,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
    ):
        super().__init__()
        check_positive("dim", dim)
        check_heads(num_heads, num_kv_heads)
        if head_dim is not None:
            check_positive("head_dim", head_dim)
        elif dim % num_heads:
            raise ValueError(f"dim ({dim}) must be a multiple of num_heads ({num_heads}) where no head_dim is given")
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads
        self.head_dim = dim // num_heads if head_dim is None else head_dim
        self.qkv = nn.Linear(dim, (num_heads + 2 * num_kv_heads) * self.head_dim, bias=qkv_bias)
        self.q_norm = nn.Identity() if qk_norm is None else qk_norm(self.head_dim)
        self.k_norm = nn.Identity() if qk_norm is None else qk_norm(self.head_dim)
        self.proj = nn.Linear(num_heads * self.head_dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)
        self.attn_drop = attn_drop

    def forward(
        self,
        x: Float[Tensor, "b n dim"],
        *,
        additive: Float[Tensor, "*#b n dim"] | None = None,
        rotation: Rotation | tuple[Rotation | None, Rotation | None] | None = None,
        bias: AttentionBias | Tensor | None = None,
        logit_scale: LogitScale | Tensor | None = None,
        coords: Shaped[Tensor, "*rows m a"] | None = None,
        k_coords: Shaped[Tensor, "*rows k a"] | None = None,
        num_prefix_tokens: int = 0,
        mask: Bool[Tensor, "..."] | AttentionMask | None = None,
        is_causal: bool = False,
        cache: LayerCache | None = None,
    ) -> Float[Tensor, "b n dim"]:
        """Attends within ``x``, and to what the cache has, which it adds to.

        Args:
            x: Tokens.
            additive: What is added to ``x`` for queries and keys only.
            rotation: As for `attention`; with a cache of rotated keys that of the new tokens, otherwise a pair, for the
                new queries and for all keys.
            bias: As for `attention`.
            logit_scale: As for `attention`.
            coords: Coordinates of ``x`` without prefix tokens, for encodings that come as modules.
            k_coords: Coordinates of all keys, where there are more in the cache.
            num_prefix_tokens: As for `attention`.
            mask: As for `attention`.
            is_causal: As for `attention`.
            cache: Keys and values of earlier tokens.
        """
        projected = self.qkv(x)
        if additive is not None:
            # The projection is linear, so what it makes of the encoding is the same for the whole batch.
            values = self.num_kv_heads * self.head_dim
            projected = projected + F.pad(F.linear(additive.to(x.dtype), self.qkv.weight[:-values]), (0, values))
        heads = rearrange(projected, "b n (h d) -> b h n d", d=self.head_dim)
        q, k, v = heads.split([self.num_heads, self.num_kv_heads, self.num_kv_heads], dim=-3)
        q, k = self.q_norm(q), self.k_norm(k)
        if cache is not None:
            if isinstance(rotation, Rotation):
                k, rotation = rotation.apply(k, role="key"), (rotation, None)
            k, v = cache.append(k, v)
        y = attention(
            q,
            k,
            v,
            rotation=rotation,
            bias=bias,
            logit_scale=logit_scale,
            q_coords=coords,
            k_coords=k_coords,
            tokens=x,
            num_prefix_tokens=num_prefix_tokens,
            mask=mask,
            is_causal=is_causal,
            attn_drop=self.attn_drop if self.training else 0.0,
        )
        y = rearrange(y, "b h n d -> b n h d")
        if serves_any_size():  # the kernels that run it may lay results out in another way
            y = y.clone(memory_format=torch.contiguous_format)
        return self.proj_drop(self.proj(rearrange(y, "b n h d -> b n (h d)")))
