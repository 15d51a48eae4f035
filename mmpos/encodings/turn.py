"""The turn of channel pairs: each pair ``(a, b)`` becomes ``(a cos - b sin, b cos + a sin)``.

`formula` says it in a few operations, which a compiler fuses with what stands before and after. Run one by one on large
tensors these read and write memory many times over; so without a compiler `turn` writes its result once: neighbouring
channels as one product of complex numbers, halves in blocks of tokens whose intermediate values stay in a processor's
cache. On a CPU both give the same bits, but for a pair with an infinite channel, which is infinite or NaN.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch._C._functorch import is_legacy_batchedtensor
from torch.autograd import Function

Layout = Literal["half", "interleaved"]

# Entries of x that a thread turns at a time: few enough for its cache, many enough that calls do not count.
BLOCK = 2**19
# Entries of x below which those calls take longer than what they save.
FEW = 2**16
# PyTorch multiplies so many complex numbers at a time, rounding two products and their sum; what is left at the end of
# a row, or of a thread's share of at least so many numbers, it rounds otherwise.
VECTOR = 16
GRAIN = 2**15

_fused: Callable[..., Any] | None = None


def fuse_rotations(enabled: bool = True) -> None:
    """Has large tensors turned by one kernel outside of compiled models, too, which reads and writes each entry once.

    `torch.compile` makes it of the formula at the first of them, which takes seconds for each precision, layout and
    order of dimensions, and on a CPU needs a C++ compiler. The last bit may differ from that without it.

    Args:
        enabled: False goes back to how it was.

    Example:
        >>> fuse_rotations()
        >>> rotation = RoPE(head_dim=64)(sequence_coords(7))
        >>> rotation.apply(torch.randn(2, 3, 7, 64)).shape  # too small to be worth it
        torch.Size([2, 3, 7, 64])
        >>> fuse_rotations(False)
    """
    global _fused
    _fused = torch.compile(formula, dynamic=True, fullgraph=True) if enabled else None


def turn(
    x: Float[Tensor, "*rows h n d"],
    cos: Float[Tensor, "*batch #h n p"],
    sin: Float[Tensor, "*batch #h n p"],
    layout: Layout,
) -> Float[Tensor, "*rows h n d"]:
    """A new tensor in which the first ``2 p`` channels of ``x`` are turned, in at least float32, and rounded once.

    A backward pass needs ``cos`` and ``sin`` only, and ``x`` if these have gradients themselves.
    """
    if torch.compiler.is_compiling() or (x.numel() < FEW and x.device.type == "cpu"):
        return formula(x, cos, sin, layout)
    if type(x) is not Tensor or is_legacy_batchedtensor(x):  # which cannot be written into
        return formula(x, cos, sin, layout)
    return Turn.apply(x, cos, sin, layout)  # pyright: ignore[reportReturnType]


def formula(
    x: Float[Tensor, "*rows h n d"],
    cos: Float[Tensor, "*batch #h n p"],
    sin: Float[Tensor, "*batch #h n p"],
    layout: Layout,
) -> Float[Tensor, "*rows h n d"]:
    """What `turn` computes."""
    width = 2 * cos.shape[-1]
    whole = width == x.shape[-1]
    part, *rest = (x,) if whole else x.split([width, x.shape[-1] - width], dim=-1)
    a, b = split_pairs(part.to(_precision(x, cos)), layout)
    if layout == "half":
        first, second = torch.addcmul(b * -sin, a, cos), torch.addcmul(a * sin, b, cos)
    else:  # as the product of complex numbers is rounded
        first, second = a * cos - b * sin, a * sin + b * cos
    turned = join_pairs(first, second, layout).to(x.dtype)
    return turned if whole else torch.cat([turned, *rest], dim=-1)


def split_pairs(x: Float[Tensor, "*rows d"], layout: Layout) -> tuple[Tensor, Tensor]:
    """The first channel of every pair and the second, as views."""
    # By one operation: their gradients are joined then. Those of slices would be filled up with zeros and added.
    half, pairs = layout == "half", x.shape[-1] // 2
    a, b = x.chunk(2, dim=-1) if half else x.reshape(*x.shape[:-1], pairs, 2).unbind(-1)
    return a, b


def join_pairs(a: Float[Tensor, "*rows p"], b: Float[Tensor, "*rows p"], layout: Layout) -> Float[Tensor, "*rows d"]:
    """The channels of which `split_pairs` gives ``a`` and ``b``."""
    if layout == "half":
        return torch.cat([a, b], dim=-1)
    return torch.stack([a, b], dim=-1).reshape(*a.shape[:-1], 2 * a.shape[-1])


class Turn(Function):
    """The turn as one step of autograd: linear in ``x`` and in ``(cos, sin)``, and its transpose turns back."""

    @staticmethod
    def forward(x: Tensor, cos: Tensor, sin: Tensor, layout: Layout) -> Tensor:
        if _fused is not None:
            return _fused(x, cos, sin, layout)
        result = _empty_like(x, x.dtype)
        width, dtype = 2 * cos.shape[-1], _precision(x, cos)
        if width < x.shape[-1]:
            result[..., width:] = x[..., width:]
        x, out, cos, sin = x.narrow(-1, 0, width), result[..., :width], cos.to(dtype), sin.to(dtype)
        as_it_is = x.dtype == dtype and (layout == "half" or (_holds_complex(x) and _holds_complex(out)))
        if as_it_is and layout == "interleaved" and _in_whole_vectors(out, x):
            _turn_into(out, x, cos, sin, layout)
            return result
        buffers: list[Tensor] = []
        for part, into, c, s in _blocks(x, out, cos, sin):
            if as_it_is:
                _turn_into(into, part, c, s, layout)
                continue
            # In memory that is fetched once: on a CPU new pages cost more than the turn. Complex numbers stay in place.
            buffers = buffers or [_empty_like(part, dtype) for _ in range(2 if layout == "half" else 1)]
            wide, turned = (buffers[place][..., : part.shape[-2], :] for place in (0, -1))
            into.copy_(_turn_into(turned, wide.copy_(part), c, s, layout))
        return result

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        x, cos, sin, ctx.layout = inputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(cos, sin, x if any(ctx.needs_input_grad[1:3]) else None)
        ctx.save_for_forward(cos, sin, x)

    @staticmethod
    def backward(ctx, *grad_outputs: Tensor | None):
        (cos, sin, x), (slope,) = ctx.saved_tensors, grad_outputs
        if slope is None:
            return None, None, None, None
        to_x = turn(slope, cos, -sin, ctx.layout) if ctx.needs_input_grad[0] else None
        to_cos, to_sin = (None, None) if x is None else _slopes_of_turns(x, slope, cos, sin, ctx.layout)
        return to_x, to_cos, to_sin, None

    @staticmethod
    def jvp(ctx, *grad_inputs: Tensor | None):
        (cos, sin, x), (x_slope, *turn_slopes, _) = ctx.saved_tensors, grad_inputs
        result = torch.zeros_like(x) if x_slope is None else turn(x_slope, cos, sin, ctx.layout)
        if all(slope is None for slope in turn_slopes):
            return result
        cos, sin = (torch.zeros_like(cos) if slope is None else slope for slope in turn_slopes)
        width = 2 * cos.shape[-1]
        return result + F.pad(turn(x.narrow(-1, 0, width), cos, sin, ctx.layout), (0, x.shape[-1] - width))

    @staticmethod
    def vmap(info, in_dims, *args):
        x, cos, sin, layout = args
        x = x.expand(info.batch_size, *x.shape) if in_dims[0] is None else x.movedim(in_dims[0], 0)
        parts = [
            part if dim is None else part.movedim(dim, 0)[(slice(None), *[None] * (x.ndim - part.ndim))]
            for part, dim in zip((cos, sin), in_dims[1:3], strict=True)
        ]
        cos, sin = torch.broadcast_tensors(*parts)
        return turn(x, cos, sin, layout), 0


def _empty_like(x: Tensor, dtype: torch.dtype) -> Tensor:
    """With neighbouring channels, and else the strides of x: heads that are a view of (b, n, h, d) stay such a view."""
    if x.stride(-1) == 1 and (like := torch.empty_like(x, dtype=dtype)).stride(-1) == 1:
        return like
    return torch.empty_like(x, dtype=dtype, memory_format=torch.contiguous_format)


def _precision(x: Tensor, cos: Tensor) -> torch.dtype:
    return torch.promote_types(torch.promote_types(x.dtype, cos.dtype), torch.float32)


def _blocks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Slices of a few tokens of each; on a device without such a cache, all of them."""
    x = tensors[0]
    tokens = max(x.shape[-2], 1)
    if x.device.type == "cpu":
        tokens = max(BLOCK * torch.get_num_threads() * tokens // max(x.numel(), 1), 1)
    return zip(*(part.split(tokens, dim=-2) for part in tensors), strict=True)


def _turn_into(out: Tensor, x: Tensor, cos: Tensor, sin: Tensor, layout: Layout) -> Tensor:
    """Writes what `formula` gives."""
    if layout == "half":
        (a, b), (first, second) = split_pairs(x, layout), split_pairs(out, layout)
        torch.mul(b, -sin, out=first)
        torch.mul(a, sin, out=second)
        return out.addcmul_(x, join_pairs(cos, cos, layout))
    tokens = _in_whole_vectors(out, x)
    whole, rest = (..., slice(tokens), slice(None)), (..., slice(tokens, None), slice(None))
    if tokens:
        factor = torch.complex(cos[whole], sin[whole]).contiguous()
        torch.mul(_as_complex(x[whole]), factor, out=_as_complex(out[whole]))
    if tokens < x.shape[-2]:
        out[rest] = formula(x[rest], cos[rest], sin[rest], layout)
    return out


def _in_whole_vectors(out: Tensor, x: Tensor) -> int:
    """How many tokens a product of complex numbers turns without leaving any at the end of a row or a thread.

    On a GPU, whose threads take numbers one by one, all of them.
    """
    tokens, pairs = x.shape[-2], x.shape[-1] // 2
    if x.device.type == "cuda":
        return tokens
    if x.device.type != "cpu" or torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"):
        return 0
    if pairs % VECTOR and not x.stride(-2) == out.stride(-2) == 2 * pairs:  # tokens are not one row
        return 0
    numbers = x.numel() // 2 // max(tokens, 1)  # of a token
    most = torch.get_num_threads()
    for threads in range(min(most, -(-tokens * numbers // GRAIN)), 0, -1):
        whole = tokens - tokens % (VECTOR * threads // math.gcd(VECTOR * threads, pairs))
        if threads == min(most, -(-whole * numbers // GRAIN)):  # so many share them
            return whole
    return 0


def _holds_complex(x: Tensor) -> bool:
    """Whether neighbouring channels can be seen as complex numbers."""
    return x.stride(-1) == 1 and not any(step % 2 for step in (*x.stride()[:-1], x.storage_offset()))


def _as_complex(x: Tensor) -> Tensor:
    return torch.view_as_complex(x.unflatten(-1, (-1, 2)))


def _slopes_of_turns(x: Tensor, slope: Tensor, cos: Tensor, sin: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
    """The gradients of ``cos`` and ``sin``, summed over all that they turn; a formula, so that it has gradients too."""
    width, dtype = 2 * cos.shape[-1], _precision(x, cos)
    parts: tuple[list[Tensor], list[Tensor]] = [], []
    for block in _blocks(x.narrow(-1, 0, width), slope.narrow(-1, 0, width)):
        (a, b), (u, v) = (split_pairs(part.to(dtype), layout) for part in block)
        size = (*cos.shape[:-2], *a.shape[-2:])
        parts[0].append((a * u).addcmul(b, v).sum_to_size(size))
        parts[1].append((a * v).addcmul(b, u, value=-1).sum_to_size(size))
    to_cos, to_sin = (torch.cat(part, dim=-2).to(cos.dtype) for part in parts)
    return to_cos, to_sin
