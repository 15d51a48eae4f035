"""Encodings that rotate queries and keys."""

import torch
from jaxtyping import Int, Shaped
from torch import Tensor, nn

from ..frequencies import Given, Mixed, axial, learned_cos_sin
from .base import (
    Layout,
    RotaryEncoding,
    Rotation,
    check_base,
    check_coords,
    check_layout,
    check_positive,
    check_width,
    keep_float32,
)


class RoPE(RotaryEncoding):
    """Rotary encoding: channel pair ``p`` turns by ``sum_a coords[a] * freqs[a, p]``.

    Unless a spectrum is given, every axis turns a block of ``width / 2`` pairs, ``width = rotary_dim // axes``, in
    axis order; pair ``i`` of a block turns by ``coords[a] * base ** (-2i / width)`` radians.

    Args:
        head_dim: Channels per head, a multiple of ``2 * axes`` unless ``rotary_dim`` or the spectrum says otherwise.
        axes: Axes of the coordinates.
        base: Pair ``i`` of an axis turns by ``base ** (-2i / width)`` radians per coordinate unit.
        spectrum: `Given` frequencies or `Mixed`, learned ones.
        rotary_dim: Channels that turn, the first of each head; the others pass through. All of them by default.
        layout: "half" pairs channels ``(i, i + rotary_dim / 2)`` as Llama does, "interleaved" ``(2i, 2i + 1)`` as
            RoFormer does.
        num_heads: Heads of queries, for a spectrum that differs between heads.
        num_kv_heads: Heads of keys; such a spectrum has one row for each of these, or of ``num_heads`` if None.

    Raises:
        ValueError: If the channels that turn are not a multiple of ``2 * axes`` or more than ``head_dim``, ``base`` is
            not positive, the layout is unknown, or the spectrum does not fit.

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
        spectrum: Given | Mixed | None = None,
        rotary_dim: int | None = None,
        layout: Layout = "half",
        num_heads: int | None = None,
        num_kv_heads: int | None = None,
    ):
        super().__init__()
        check_positive("head_dim", head_dim)
        check_base(base)
        check_layout(layout)
        if isinstance(spectrum, Given):
            rotary_dim = 2 * len(spectrum.freqs[0])
            if len(spectrum.freqs) != axes:
                raise ValueError(f"the spectrum has {len(spectrum.freqs)} rows of frequencies for {axes} axes")
        else:
            check_width("head_dim" if rotary_dim is None else "rotary_dim", rotary_dim or head_dim, axes)
        self.head_dim, self.axes, self.base, self.spectrum = head_dim, axes, base, spectrum
        self.rotary_dim = head_dim if rotary_dim is None else rotary_dim
        self.layout: Layout = layout
        if self.rotary_dim > head_dim:
            raise ValueError(f"rotary_dim ({self.rotary_dim}) must be at most head_dim ({head_dim})")
        if isinstance(spectrum, Mixed):
            if num_heads is None:
                raise ValueError("a mixed spectrum has frequencies for each head: num_heads must be given")
            self.freqs = nn.Parameter(torch.empty(num_kv_heads or num_heads, axes, self.rotary_dim // 2))
            self.reset_parameters()
        else:
            self.fixed = axial(self.rotary_dim, axes, base) if spectrum is None else spectrum.spectrum()

    def reset_parameters(self) -> None:
        """Draws learned frequencies anew."""
        if isinstance(self.spectrum, Mixed):
            with torch.no_grad():
                self.freqs.copy_(self.spectrum.draw(len(self.freqs), self.axes, self.rotary_dim, self.base))

    def no_weight_decay(self) -> set[str]:
        """Names of parameters that an optimiser should not decay."""
        return {"freqs"} if isinstance(self.spectrum, Mixed) else set()

    def forward(
        self, coords: Shaped[Tensor, "*batch n a"], *, length: int | Int[Tensor, "*rows"] | None = None
    ) -> Rotation:
        check_coords(coords, self.axes, owner="RoPE")
        if isinstance(self.spectrum, Mixed):
            return Rotation(*learned_cos_sin(coords, self.freqs), self.layout)
        cos, sin = self.fixed.cos_sin(coords)
        return Rotation(cos.unsqueeze(-3), sin.unsqueeze(-3), self.layout)

    def _apply(self, fn, recurse=True):
        """Moves learned frequencies with the module but keeps them in float32 when it is cast to half precision."""
        return super()._apply(keep_float32(fn), recurse)

    def extra_repr(self) -> str:
        spectrum = "" if self.spectrum is None else f"spectrum={self.spectrum}, "
        return (
            f"head_dim={self.head_dim}, axes={self.axes}, base={self.base}, {spectrum}rotary_dim={self.rotary_dim}, "
            f"layout={self.layout!r}"
        )
