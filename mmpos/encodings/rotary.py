"""Encodings that rotate queries and keys."""

from jaxtyping import Int, Shaped
from torch import Tensor

from ..frequencies import axial
from .base import Layout, RotaryEncoding, Rotation, check_base, check_coords, check_layout, check_width


class RoPE(RotaryEncoding):
    """Rotary encoding: channel pair ``p`` turns by ``sum_a coords[a] * freqs[a, p]``.

    Every axis turns a block of ``width / 2`` pairs, ``width = rotary_dim // axes``, in axis order; pair ``i`` of a
    block turns by ``coords[a] * base ** (-2i / width)`` radians.

    Args:
        head_dim: Channels per head, a multiple of ``2 * axes`` unless ``rotary_dim`` is.
        axes: Axes of the coordinates.
        base: Pair ``i`` of an axis turns by ``base ** (-2i / width)`` radians per coordinate unit.
        rotary_dim: Channels that turn, the first of each head; the others pass through. All of them by default.
        layout: "half" pairs channels ``(i, i + rotary_dim / 2)`` as Llama does, "interleaved" ``(2i, 2i + 1)`` as
            RoFormer does.

    Raises:
        ValueError: If the channels that turn are not a multiple of ``2 * axes`` or more than ``head_dim``, ``base`` is
            not positive, or the layout is unknown.

    Example:
        >>> RoPE(head_dim=64, axes=2)(grid_coords(height=14, width=10)).cos.shape
        torch.Size([1, 140, 32])

    Reference:
        Su et al., RoFormer, 2021, sec. 3.4. https://arxiv.org/abs/2104.09864
    """

    def __init__(
        self,
        head_dim: int,
        *,
        axes: int = 1,
        base: float = 10000.0,
        rotary_dim: int | None = None,
        layout: Layout = "half",
    ):
        super().__init__()
        if rotary_dim is None:
            check_width("head_dim", head_dim, axes)
        else:
            check_width("rotary_dim", rotary_dim, axes)
            if rotary_dim > head_dim:
                raise ValueError(f"rotary_dim ({rotary_dim}) must be at most head_dim ({head_dim})")
        check_base(base)
        check_layout(layout)
        self.head_dim, self.axes, self.base = head_dim, axes, base
        self.layout: Layout = layout
        self.rotary_dim = head_dim if rotary_dim is None else rotary_dim
        self.spectrum = axial(self.rotary_dim, axes, base)

    def forward(
        self, coords: Shaped[Tensor, "*batch n a"], *, length: int | Int[Tensor, "*rows"] | None = None
    ) -> Rotation:
        check_coords(coords, self.axes, owner="RoPE")
        cos, sin = self.spectrum.cos_sin(coords)
        return Rotation(cos.unsqueeze(-3), sin.unsqueeze(-3), self.layout)

    def extra_repr(self) -> str:
        return (
            f"head_dim={self.head_dim}, axes={self.axes}, base={self.base}, rotary_dim={self.rotary_dim}, "
            f"layout={self.layout!r}"
        )
