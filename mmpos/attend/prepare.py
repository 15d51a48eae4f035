"""From the arguments of `attention` to what backends are given."""

from math import prod

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from ..arguments import check_count, check_flag, check_real, check_tensor, fits
from ..encodings import AttentionBias, LogitScale, Rotation
from ..encodings.checks import check_coords
from ..masks import AttentionMask, Sight
from ..masks.sight import flat_rows
from .pairs import CoordinateBias, PairBias, TensorBias, check_fit
from .problem import Problem, autocasts


def prepare(
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
) -> Problem:
    """Checks the arguments of `attention`, rotates and scales, and puts all rows of a batch in one axis."""
    _check_shapes(q, k, v)
    _check_options(num_prefix_tokens, is_causal, scale, attn_drop)
    for name, part in (("q_coords", q_coords), ("k_coords", k_coords), ("tokens", tokens)):
        if part is not None:
            check_tensor(name, part)
    batch = torch.broadcast_shapes(q.shape[:-3], k.shape[:-3])
    shape = (*batch, *q.shape[-3:-1], k.shape[-2])
    k_coords = q_coords if k_coords is None else k_coords
    q_coords, k_coords = _flat_coords("q_coords", q_coords, batch), _flat_coords("k_coords", k_coords, batch)

    pair_bias: PairBias | None = None
    if isinstance(bias, AttentionBias):
        content = {"query": q, "key": k, "tokens": tokens}
        pair_bias = _coordinate_bias(bias, shape, q_coords, k_coords, content, num_prefix_tokens)
    elif bias is not None:
        pair_bias = _tensor_bias(bias, shape, num_prefix_tokens)
    if not isinstance(mask, AttentionMask | Tensor | None):
        raise TypeError(f"mask must be a boolean tensor or an AttentionMask, got {mask!r}")
    mask = AttentionMask(is_causal) & (AttentionMask() if mask is None else mask)
    prefix = num_prefix_tokens if pair_bias is None else pair_bias.k_prefix
    sight = mask.between(shape, num_prefix_tokens=prefix, device=q.device)
    if isinstance(logit_scale, LogitScale):
        factor = _evaluate_scale(logit_scale, sight, q_coords, num_prefix_tokens)
        factor = _fit_scale(factor, (prod(batch), *shape[-3:]), num_prefix_tokens)
    else:
        factor = None if logit_scale is None else _fit_scale(logit_scale, shape, num_prefix_tokens)

    q, k = _rotate(q, k, rotation)
    q, k, v = (flat_rows(part, batch, 3) for part in (q, k, v))
    if not q.shape[0] == k.shape[0] == v.shape[0]:
        q, k, v = (part.expand(max(q.shape[0], k.shape[0]), -1, -1, -1) for part in (q, k, v))
    if factor is not None:
        q = (q * factor[..., None]).to(q.dtype)
    return Problem(q, k, v, pair_bias, sight, q.shape[-1] ** -0.5 if scale is None else scale, attn_drop)


def _coordinate_bias(
    bias: AttentionBias,
    shape: tuple[int, ...],
    q_coords: Tensor | None,
    k_coords: Tensor | None,
    content: dict[str, Tensor | None],
    num_prefix_tokens: int,
) -> CoordinateBias:
    name, batch = type(bias).__name__, shape[:-3]
    if q_coords is None or k_coords is None:
        raise ValueError(f"{name} is a bias of coordinates: attention needs q_coords")
    check_coords(q_coords, bias.axes, "q_coords", owner=f"{name}(axes={{axes}})")
    check_coords(k_coords, bias.axes, "k_coords", owner=f"{name}(axes={{axes}})")
    q_prefix = _left_out("q_coords", q_coords, -2, "queries", shape[-2], num_prefix_tokens)
    k_prefix = _left_out("k_coords", k_coords, -2, "keys", shape[-1], num_prefix_tokens)
    parts: dict[str, Tensor] = {}
    for needed in sorted(bias.needs):
        part = content.get(needed)
        if part is None:
            raise ValueError(f"{name} needs {needed}, which attention was not given")
        count = k_coords.shape[-2] if needed == "key" else q_coords.shape[-2]
        if part.shape[-2] < count:
            raise ValueError(f"{name} needs {needed} of {count} tokens, got shape {tuple(part.shape)}")
        part = flat_rows(part, batch, 2 if needed == "tokens" else 3)
        parts[needed] = part.narrow(-2, part.shape[-2] - count, count)
    of_keys = {"key": parts.pop("key")} if "key" in parts else {}
    rows = (prod(batch), shape[-3])
    return CoordinateBias(bias, q_coords, k_coords, parts, of_keys, q_prefix, k_prefix, rows)


def _tensor_bias(bias: Tensor, shape: tuple[int, ...], num_prefix_tokens: int) -> TensorBias:
    check_tensor("bias", bias)
    if not bias.is_floating_point():
        raise TypeError(f"bias must be floating point, got {bias.dtype}; a mask goes to mask")
    if bias.ndim < 2:
        raise ValueError(f"bias must be (..., h, q, k), got shape {tuple(bias.shape)}")
    q_prefix = _left_out("bias", bias, -2, "queries", shape[-2], num_prefix_tokens)
    k_prefix = _left_out("bias", bias, -1, "keys", shape[-1], num_prefix_tokens)
    check_fit("bias", bias, (*shape[:-2], *bias.shape[-2:]))
    return TensorBias(flat_rows(bias[(None,) * max(3 - bias.ndim, 0)], shape[:-3], 3), q_prefix, k_prefix)


def _evaluate_scale(logit_scale: LogitScale, sight: Sight, q_coords: Tensor | None, num_prefix_tokens: int) -> Tensor:
    """The factors, told how many keys each query sees."""
    if q_coords is None:
        raise ValueError(f"{type(logit_scale).__name__} is a scale of coordinates: attention needs q_coords")
    missing = _left_out("q_coords", q_coords, -2, "queries", sight.queries, num_prefix_tokens)
    return logit_scale(q_coords, visible=sight.count_keys()[..., missing:])


def _fit_scale(factor: Tensor, shape: tuple[int, ...], num_prefix_tokens: int) -> Float[Tensor, "#b #h q"]:
    """Factors of all queries, 1 for prefix tokens, which they leave out."""
    check_tensor("logit_scale", factor)
    if not factor.is_floating_point() or not factor.ndim:
        raise TypeError(f"logit_scale must be floating point (..., h, q), got {factor.dtype} {tuple(factor.shape)}")
    missing = _left_out("logit_scale", factor, -1, "queries", shape[-2], num_prefix_tokens)
    check_fit("logit_scale", factor, (*shape[:-2], factor.shape[-1]))
    return flat_rows(F.pad(factor, (missing, 0), value=1.0), shape[:-3], 2)


def _left_out(name: str, part: Tensor, axis: int, what: str, count: int, num_prefix_tokens: int) -> int:
    """How many prefix tokens a tensor leaves out on an axis: none or all."""
    missing = count - part.shape[axis]
    if missing not in (0, num_prefix_tokens):
        raise ValueError(
            f"{name} has shape {tuple(part.shape)}, which leaves out {missing} of the {what}; "
            f"num_prefix_tokens is {num_prefix_tokens}"
        )
    return missing


def _rotate(
    q: Float[Tensor, "*batch h q d"],
    k: Float[Tensor, "*batch g k d"],
    rotation: Rotation | tuple[Rotation | None, Rotation | None] | None,
) -> tuple[Float[Tensor, "*batch h q d"], Float[Tensor, "*batch g k d"]]:
    if rotation is None:
        return q, k
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
    return q, k if k_rotation is None else k_rotation.apply(k, role="key")


def _flat_coords(name: str, coords: Tensor | None, batch: tuple[int, ...]) -> Tensor | None:
    """Coordinates with one axis for the batch, or none."""
    if coords is None or coords.ndim <= 2:
        return coords
    if not fits(coords.shape[:-2], batch):
        raise ValueError(f"{name} must fit rows of shape {tuple(batch)}, got shape {tuple(coords.shape)}")
    return flat_rows(coords, batch, 2)


def _check_options(num_prefix_tokens: int, is_causal: bool, scale: float | None, attn_drop: float) -> None:
    check_count("num_prefix_tokens", num_prefix_tokens)
    check_flag("is_causal", is_causal)
    if scale is not None:
        check_real("scale", scale)
    check_real("attn_drop", attn_drop)
    if not 0 <= attn_drop <= 1:
        raise ValueError(f"attn_drop must be from 0 to 1, got {attn_drop}")


def _check_shapes(q: Tensor, k: Tensor, v: Tensor) -> None:
    for name, part in (("q", q), ("k", k), ("v", v)):
        check_tensor(name, part)
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
    if not q.dtype == k.dtype == v.dtype and not autocasts(q.device):
        raise TypeError(f"q, k and v must have the same dtype, got {q.dtype}, {k.dtype} and {v.dtype}")
    batches = q.shape[:-3], k.shape[:-3]
    if any(1 != a != b != 1 for a, b in zip(*map(reversed, batches), strict=False)):
        raise ValueError(f"q has batch shape {tuple(batches[0])} but k {tuple(batches[1])}")
    if not k.shape[-3] or q.shape[-3] % k.shape[-3]:
        raise ValueError(f"q has {q.shape[-3]} heads, which the {k.shape[-3]} heads of k do not divide")
