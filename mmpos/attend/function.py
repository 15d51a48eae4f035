"""Where rotation, bias and logit scale meet scaled dot-product attention."""

from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from ..encodings import AttentionBias, LogitScale, Rotation

BACKENDS = ("auto", "dense")


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
    num_prefix_tokens: int = 0,
    mask: Bool[Tensor, "..."] | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    attn_drop: float = 0.0,
    backend: str = "auto",
) -> Float[Tensor, "*batch h q e"]:
    """Scaled dot-product attention, ``softmax(logit_scale * scale * q . k + bias) v``, with positions in it.

    Args:
        q: Queries.
        k: Keys; ``g`` heads divide ``h``, each serving ``h / g`` query heads.
        v: Values.
        rotation: Rotation of queries and keys, or a pair of one for each; applied here.
        bias: An attention bias, evaluated here, or a tensor; gradients flow to either.
        logit_scale: Factors of each query's logits, without the bias.
        q_coords: Coordinates of the queries, for a bias or a logit scale that is a module.
        k_coords: Coordinates of the keys; those of the queries unless given.
        num_prefix_tokens: Leading tokens (class, registers) that the coordinates and a tensor bias leave out. They
            have no bias and the logit scale 1. Queries without them, as in cached decoding, are recognised by their
            number.
        mask: True where a query may attend to a key.
        is_causal: Whether a query sees only keys up to its own place; the last query is aligned with the last key.
        scale: Factor of the logits; ``d ** -0.5`` unless given.
        attn_drop: Probability that an attention weight is dropped.
        backend: "auto" calls PyTorch's fused kernels; "dense" writes the formula out in float32.

    Returns:
        The attended values in their own dtype. A query that sees no key gets 0.

    Raises:
        ValueError: If shapes do not fit, coordinates are missing, or the backend is unknown.
        TypeError: If the mask is not boolean.

    Example:
        >>> coords, q = grid_coords(height=3, width=4), torch.randn(2, 8, 12, 64)
        >>> attention(q, q, q, rotation=RoPE(64, axes=2)(coords), bias=ALiBi(8, axes=2), q_coords=coords).shape
        torch.Size([2, 8, 12, 64])
    """
    _check_shapes(q, k, v, backend)
    if num_prefix_tokens < 0:
        raise ValueError(f"num_prefix_tokens must not be negative, got {num_prefix_tokens}")
    k_coords = q_coords if k_coords is None else k_coords
    # The kernel has causality of its own; a tensor of all pairs is built only where it does not serve.
    own_causal = backend == "auto" and is_causal and mask is None and bias is None and q.shape[-2] == k.shape[-2]
    visible = _visible(mask, is_causal and not own_causal, q, k)
    if isinstance(bias, AttentionBias):
        bias = _evaluate_bias(bias, q, k, q_coords, k_coords, num_prefix_tokens)
    elif bias is not None:
        bias = _pad_prefix(bias, q, k, num_prefix_tokens)
    if isinstance(logit_scale, LogitScale):
        logit_scale = _evaluate_scale(logit_scale, q, k, q_coords, visible, own_causal)
    if logit_scale is not None:
        missing = q.shape[-2] - logit_scale.shape[-1]
        if missing not in (0, num_prefix_tokens):
            raise ValueError(
                f"logit_scale has shape {tuple(logit_scale.shape)}, which leaves out {missing} of the queries; "
                f"num_prefix_tokens is {num_prefix_tokens}"
            )
        _check_fits("logit_scale", logit_scale, (*q.shape[:-2], logit_scale.shape[-1]))

    if rotation is not None:
        pair = (rotation, rotation) if isinstance(rotation, Rotation) else rotation
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise TypeError(f"rotation must be a Rotation or a pair of them, got {rotation!r}")
        q_rotation, k_rotation = pair
        if q_rotation is k_rotation and q.shape[-2] != k.shape[-2]:
            raise ValueError(
                f"q has {q.shape[-2]} tokens and k {k.shape[-2]}: rotation must be a pair, one for each; None for keys "
                "that are rotated already"
            )
        q = q if q_rotation is None else q_rotation.apply(q, role="query")
        k = k if k_rotation is None else k_rotation.apply(k, role="key")
    if logit_scale is not None:
        factor = F.pad(logit_scale, (q.shape[-2] - logit_scale.shape[-1], 0), value=1.0)
        q = (q * factor[..., None]).to(q.dtype)
    if backend == "dense":
        return _dense(q, k, v, bias, visible, scale, attn_drop)
    return _fused(q, k, v, bias, visible, own_causal, scale, attn_drop)


def _fused(q, k, v, bias, visible, causal, scale, attn_drop):
    dtype, grouped = v.dtype, False
    if q.shape[-3] != k.shape[-3]:  # a branch, since under dynamic shapes the comparison is no bool
        grouped = True
    if bias is None:
        if causal:
            return F.scaled_dot_product_attention(
                q, k, v, is_causal=True, dropout_p=attn_drop, scale=scale, enable_gqa=grouped
            ).to(dtype)
        sighted, blind = _sighted(visible)
        result = F.scaled_dot_product_attention(q, k, v, sighted, attn_drop, scale=scale, enable_gqa=grouped)
        return _silence(result, blind).to(dtype)
    # Fused kernels want the bias in q's dtype, and half precision cannot tell the biases of distant keys apart.
    sighted, blind = _sighted(visible)
    exact = torch.promote_types(q.dtype, torch.float32)
    bias = _masked(bias.to(exact), sighted, blind)
    with _no_autocast(q.device):
        result = F.scaled_dot_product_attention(
            q.to(exact), k.to(exact), v.to(exact), bias, attn_drop, scale=scale, enable_gqa=grouped
        )
    return _silence(result, blind).to(dtype)


def _dense(q, k, v, bias, visible, scale, attn_drop):
    """The definition, in float32 or, for float64 input, in float64."""
    exact = torch.promote_types(q.dtype, torch.float32)
    sighted, blind = _sighted(visible)
    with _no_autocast(q.device):
        keys, values = (part.to(exact).repeat_interleave(q.shape[-3] // k.shape[-3], dim=-3) for part in (k, v))
        logits = q.to(exact) @ keys.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
        if bias is not None:
            logits = logits + bias
        if bias is not None or sighted is not None:
            logits = _masked(logits, sighted, blind)
        empty = (logits == -torch.inf).all(-1, keepdim=True)
        weights = logits.masked_fill(empty, 0).softmax(-1).masked_fill(empty, 0)
        result = F.dropout(weights, attn_drop) @ values
    return _silence(result, blind).to(v.dtype)


def _autocasts(device: torch.device) -> bool:
    return device.type != "meta" and torch.is_autocast_enabled(device.type)


def _no_autocast(device: torch.device) -> AbstractContextManager:
    """Leaves float32 alone; the meta device has no autocast to switch off."""
    return nullcontext() if device.type == "meta" else torch.autocast(device.type, enabled=False)


def _masked(logits: Tensor, sighted: Tensor | None, blind: Tensor | None) -> Tensor:
    if sighted is None or blind is None:
        return logits
    return logits.masked_fill(~sighted, -torch.inf).masked_fill(blind, 0)


def _sighted(visible: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """The mask with queries that see no key let see all, which keeps their softmax finite, and which those are."""
    if visible is None:
        return None, None
    blind = ~visible.any(-1, keepdim=True)
    return visible | blind, blind


def _silence(result: Tensor, blind: Tensor | None) -> Tensor:
    return result if blind is None else result.masked_fill(blind, 0)


def _visible(mask: Tensor | None, is_causal: bool, q: Tensor, k: Tensor) -> Tensor | None:
    """Mask and causality in one boolean tensor; None where every query sees every key."""
    queries, keys = q.shape[-2], k.shape[-2]
    if mask is not None:
        if mask.dtype != torch.bool:
            raise TypeError(f"mask must be boolean (True may attend), got {mask.dtype}")
        _check_fits("mask", mask, (*q.shape[:-1], keys))
    if not is_causal or queries == 1:
        return mask
    causal = torch.ones(queries, keys, dtype=torch.bool, device=q.device).tril(keys - queries)
    return causal if mask is None else causal & mask


def _evaluate_bias(bias, q, k, q_coords, k_coords, num_prefix_tokens) -> Tensor:
    if q_coords is None:
        raise ValueError(f"{type(bias).__name__} is a bias of coordinates: attention needs q_coords")
    unknown = bias.needs - {"query", "key"}
    if unknown:
        raise ValueError(f"{type(bias).__name__} needs {', '.join(sorted(unknown))}, which attention cannot give it")
    content = {"query": q[..., -q_coords.shape[-2] :, :], "key": k[..., -k_coords.shape[-2] :, :]}
    dense = bias(q_coords, k_coords, **{name: content[name] for name in bias.needs})
    return _pad_prefix(dense, q, k, num_prefix_tokens)


def _pad_prefix(bias, q, k, num_prefix_tokens) -> Tensor:
    """The bias with zeros for prefix tokens that it leaves out."""
    for name, missing in [("queries", q.shape[-2] - bias.shape[-2]), ("keys", k.shape[-2] - bias.shape[-1])]:
        if missing not in (0, num_prefix_tokens):
            raise ValueError(
                f"the bias has shape {tuple(bias.shape)}, which leaves out {missing} of the {name}; "
                f"num_prefix_tokens is {num_prefix_tokens}"
            )
    if not bias.is_floating_point():
        raise TypeError(f"bias must be floating point, got {bias.dtype}; a mask goes to mask")
    bias = F.pad(bias, (k.shape[-2] - bias.shape[-1], 0, q.shape[-2] - bias.shape[-2], 0))
    _check_fits("bias", bias, (*q.shape[:-1], k.shape[-2]))
    return bias


def _evaluate_scale(logit_scale, q, k, q_coords, visible, causal) -> Tensor:
    if q_coords is None:
        raise ValueError(f"{type(logit_scale).__name__} is a scale of coordinates: attention needs q_coords")
    queries = q_coords.shape[-2]
    if causal:
        return logit_scale(q_coords, visible=torch.arange(1, k.shape[-2] + 1, device=q.device)[-queries:])
    if visible is None:
        return logit_scale(q_coords, visible=torch.full((queries,), k.shape[-2], device=q.device))
    if visible.ndim > 2 and visible.shape[-3] != 1:
        raise ValueError(f"a logit scale takes one mask for all heads, got mask shape {tuple(visible.shape)}")
    counts = visible.expand(*visible.shape[:-2], q.shape[-2], k.shape[-2]).sum(-1)[..., -queries:]
    return logit_scale(q_coords, visible=counts if visible.ndim == 2 else counts.squeeze(-2))


def _check_shapes(q: Tensor, k: Tensor, v: Tensor, backend: str) -> None:
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}")
    if min(q.ndim, k.ndim, v.ndim) < 3:
        raise ValueError(
            f"q, k and v must be (..., heads, tokens, channels), got {[tuple(part.shape) for part in (q, k, v)]}"
        )
    if q.shape[-1] != k.shape[-1]:
        raise ValueError(f"q has {q.shape[-1]} channels per head but k has {k.shape[-1]}")
    if k.shape[:-1] != v.shape[:-1]:
        raise ValueError(f"k and v must agree in all but channels, got {tuple(k.shape)} and {tuple(v.shape)}")
    if not q.is_floating_point():
        raise TypeError(f"q, k and v must be floating point, got {q.dtype}")
    if not q.dtype == k.dtype == v.dtype and not _autocasts(q.device):
        raise TypeError(f"q, k and v must have the same dtype, got {q.dtype}, {k.dtype} and {v.dtype}")
    batches = q.shape[:-3], k.shape[:-3]
    if any(1 != a != b != 1 for a, b in zip(*map(reversed, batches), strict=False)):
        raise ValueError(f"q has batch shape {tuple(batches[0])} but k {tuple(batches[1])}")
    if not k.shape[-3] or q.shape[-3] % k.shape[-3]:
        raise ValueError(f"q has {q.shape[-3]} heads, which the {k.shape[-3]} heads of k do not divide")


def _check_fits(name: str, part: Tensor, shape: tuple[int, ...]) -> None:
    if part.ndim > len(shape) or any(
        own not in (1, full) for own, full in zip(reversed(part.shape), reversed(shape), strict=False)
    ):
        raise ValueError(f"{name} must fit logits of shape {tuple(shape)}, got shape {tuple(part.shape)}")
