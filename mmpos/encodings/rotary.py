"""Encodings that rotate queries and keys."""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from ..frequencies import Pair, Spectrum, angles, check_base
from ..scaling import PositionInterpolation, Scaling, scale_spectrum
from ..spectra import Axial, Learned, Mixed, Recipe
from .base import Layout, RotaryEncoding, Rotation, check_coords, check_layout, check_positive, keep_float32


@dataclass(frozen=True)
class XPos:
    """Decay with distance: queries at ``n`` are multiplied and keys divided by ``s_i ** ((n - centre) / scale_base)``.

    Pair ``i`` of ``d`` channels has ``s_i = (2i + 0.4 d) / (1.4 d)``.

    Reference:
        Sun et al., A length-extrapolatable transformer, 2022, sec. 3.2. https://arxiv.org/abs/2212.10554
    """

    scale_base: float = 512
    centre: float = 0

    def scale(self, coords: Shaped[Tensor, "*batch n 1"], width: int) -> Float[Tensor, "*batch 1 n p"]:
        power = (coords.double() - self.centre).unsqueeze(-3) / self.scale_base
        power = power.masked_fill(~power.isfinite(), torch.nan)
        reach = 60
        if not torch.compiler.is_compiling() and not coords.is_meta and (power.abs() > reach).any():
            raise ValueError(
                f"xPos overflows where |coord - centre| / scale_base is above {reach}; got coords up to "
                f"{coords.abs().max().item()} with scale_base {self.scale_base} and centre {self.centre}: "
                "give a larger scale_base or a centre amid the coordinates"
            )
        logs = [math.log((2 * i + 0.4 * width) / (1.4 * width)) for i in range(width // 2)]
        return (power * torch.tensor(logs, dtype=power.dtype, device=power.device)).exp().float()


class RoPE(RotaryEncoding):
    """Rotary encoding: channel pair ``p`` turns by ``sum_a coords[a] * freqs[a, p]``.

    Unless a spectrum is given, every axis turns a block of ``width / 2`` pairs, ``width = rotary_dim // axes``, in
    axis order; pair ``i`` of a block turns by ``coords[a] * base ** (-2i / width)`` radians.

    Args:
        head_dim: Channels per head, a multiple of ``2 * axes`` unless ``rotary_dim`` or the spectrum says otherwise.
        axes: Axes of the coordinates.
        base: Pair ``i`` of an axis turns by ``base ** (-2i / width)`` radians per coordinate unit.
        spectrum: How pairs are shared out and how fast they turn: `Axial`, `Sections`, `Shared` or `Given`, fixed;
            `Learned` or `Mixed`, learned.
        rotary_dim: Channels that turn, the first of each head; the others pass through. All of them by default.
        layout: "half" pairs channels ``(i, i + p)`` as Llama does, "interleaved" ``(2i, 2i + 1)`` as RoFormer does.
        scaling: A scaling of `mmpos.scaling` for all axes, or one (or None) for each.
        xpos: Decay with distance, for one axis.
        num_heads: Heads of queries, for a spectrum that differs between heads.
        num_kv_heads: Heads of keys; such a spectrum has one row for each of these, or of ``num_heads`` if None.
        rotary_heads: Heads that turn, the first of those; the others pass through. All of them by default.

    Raises:
        ValueError: If the channels that turn are not a multiple of ``2 * axes`` or more than ``head_dim``, ``base`` is
            not positive, the layout is unknown, or spectrum, scaling or heads do not fit.

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
        spectrum: Recipe | Learned | Mixed | None = None,
        rotary_dim: int | None = None,
        layout: Layout = "half",
        scaling: Scaling | Sequence[Scaling | None] | None = None,
        xpos: XPos | None = None,
        num_heads: int | None = None,
        num_kv_heads: int | None = None,
        rotary_heads: int | None = None,
    ):
        super().__init__()
        check_positive("head_dim", head_dim)
        check_positive("axes", axes)
        check_base(base)
        check_layout(layout)
        width, name = (head_dim, "head_dim") if rotary_dim is None else (rotary_dim, "rotary_dim")
        check_positive(name, width)
        if width > head_dim:
            raise ValueError(f"rotary_dim ({rotary_dim}) must be at most head_dim ({head_dim})")
        if xpos is not None and axes != 1:
            raise ValueError(f"xpos is for one axis, got axes={axes}")
        self.head_dim, self.axes, self.base, self.rotary_dim = head_dim, axes, base, width
        self.layout: Layout = layout
        self.spectrum, self.xpos, self.rotary_heads = spectrum, xpos, rotary_heads
        self.num_groups = num_kv_heads or num_heads

        start = spectrum.start if isinstance(spectrum, Learned) else spectrum
        unscaled = (start if isinstance(start, Recipe) else Axial()).spectrum(width, axes, base, name)
        if rotary_heads is not None:
            unscaled = _some_heads(unscaled, rotary_heads, self.num_groups)
        if len(unscaled.heads) not in (1, self.num_groups):
            raise ValueError(f"the spectrum is for {len(unscaled.heads)} heads, but there are {self.num_groups}")
        self._unscaled = unscaled
        if self.is_learned:
            self.freqs = nn.Parameter(self._draw())
        self._set_scaling(scaling)

    def with_scaling(self, scaling: Scaling | Sequence[Scaling | None] | None) -> "RoPE":
        """The same encoding with this scaling in the place of its own; it shares learned frequencies."""
        rope = copy.copy(self)
        rope._parameters = dict(self._parameters)
        rope._set_scaling(scaling)
        return rope

    @property
    def is_learned(self) -> bool:
        """Whether frequencies are parameters."""
        return isinstance(self.spectrum, Learned | Mixed)

    def reset_parameters(self) -> None:
        """Sets learned frequencies to where they start, drawn anew if they are mixed."""
        if self.is_learned:
            with torch.no_grad():
                self.freqs.copy_(self._draw())

    def no_weight_decay(self) -> set[str]:
        """Names of parameters that an optimiser should not decay."""
        return set(self._parameters)

    def forward(
        self, coords: Shaped[Tensor, "*batch n a"], *, length: int | Int[Tensor, "*rows"] | None = None
    ) -> Rotation:
        check_coords(coords, self.axes, owner="RoPE")
        cos, sin = self._learned_cos_sin(coords) if self.is_learned else self._turns.cos_sin(coords, length)
        scale = None if self.xpos is None else self.xpos.scale(coords, self.rotary_dim)
        factors = self._turns.factors()
        if factors is None:
            return Rotation(cos, sin, self.layout, scale)
        factor = torch.tensor(factors, device=coords.device)[:, None]
        return Rotation(cos * factor, sin * factor, self.layout, scale, factor)

    def _draw(self) -> Float[Tensor, "h p"] | Float[Tensor, "h a p"]:
        if isinstance(self.spectrum, Learned):
            return self.spectrum.draw(self._unscaled, self.num_groups)
        if self.num_groups is None:
            raise ValueError("a mixed spectrum has frequencies for each head: num_heads must be given")
        return Mixed().draw(self.num_groups, self.axes, self.rotary_dim, self.base)

    def _set_scaling(self, scaling: Scaling | Sequence[Scaling | None] | None) -> None:
        scalings = list(scaling) if isinstance(scaling, Sequence) else [scaling] * self.axes
        if len(scalings) != self.axes:
            raise ValueError(f"scaling must be one for all axes or one for each of {self.axes}, got {len(scalings)}")
        for each in scalings:
            if not isinstance(each, Scaling | None):
                raise TypeError(f"scaling must be made of scalings of mmpos.scaling, got {each!r}")
            if self.is_learned and not isinstance(each, PositionInterpolation | None):
                raise ValueError(f"learned frequencies take PositionInterpolation only, got {each}")
        self.scaling = scaling
        self._turns = scale_spectrum(self._unscaled, scalings)
        self._shrink = [each.factor if isinstance(each, PositionInterpolation) else 1.0 for each in scalings]

    def _learned_cos_sin(self, coords: Tensor) -> tuple[Tensor, Tensor]:
        freqs = self.freqs.double()
        if isinstance(self.spectrum, Learned):
            freqs = self.spectrum.on_axes(freqs, self._unscaled)
        shrink = torch.tensor(self._shrink, dtype=freqs.dtype, device=freqs.device)[:, None]
        turned = angles(coords.double(), freqs / shrink)
        return turned.cos().float(), turned.sin().float()

    def _apply(self, fn, recurse=True):
        """Moves learned frequencies with the module but keeps them in float32 when it is cast to half precision."""
        return super()._apply(keep_float32(fn), recurse)

    def extra_repr(self) -> str:
        parts = ["head_dim", "axes", "base", "spectrum", "rotary_dim", "layout", "scaling", "xpos", "rotary_heads"]
        shown = {part: getattr(self, part) for part in parts}
        return ", ".join(f"{part}={value!r}" for part, value in shown.items() if value is not None)


def _some_heads(spectrum: Spectrum, rotary_heads: int, num_heads: int | None) -> Spectrum:
    """The spectrum for the first heads, and pairs that stand still for the others."""
    if num_heads is None or not 0 <= rotary_heads <= num_heads:
        raise ValueError(f"rotary_heads ({rotary_heads}) must be from 0 to the number of heads ({num_heads})")
    pairs = spectrum.heads[0]
    still = tuple(Pair((Decimal(0),) * len(pair.freqs)) for pair in pairs)
    return Spectrum((pairs,) * rotary_heads + (still,) * (num_heads - rotary_heads))
