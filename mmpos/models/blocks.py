"""The transformer block that all models are made of."""

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, TypeVar

from jaxtyping import Bool, Float, Shaped
from timm.layers.drop import DropPath
from timm.layers.layer_scale import LayerScale
from timm.layers.mlp import Mlp, SwiGLU
from torch import Tensor, nn

from ..arguments import check_count
from ..attend import Attention, LayerCache
from ..masks import AttentionMask
from ..values import check_arguments
from .stack import NO_ENCODINGS, LayerEncodings

Model = TypeVar("Model", bound=nn.Module)

LAYER_NORM = partial(nn.LayerNorm, eps=1e-6)
"""What timm's ViTs normalise with."""


class Block(nn.Module):
    """Pre-norm transformer block: ``x + attn(norm1(x))``, then ``x + mlp(norm2(x))``.

    The encodings come in with the tokens, so the blocks of one model may differ in them. Names are timm's, whose
    weights load.

    Args:
        dim: Channels of a token.
        num_heads: Heads of queries.
        num_kv_heads: Heads of keys and values; as many as queries unless given.
        head_dim: Channels per head; ``dim // num_heads`` unless given.
        mlp_ratio: Hidden channels of the MLP over ``dim``.
        mlp: "gelu", or "swiglu" with two thirds of the hidden channels, which has as many weights.
        qkv_bias: Whether the projections of q, k and v have a bias.
        qk_norm: Whether queries and keys of each head are normalised.
        init_values: Start of a learned scale of each branch (LayerScale); none unless given.
        attn_drop: Probability that an attention weight is dropped in training.
        proj_drop: Probability that an output of a branch is dropped in training.
        drop_path: Probability that a sample skips a branch in training.
        norm_layer: Makes a normalisation of so many channels.

    Example:
        >>> Block(dim=48, num_heads=4)(torch.randn(2, 12, 48)).shape
        torch.Size([2, 12, 48])
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        mlp_ratio: float = 4.0,
        mlp: Literal["gelu", "swiglu"] = "gelu",
        qkv_bias: bool = True,
        qk_norm: bool = False,
        init_values: float | None = None,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        drop_path: float = 0.0,
        norm_layer: Callable[[int], nn.Module] = LAYER_NORM,
    ):
        super().__init__()
        self.norm1 = norm_layer(dim)
        self.attn = Attention(
            dim,
            num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            qkv_bias=qkv_bias,
            qk_norm=norm_layer if qk_norm else None,
            attn_drop=attn_drop,
            proj_drop=proj_drop,
        )
        self.norm2 = norm_layer(dim)
        if mlp not in ("gelu", "swiglu"):
            raise ValueError(f"mlp must be 'gelu' or 'swiglu', got {mlp!r}")
        hidden = int(dim * mlp_ratio)
        self.mlp = Mlp(dim, hidden, drop=proj_drop) if mlp == "gelu" else SwiGLU(dim, 2 * hidden // 3, drop=proj_drop)
        self.ls1, self.ls2 = (
            nn.Identity() if init_values is None else LayerScale(dim, init_values=init_values) for _ in range(2)
        )
        self.drop_path = DropPath(drop_path)

    def forward(
        self,
        x: Float[Tensor, "b n dim"],
        encodings: LayerEncodings = NO_ENCODINGS,
        *,
        coords: Shaped[Tensor, "*rows m a"] | None = None,
        k_coords: Shaped[Tensor, "*rows k a"] | None = None,
        num_prefix_tokens: int = 0,
        mask: AttentionMask | Bool[Tensor, "*#rows #h n k"] | None = None,
        is_causal: bool = False,
        cache: LayerCache | None = None,
    ) -> Float[Tensor, "b n dim"]:
        """Transforms ``x``; the arguments are those of `Attention`."""
        attended = self.attn(
            self.norm1(x),
            additive=encodings.additive,
            rotation=encodings.rotation,
            bias=encodings.bias,
            logit_scale=encodings.logit_scale,
            coords=coords,
            k_coords=k_coords,
            num_prefix_tokens=num_prefix_tokens,
            mask=mask,
            is_causal=is_causal,
            cache=cache,
        )
        x = x + self.drop_path(self.ls1(attended))
        return x + self.drop_path(self.ls2(self.mlp(self.norm2(x))))


def check_blocks(dim: int, depth: int, num_heads: int, drop_path: float, options: Mapping[str, Any]) -> None:
    """Refuses what no blocks can be made of, before anything is made."""
    check_count("dim", dim, 1)
    check_count("depth", depth)
    check_count("num_heads", num_heads, 1)
    if not 0 <= drop_path < 1:
        raise ValueError(f"drop_path must be at least 0 and less than 1, got {drop_path}")
    check_arguments("block", partial(Block, dim, num_heads), options)


def make_blocks(dim: int, depth: int, num_heads: int, drop_path: float, options: Mapping[str, Any]) -> nn.ModuleList:
    """Blocks in which the probability that a sample skips a branch grows linearly, from 0 to ``drop_path``."""
    rates = [drop_path * layer / max(depth - 1, 1) for layer in range(depth)]
    return nn.ModuleList(Block(dim, num_heads, **{"drop_path": rate, **options}) for rate in rates)


def no_weight_decay_names(model: nn.Module) -> set[str]:
    """Names, seen from ``model``, of the parameters that its parts ask an optimiser not to decay."""
    names = set()
    for path, part in model.named_modules():
        if part is not model:
            names |= {f"{path}.{name}" for name in getattr(part, "no_weight_decay", set)()}
    return names


def share_weights(model: Model) -> Model:
    """A copy of the model that has the same parameters, whose parts can be exchanged."""
    shared: dict[int, Any] = {id(parameter): parameter for parameter in model.parameters()}
    return copy.deepcopy(model, shared)
