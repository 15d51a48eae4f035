"""The four ways a transformer takes position in: it adds to tokens, rotates q and k, biases logits or scales them."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, Self

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from ..arguments import fits
from .checks import check_layout
from .turn import Layout, turn

Role = Literal["query", "key"]
# xPos' factor of the first pair, whose s_i is 0.4 / 1.4, six scale_base away from the centre.
HALF_REACH = 3.5**6.001

# Names under which others save what a fixed encoding computes; what ours learn (freqs, slopes) is not among them.
FIXED_TENSORS = frozenset({"pe", "pos_embed", "inv_freq", "bands", "periods", "cos_cached", "sin_cached", "alibi"})


class Encoding(nn.Module, ABC):
    """What the four interfaces have in common."""

    axes: int
    needs_cells: bool = False  # whether coordinates must be cells of a grid, as a table needs them

    def no_weight_decay(self) -> set[str]:
        """Names of parameters that an optimiser should not decay: all, unless an encoding says otherwise."""
        return {name for name, _ in self.named_parameters()}

    def resize(self, *size: int) -> Self:
        """The encoding for a grid of another size: a new module where it learns a size, itself otherwise."""
        return self

    def _load_from_state_dict(
        self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
    ):
        """An encoding that learns nothing ignores, with a notice, fixed tensors that another implementation saved."""
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
        fixed = FIXED_TENSORS if next(self.parameters(), None) is None else frozenset()
        names = sorted(name for name in fixed if prefix + name in unexpected_keys)
        for name in names:
            unexpected_keys.remove(prefix + name)
        if names:  # without the prefix, so that many layers give one notice
            warnings.warn(f"{type(self).__name__} computes {', '.join(names)} and ignored what is saved", stacklevel=2)


class AdditiveEncoding(Encoding):
    """Adds to tokens: coordinates ``(..., n, a)`` become vectors ``(..., n, dim)``."""

    dim: int

    @abstractmethod
    def forward(
        self, coords: Shaped[Tensor, "*batch n a"], *, length: int | Int[Tensor, "*rows"] | None = None
    ) -> Float[Tensor, "*batch n dim"]:
        """Encodes coordinates; ``length`` matters only to encodings that depend on it."""


class RotaryEncoding(Encoding):
    """Rotates queries and keys: coordinates ``(..., n, a)`` become a `Rotation`."""

    @abstractmethod
    def forward(
        self, coords: Shaped[Tensor, "*batch n a"], *, length: int | Int[Tensor, "*rows"] | None = None
    ) -> "Rotation":
        """The rotation of tokens at these coordinates; ``length`` matters only to encodings that depend on it."""


class AttentionBias(Encoding):
    """Adds to logits: coordinates of queries and keys become a bias ``(..., h, q, k)``.

    ``needs`` names what else the bias reads, of "query", "key" and "tokens" (those of the queries); `attention` hands
    over just that. With ``after_softmax`` the bias is added to the attention weights instead, and masked as they are.
    Beside `forward` a bias may offer lowerings that spare the ``(q, k)`` tensor and must agree with it: override
    `score`, for fused kernels, or `factors`, for a bias that is an inner product.
    """

    needs: frozenset[str] = frozenset()
    after_softmax: bool = False
    rank: int | None = None  # channels that `factors` would have, where that is known without making them

    @abstractmethod
    def forward(
        self,
        q_coords: Shaped[Tensor, "*batch q a"],
        k_coords: Shaped[Tensor, "*batch k a"],
        *,
        query: Float[Tensor, "*rows h q d"] | None = None,
        key: Float[Tensor, "*rows g k d"] | None = None,
        tokens: Float[Tensor, "*rows q c"] | None = None,
    ) -> Float[Tensor, "*out h q k"]:
        """The bias in float32; gradients flow to learned parts and to float coordinates."""

    def score(
        self,
        head: Int[Tensor, ""],
        q_coord: Shaped[Tensor, " a"] | Sequence[Shaped[Tensor, ""]],
        k_coord: Shaped[Tensor, " a"] | Sequence[Shaped[Tensor, ""]],
    ) -> Float[Tensor, ""]:
        """One entry of the bias; kernels hand coordinates over one number at a time."""
        raise NotImplementedError(f"{type(self).__name__} has no score lowering")

    def factors(
        self,
        q_coords: Shaped[Tensor, "*batch q a"],
        k_coords: Shaped[Tensor, "*batch k a"],
        *,
        ordered: bool = False,
        query: Float[Tensor, "*rows h q d"] | None = None,
        key: Float[Tensor, "*rows g k d"] | None = None,
        tokens: Float[Tensor, "*rows q c"] | None = None,
    ) -> tuple[Float[Tensor, "*outq #h q r"], Float[Tensor, "*outk #h k r"]] | None:
        """Two tensors whose inner product over ``r`` is the bias, up to a number of each query's own.

        Such a number does not change a softmax. ``ordered`` says that no key which a query attends to lies past it on
        any axis. None where the bias has no such form.
        """
        return None

    def prefix_bias(self) -> Float[Tensor, "3 h"] | None:
        """Bias of prefix queries on tokens, of queries on prefix tokens, of prefix tokens on each other; None is 0."""
        return None


class LogitScale(Encoding):
    """Multiplies the logits of each query: coordinates ``(..., q, a)`` become factors ``(..., h, q)``."""

    @abstractmethod
    def forward(
        self, q_coords: Shaped[Tensor, "*batch q a"], *, visible: Int[Tensor, "*rows q"] | None = None
    ) -> Float[Tensor, "*out #h q"]:
        """The factors; ``visible`` is the number of keys that each query may attend to."""


class Rotation(NamedTuple):
    """Turns the channel pairs of queries and keys by the angles whose cosine and sine it holds.

    The first ``2 p`` channels turn, the others pass through::

        layout "half":         pair i is channels (i, i + p), as in Llama
        layout "interleaved":  pair i is channels (2 i, 2 i + 1), as in RoFormer

    Args:
        cos: One entry per token and pair; the head axis is 1, ``num_heads`` or ``num_kv_heads``.
        sin: As ``cos``.
        layout: Which channels pair up.
        scale: xPos' factor per token and pair; multiplies queries and divides keys.
        factor: The attention factor of each pair, which ``cos`` and ``sin`` contain already.
        origin_scale: The scale at coordinate 0, where that is not 1.

    Reference:
        Su et al., RoFormer, 2021, sec. 3.4. https://arxiv.org/abs/2104.09864
    """

    cos: Float[Tensor, "*batch #h n p"]
    sin: Float[Tensor, "*batch #h n p"]
    layout: Layout = "half"
    scale: Float[Tensor, "*batch #h n p"] | None = None
    factor: Float[Tensor, "#h 1 p"] | None = None
    origin_scale: Float[Tensor, "#h 1 p"] | None = None

    def apply(self, x: Float[Tensor, "*rows h n d"], role: Role | None = None) -> Float[Tensor, "*rows h n d"]:
        """Rotates ``x`` in float32 (float64 if ``x`` is) and returns it in its own dtype, as a new tensor.

        Args:
            x: Queries or keys.
            role: Which of the two they are; needed only when ``scale`` is set.

        Raises:
            ValueError: If tokens, heads or channels of ``x`` do not fit the rotation, or the role is missing.
            TypeError: If ``x`` is not real floating point.
        """
        self._check(x, role)
        cos, sin = self._parts(role)
        groups, heads = cos.shape[-3], x.shape[-3]
        if groups in (1, heads):
            return turn(x, cos, sin, self.layout)
        # Key-value groups: one axis more, for the query heads of each.
        grouped = x.unflatten(-3, (groups, heads // groups))
        return turn(grouped, cos.unsqueeze(-3), sin.unsqueeze(-3), self.layout).flatten(-4, -3)

    def with_prefix(self, num_prefix_tokens: int) -> "Rotation":
        """The rotation of as many tokens more in front, each turned as if at coordinate 0."""
        if isinstance(num_prefix_tokens, bool) or not isinstance(num_prefix_tokens, int):
            raise TypeError(f"num_prefix_tokens must be an integer, got {num_prefix_tokens!r}")
        if num_prefix_tokens < 0:
            raise ValueError(f"num_prefix_tokens must not be negative, got {num_prefix_tokens}")
        if not num_prefix_tokens:
            return self

        def extend(part: Tensor | None, value: float | Tensor) -> Tensor | None:
            if part is None:
                return None
            prefix = part.new_zeros(*part.shape[:-2], num_prefix_tokens, part.shape[-1]) + value
            return torch.cat([prefix, part], dim=-2)

        return self._at_origin(extend)

    def where(self, positioned: Bool[Tensor, "*batch n"]) -> "Rotation":
        """The rotation in which tokens without a position, False in ``positioned``, turn as at coordinate 0."""
        if positioned.dtype != torch.bool:
            raise TypeError(f"positioned must be boolean, got {positioned.dtype}")
        if positioned.shape[-1] != self.cos.shape[-2]:
            raise ValueError(f"positioned has {positioned.shape[-1]} tokens but the rotation has {self.cos.shape[-2]}")
        chosen = positioned[..., None, :, None]
        return self._at_origin(lambda part, value: None if part is None else torch.where(chosen, part, value))

    def inverse(self) -> "Rotation":
        """The rotation that turns back: ``rotation.inverse().apply(rotation.apply(x))`` is ``x``."""
        scale, origin_scale = (None if part is None else part.reciprocal() for part in (self.scale, self.origin_scale))
        back = self._replace(sin=-self.sin, scale=scale, origin_scale=origin_scale)
        if self.factor is None:
            return back
        square = self.factor.square()
        return back._replace(cos=back.cos / square, sin=back.sin / square, factor=self.factor.reciprocal())

    def without_factor(self) -> "Rotation":
        """The same turn without what is the same at all coordinates: what moves cached keys, which have that already.

        ``rope(new - old).without_factor().apply(k, "key")`` are the keys ``k`` of ``old`` coordinates at ``new`` ones.
        """
        moved = self
        if self.factor is not None:
            moved = moved._replace(cos=self.cos / self.factor, sin=self.sin / self.factor, factor=None)
        if self.scale is not None and self.origin_scale is not None:
            moved = moved._replace(scale=self.scale / self.origin_scale, origin_scale=None)
        return moved

    def _at_origin(self, put: Callable[[Tensor | None, float | Tensor], Tensor | None]) -> "Rotation":
        """The rotation with the turn of coordinate 0 put into each part."""
        cos, sin = put(self.cos, 1.0 if self.factor is None else self.factor), put(self.sin, 0.0)
        assert cos is not None
        assert sin is not None
        return self._replace(
            cos=cos, sin=sin, scale=put(self.scale, 1.0 if self.origin_scale is None else self.origin_scale)
        )

    def _parts(self, role: Role | None) -> tuple[Tensor, Tensor]:
        if self.scale is None:
            return self.cos, self.sin
        scale = self.scale if role == "query" else self.scale.reciprocal()
        return self.cos * scale, self.sin * scale

    def _check(self, x: Tensor, role: str | None) -> None:
        heads, tokens, pairs = self.cos.shape[-3:]
        if not x.is_floating_point():
            raise TypeError(f"x must be real floating point, got {x.dtype}")
        if x.ndim < 3:
            raise ValueError(f"x must be (..., h, n, d), got shape {tuple(x.shape)}")
        if x.shape[-2] != tokens:
            more = x.shape[-2] - tokens
            hint = f"; prefix tokens? use rotation.with_prefix({more})" if more > 0 else ""
            raise ValueError(f"x has {x.shape[-2]} tokens but the rotation has {tokens}{hint}")
        if x.shape[-1] < 2 * pairs:
            raise ValueError(f"x has {x.shape[-1]} channels per head but the rotation turns {2 * pairs}")
        if x.shape[-3] % heads:
            raise ValueError(f"x has {x.shape[-3]} heads, which the rotation's {heads} do not divide")
        if not fits(self.cos.shape[:-3], x.shape[:-3]):
            raise ValueError(f"x has batch shape {tuple(x.shape[:-3])} but the rotation {tuple(self.cos.shape[:-3])}")
        check_layout(self.layout)
        if role not in (None, "query", "key"):
            raise ValueError(f"role must be 'query' or 'key', got {role!r}")
        if self.scale is not None and role is None:
            raise ValueError("a rotation with a scale (xPos) needs apply(x, role='query') or role='key'")
        if self.scale is not None and x.dtype == torch.float16:
            self._check_half_reach(self.scale)

    @staticmethod
    def _check_half_reach(scale: Tensor) -> None:
        if torch.compiler.is_compiling() or scale.is_meta:
            return
        if ((scale > HALF_REACH) | (scale < 1 / HALF_REACH)).any():
            raise ValueError(
                "xPos overflows in float16 where |coord - centre| / scale_base is above 6: use bfloat16, a larger "
                "scale_base or a centre amid the coordinates"
            )
