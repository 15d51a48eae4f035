"""Where rotation, bias and logit scale meet scaled dot-product attention."""

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from ..encodings import AttentionBias, LogitScale, Rotation
from ..masks import AttentionMask
from .choice import Choice, choose
from .prepare import prepare


def attention(
    q: Float[Tensor, "*batch h q d"],
    k: Float[Tensor, "*batch g k d"],
    v: Float[Tensor, "*batch g k e"],
    *,
    rotation: Rotation | tuple[Rotation | None, Rotation | None] | None = None,
    bias: AttentionBias | Float[Tensor, "..."] | None = None,
    logit_scale: LogitScale | Float[Tensor, "..."] | None = None,
    q_coords: Shaped[Tensor, "*rows m a"] | None = None,
    k_coords: Shaped[Tensor, "*rows n a"] | None = None,
    tokens: Float[Tensor, "*batch q c"] | None = None,
    num_prefix_tokens: int = 0,
    mask: Bool[Tensor, "..."] | AttentionMask | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    attn_drop: float = 0.0,
    backend: str = "auto",
) -> Float[Tensor, "*batch h q e"]:
    """Scaled dot-product attention, ``softmax(logit_scale * scale * q . k + bias) v``, with positions in it.

    No tensor of all pairs of queries and keys is made where it would be large. Backends, of which "auto" takes what
    suits, as `choose_backend` tells:

    * "dense" writes the formula out, in float32; what the others are measured by.
    * "sdpa" calls PyTorch's fused kernels once, with bias and mask as one tensor if there are any.
    * "blocks" calls them for a block of queries at a time, with the keys that these see; memory grows with tokens, not
      with their square, in training too.
    * "factors" takes a bias that is an inner product, such as ALiBi's in causal attention, as more channels of q and k.
      In bfloat16 and under autocast products of positions stay exact. In compiled code it is taken only if asked for,
      and gives NaN if the bias needs coordinates that grow along causal attention and they do not.
    * "flex" compiles the bias into a kernel by FlexAttention, where there is one.

    Args:
        q: Queries.
        k: Keys; ``g`` heads divide ``h``, each serving ``h / g`` query heads.
        v: Values.
        rotation: Rotation of queries and keys, or a pair of one for each; applied here.
        bias: An attention bias, evaluated here, or a tensor; gradients flow to either. One that is added behind the
            softmax is masked as the weights are, but not dropped.
        logit_scale: Factors of each query's logits, without the bias.
        q_coords: Coordinates of the queries, for a bias or a logit scale that is a module.
        k_coords: Coordinates of the keys; those of the queries unless given.
        tokens: What the queries were projected from, for a bias that needs it.
        num_prefix_tokens: Leading tokens (class, registers) that the coordinates and a tensor bias leave out. They
            have no bias, unless it has one for them, and the logit scale 1. Queries without them, as in cached
            decoding, are recognised by their number.
        mask: True where a query may attend to a key, or conditions of `mmpos.masks`.
        is_causal: Whether a query sees only keys up to its own place; the last query is aligned with the last key.
        scale: Factor of the logits; ``d ** -0.5`` unless given.
        attn_drop: Probability that an attention weight is dropped.
        backend: "auto" or one of the above.

    Returns:
        The attended values in their own dtype. A query that sees no key gets 0.

    Raises:
        ValueError: If shapes do not fit, coordinates are missing, or the backend is unknown or cannot compute this.
        TypeError: If the mask is not boolean.

    Example:
        >>> coords, q = grid_coords(height=3, width=4), torch.randn(2, 8, 12, 64)
        >>> attention(q, q, q, rotation=RoPE(64, axes=2)(coords), bias=ALiBi(8, axes=2), q_coords=coords).shape
        torch.Size([2, 8, 12, 64])
    """
    problem = prepare(
        q,
        k,
        v,
        rotation=rotation,
        bias=bias,
        logit_scale=logit_scale,
        q_coords=q_coords,
        k_coords=k_coords,
        tokens=tokens,
        num_prefix_tokens=num_prefix_tokens,
        mask=mask,
        is_causal=is_causal,
        scale=scale,
        attn_drop=attn_drop,
    )
    _, attend = choose(problem, backend)
    batch = torch.broadcast_shapes(q.shape[:-3], k.shape[:-3])
    return attend().to(v.dtype).reshape(*batch, *q.shape[-3:-1], v.shape[-1])


def choose_backend(
    q: Float[Tensor, "*batch h q d"],
    k: Float[Tensor, "*batch g k d"],
    v: Float[Tensor, "*batch g k e"],
    *,
    bias: AttentionBias | Float[Tensor, "..."] | None = None,
    q_coords: Shaped[Tensor, "*rows m a"] | None = None,
    k_coords: Shaped[Tensor, "*rows n a"] | None = None,
    tokens: Float[Tensor, "*batch q c"] | None = None,
    num_prefix_tokens: int = 0,
    mask: Bool[Tensor, "..."] | AttentionMask | None = None,
    is_causal: bool = False,
    attn_drop: float = 0.0,
) -> Choice:
    """What `attention` would take for these arguments with the backend "auto", and why.

    Example:
        >>> coords, q = sequence_coords(2048), torch.randn(2, 8, 2048, 64)
        >>> choose_backend(q, q, q, bias=ALiBi(8), q_coords=coords, is_causal=True)
        Choice(backend='factors', reason='the bias is an inner product of 1 channels')
    """
    problem = prepare(
        q,
        k,
        v,
        bias=bias,
        q_coords=q_coords,
        k_coords=k_coords,
        tokens=tokens,
        num_prefix_tokens=num_prefix_tokens,
        mask=mask,
        is_causal=is_causal,
        attn_drop=attn_drop,
    )
    return choose(problem, "auto")[0]
