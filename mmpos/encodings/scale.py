"""Encodings that scale the logits of each query by how many keys there are, lest attention flattens among many."""

import math
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from ..arguments import check_real, check_signed, check_tensor
from .base import LogitScale
from .checks import check_coords, check_positive, keep_float32

Ratio = Literal["clamped", "plain", "stepped"]
By = Literal["keys", "position"]


class LogScale(LogitScale):
    """Grows with the logarithm of the number of keys: ``1 + coefficient * log(r)``, with ``r`` the ratio to training.

    For ``n`` keys ``r`` is ``max(n / train_length, 1)``. With the coefficient ``1 / log(train_length)`` that makes
    ``max(log(n) / log(train_length), 1)``. No key counts as one.

    Args:
        train_length: The number of keys at which the factor is 1, at least 2; that of training or less.
        coefficient: How fast the factor grows; ``1 / log(train_length)`` unless given.
        ratio: "clamped" is the above; "plain" is ``n / train_length``, which scales shorter contexts down; "stepped"
            is ``floor(n / train_length) + 1``, as Llama 4 has it.
        by: Whether ``n`` is the number of "keys" that the query may attend to, as ``visible`` counts them and as
            its position + 1 where nobody does, or its "position" + 1 whatever it may attend to. In causal attention
            over all of one sequence they are the same. A position is a coordinate on one axis.
        axes: Axes of the coordinates; with more than one, ``visible`` must be given.

    Raises:
        ValueError: If ``train_length`` is below 2, ``ratio`` or ``by`` is unknown, or ``by`` is "position" on more
            axes than one.

    Example:
        >>> LogScale(train_length=512)(sequence_coords(3), visible=torch.tensor([8, 512, 4096]))
        tensor([[1.0000, 1.0000, 1.3333]])

    Reference:
        Su, Scaling attention from the invariance of entropy, 2021. https://kexue.fm/archives/8823
        Bai et al., Qwen technical report, 2023, sec. 2.3. https://arxiv.org/abs/2309.16609
    """

    def __init__(
        self,
        train_length: int,
        *,
        coefficient: float | None = None,
        ratio: Ratio = "clamped",
        by: By = "keys",
        axes: int = 1,
    ):
        super().__init__()
        _check_train_length(train_length)
        check_positive("axes", axes)
        for name, value, known in (("ratio", ratio, get_args(Ratio)), ("by", by, get_args(By))):
            if not isinstance(value, str) or value not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}")
        if coefficient is not None:
            check_real("coefficient", coefficient)
        if by == "position" and axes != 1:
            raise ValueError(f"a position is a coordinate on one axis, but axes is {axes}: scale by='keys'")
        self.train_length, self.ratio, self.by, self.axes = train_length, ratio, by, axes
        self.coefficient = 1 / math.log(train_length) if coefficient is None else coefficient

    def forward(
        self, q_coords: Shaped[Tensor, "*batch q a"], *, visible: Int[Tensor, "*rows q"] | None = None
    ) -> Float[Tensor, "*out 1 q"]:
        n = _count_keys(q_coords, None if self.by == "position" else visible, self.axes, "LogScale")
        ratio = n / self.train_length
        if self.ratio == "stepped":
            ratio = ratio.floor() + 1
        elif self.ratio == "clamped":
            ratio = ratio.clamp(min=1)
        return (1 + self.coefficient * ratio.log()).float().unsqueeze(-2)

    def extra_repr(self) -> str:
        parts = ["train_length", "coefficient", "ratio", "by", "axes"]
        return ", ".join(f"{part}={getattr(self, part)!r}" for part in parts)


class SSMax(LogitScale):
    """Scalable softmax: ``slope * log(n)`` for ``n`` keys that the query may attend to, with a learned slope per head.

    Without ``visible``, ``n`` is the position + 1. No key counts as one, whose factor is 0.

    Args:
        num_heads: Heads of queries ``h``.
        train_length: Slopes start where the factor is 1 on average over this many lengths, from 1 on. That is 0.168
            for the 1024 of the paper.
        axes: Axes of the coordinates; with more than one, ``visible`` must be given.

    Raises:
        ValueError: If ``num_heads`` or ``axes`` is not positive, or ``train_length`` below 2.

    Example:
        >>> SSMax(num_heads=6)(sequence_coords(140)).shape
        torch.Size([6, 140])

    Reference:
        Nakanishi, Scalable-softmax is superior for attention, 2025, sec. 2. https://arxiv.org/abs/2501.19399
    """

    def __init__(self, num_heads: int, *, train_length: int = 1024, axes: int = 1):
        super().__init__()
        check_positive("num_heads", num_heads)
        _check_train_length(train_length)
        check_positive("axes", axes)
        self.num_heads, self.train_length, self.axes = num_heads, train_length, axes
        self.slopes = nn.Parameter(torch.empty(num_heads, dtype=torch.float32))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Sets all slopes to one over the average of ``log(n)`` in training."""
        nn.init.constant_(self.slopes, self.train_length / math.lgamma(self.train_length + 1))

    def forward(
        self, q_coords: Shaped[Tensor, "*batch q a"], *, visible: Int[Tensor, "*rows q"] | None = None
    ) -> Float[Tensor, "*out h q"]:
        n = _count_keys(q_coords, visible, self.axes, "SSMax")
        return (self.slopes.double()[:, None] * n.log().unsqueeze(-2)).float()

    def _apply(self, fn, recurse=True):
        """Moves slopes with the module but keeps them in float32 when it is cast to half precision."""
        return super()._apply(keep_float32(fn), recurse)

    def extra_repr(self) -> str:
        return f"num_heads={self.num_heads}, train_length={self.train_length}, axes={self.axes}"


class HeadScale(LogitScale):
    """One learned factor for each head, the same for all queries: a temperature that is tuned for a longer context.

    Factors start at 1, where nothing changes. With all other weights as they were, tuning them alone on longer rows
    lets a model without any positions attend further than it was trained to.

    Args:
        num_heads: Heads of queries ``h``.
        axes: Axes of the coordinates, which tell how many queries there are and nothing more.

    Raises:
        ValueError: If ``num_heads`` or ``axes`` is not positive.

    Example:
        >>> HeadScale(num_heads=6)(sequence_coords(140)).shape
        torch.Size([6, 140])

    Reference:
        Wang et al., Length generalization of causal transformers without position encoding, 2024, sec. 4.
        https://arxiv.org/abs/2404.12224
    """

    def __init__(self, num_heads: int, *, axes: int = 1):
        super().__init__()
        check_positive("num_heads", num_heads)
        check_positive("axes", axes)
        self.num_heads, self.axes = num_heads, axes
        self.factors = nn.Parameter(torch.empty(num_heads, dtype=torch.float32))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Sets all factors to 1."""
        nn.init.ones_(self.factors)

    def forward(
        self, q_coords: Shaped[Tensor, "*batch q a"], *, visible: Int[Tensor, "*rows q"] | None = None
    ) -> Float[Tensor, "*out h q"]:
        n = _count_keys(q_coords, visible, self.axes, "HeadScale")
        return self.factors[:, None] * torch.where(n.isnan(), n, 1).float().unsqueeze(-2)

    def _apply(self, fn, recurse=True):
        """Moves factors with the module but keeps them in float32 when it is cast to half precision."""
        return super()._apply(keep_float32(fn), recurse)

    def extra_repr(self) -> str:
        return f"num_heads={self.num_heads}, axes={self.axes}"


def _count_keys(q_coords: Tensor, visible: Tensor | None, axes: int, owner: str) -> Float[Tensor, "*rows q"]:
    """Keys of each query in float64, at least 1: those that are visible, or up to its own position; NaN at none."""
    check_coords(q_coords, axes, "q_coords", owner=f"{owner}(axes={{axes}})")
    if visible is not None:
        check_tensor("visible", visible)
        if visible.dtype == torch.bool or visible.is_floating_point() or visible.is_complex():
            raise TypeError(f"visible must hold integers, the number of keys of each query, got {visible.dtype}")
        check_signed("visible", visible)
        if not visible.ndim or visible.shape[-1] != q_coords.shape[-2]:
            raise ValueError(f"visible has shape {tuple(visible.shape)}, but there are {q_coords.shape[-2]} queries")
        return visible.double().clamp(min=1)
    if axes != 1:
        raise ValueError(f"{owner} needs visible, the number of keys of each query, for coordinates of {axes} axes")
    position = q_coords[..., 0].double()
    return (position + 1).clamp(min=1).masked_fill(~position.isfinite(), torch.nan)


def _check_train_length(train_length: int) -> None:
    check_positive("train_length", train_length)
    if train_length < 2:
        raise ValueError(f"train_length must be at least 2, for its logarithm divides, got {train_length}")
