"""Encodings that rotate queries and keys."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from ..arguments import check_int64, check_number, check_real
from ..frequencies import angles, check_base
from ..scaling import PositionInterpolation, Scaling, scale_spectrum
from ..spectra import Axial, Learned, Mixed, Recipe
from .base import Layout, RotaryEncoding, Rotation
from .checks import check_coords, check_heads, check_layout, check_length, check_positive, keep_float32

XPOS_REACH = 60  # in units of scale_base: 3.5 ** 60 is 4e32


@dataclass(frozen=True)
class XPos:
    """Decay with distance: queries at ``n`` are multiplied and keys divided by ``s_i ** ((n - centre) / scale_base)``.

    Pair ``i`` of ``d`` channels has ``s_i = (2i + 0.4 d) / (1.4 d)``. Where ``|n - centre| / scale_base`` is above 60
    (6 for queries in float16) this would overflow; it is refused, and NaN in compiled code.

    Reference:
        Sun et al., A length-extrapolatable transformer, 2022, sec. 3.2. https://arxiv.org/abs/2212.10554
    """

    scale_base: float = 512
    centre: float = 0

    def __post_init__(self):
        check_number("scale_base", self.scale_base)
        check_real("centre", self.centre)
        object.__setattr__(self, "centre", float(self.centre))

    def check_reach(self, coords: Shaped[Tensor, "*batch n 1"]) -> None:
        """Refuses coordinates at which a factor would overflow, where values can be seen."""
        power = (coords.double() - self.centre) / self.scale_base
        if torch.compiler.is_compiling() or coords.is_meta:
            return
        if ((power.abs() > XPOS_REACH) & power.isfinite()).any():
            raise ValueError(
                f"xPos overflows where |coord - centre| / scale_base is above {XPOS_REACH}; got coords up to "
                f"{coords[coords.isfinite()].abs().max().item()} with scale_base {self.scale_base} and centre "
                f"{self.centre}: give a larger scale_base or a centre amid the coordinates"
            )

    def scale(self, coords: Shaped[Tensor, "*batch n 1"], num_pairs: int) -> Float[Tensor, "*batch 1 n p"]:
        """The factor of each token and pair; NaN where it would overflow."""
        power = (coords.double() - self.centre).unsqueeze(-3) / self.scale_base
        width = 2 * num_pairs
        logs = [math.log((2 * i + 0.4 * width) / (1.4 * width)) for i in range(num_pairs)]
        power = power.masked_fill(power.abs() > XPOS_REACH, torch.nan)
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
        check_heads(num_heads, num_kv_heads)
        width, name = (head_dim, "head_dim") if rotary_dim is None else (rotary_dim, "rotary_dim")
        check_positive(name, width)
        if width > head_dim:
            raise ValueError(f"rotary_dim ({rotary_dim}) must be at most head_dim ({head_dim})")
        if not isinstance(spectrum, Recipe | Learned | Mixed | None):
            raise TypeError(f"spectrum must be Axial, Sections, Shared, Given, Learned or Mixed, got {spectrum!r}")
        if not isinstance(xpos, XPos | None):
            raise TypeError(f"xpos must be an XPos, got {xpos!r}")
        if xpos is not None and axes != 1:
            raise ValueError(f"xpos is for one axis, got axes={axes}")
        num_groups = num_kv_heads or num_heads
        if rotary_heads is not None:
            check_int64("rotary_heads", rotary_heads)
        if rotary_heads is not None and not (num_groups and 0 <= rotary_heads <= num_groups):
            raise ValueError(f"rotary_heads ({rotary_heads}) must be from 0 to the number of heads ({num_groups})")
        self.head_dim, self.axes, self.base, self.rotary_dim = head_dim, axes, base, width
        self.layout: Layout = layout
        self.spectrum, self.xpos = spectrum, xpos
        self.num_heads, self.num_kv_heads, self.rotary_heads = num_heads, num_kv_heads, rotary_heads

        start = spectrum.start if isinstance(spectrum, Learned) else spectrum
        self._unscaled = (start if isinstance(start, Recipe) else Axial()).spectrum(width, axes, base, name)
        if len(self._unscaled.heads) not in (1, num_groups):
            raise ValueError(f"the spectrum is for {len(self._unscaled.heads)} heads, but there are {num_groups}")
        if self.is_learned:
            self.freqs = nn.Parameter(self._draw())
        self._set_scaling(scaling)

    def with_scaling(self, scaling: Scaling | Sequence[Scaling | None] | None) -> "RoPE":
        """The same encoding with this scaling in the place of its own; it shares learned frequencies."""
        with torch.device("meta"):  # draws no random numbers
            rope = RoPE(
                self.head_dim,
                axes=self.axes,
                base=self.base,
                spectrum=self.spectrum,
                rotary_dim=self.rotary_dim,
                layout=self.layout,
                scaling=scaling,
                xpos=self.xpos,
                num_heads=self.num_heads,
                num_kv_heads=self.num_kv_heads,
                rotary_heads=self.rotary_heads,
            )
        if self.is_learned:
            rope.freqs = self.freqs
        return rope.train(self.training)

    @property
    def is_learned(self) -> bool:
        """Whether frequencies are parameters."""
        return isinstance(self.spectrum, Learned | Mixed)

    def reset_parameters(self) -> None:
        """Sets learned frequencies to where they start, drawn anew if they are mixed."""
        if self.is_learned:
            with torch.no_grad():
                self.freqs.copy_(self._draw())

    def forward(
        self, coords: Shaped[Tensor, "*batch n a"], *, length: int | Int[Tensor, "*rows"] | None = None
    ) -> Rotation:
        check_coords(coords, self.axes, owner="RoPE(axes={axes})")
        check_length(length)
        cos, sin = self._learned_cos_sin(coords) if self.is_learned else self._turns.cos_sin(coords, length)
        rotation = Rotation(cos, sin, self.layout)
        if self._turns.factors is not None:
            factor = torch.tensor(self._turns.factors, dtype=torch.float32, device=coords.device)[:, None]
            rotation = rotation._replace(cos=cos * factor, sin=sin * factor, factor=factor)
        if self.xpos is not None:
            self.xpos.check_reach(coords)
            scale, origin = (self.xpos.scale(where, cos.shape[-1]) for where in (coords, coords.new_zeros(1, 1)))
            rotation = rotation._replace(scale=scale, origin_scale=origin)
        return rotation if self.rotary_heads is None else self._some_heads(rotation)

    def _some_heads(self, rotation: Rotation) -> Rotation:
        """The rotation of the first heads; the others stand still."""
        num_groups, rotary_heads = self.num_kv_heads or self.num_heads or 1, self.rotary_heads or 0
        turning = (torch.arange(num_groups, device=rotation.cos.device) < rotary_heads)[:, None, None]
        still = {"cos": 1.0, "sin": 0.0, "scale": 1.0, "factor": 1.0, "origin_scale": 1.0}
        parts = {name: (getattr(rotation, name), value) for name, value in still.items()}
        return rotation._replace(
            **{
                name: torch.where(turning, part, 0 * part + value)
                for name, (part, value) in parts.items()
                if part is not None
            }
        )

    def _draw(self) -> Float[Tensor, "h p"] | Float[Tensor, "h a p"]:
        num_groups = self.num_kv_heads or self.num_heads
        if isinstance(self.spectrum, Learned):
            return self.spectrum.draw(self._unscaled, num_groups)
        if num_groups is None:
            raise ValueError("a mixed spectrum has frequencies for each head: num_heads must be given")
        return Mixed().draw(num_groups, self.axes, self.rotary_dim, self.base)

    def _set_scaling(self, scaling: Scaling | Sequence[Scaling | None] | None) -> None:
        if isinstance(scaling, str):
            raise TypeError(f"scaling must be made of scalings of mmpos.scaling, got {scaling!r}")
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
        self._shrink = tuple(each.factor if isinstance(each, PositionInterpolation) else 1.0 for each in scalings)

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
