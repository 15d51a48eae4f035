"""The encodings of a stack of layers. Nothing here knows a modality: a model forms coordinates and hands them in."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from ..attend.choice import QUERIES
from ..attend.fused import KEPT
from ..encodings import AttentionBias, Encoding, LogitScale, RoPE, RotaryEncoding, Rotation
from ..factory import Kind, Slot, build
from ..masks.sight import serves_any_size
from ..scaling import NTK, PositionInterpolation, Scaling, YaRN

AdditiveTo = Literal["tokens", "queries_keys"]

SCALINGS: dict[str, Callable[[float, int], Scaling]] = {
    "interpolate": lambda ratio, side: PositionInterpolation(ratio),
    "ntk": lambda ratio, side: NTK(ratio),
    "yarn": lambda ratio, side: YaRN(ratio, train_length=side),
}
"""Scalings of a rotary encoding by the ratio of a new side to the old one."""


class LayerEncodings(NamedTuple):
    """What the attention of one layer is given; None is an empty slot."""

    rotation: Rotation | tuple[Rotation, Rotation] | None = None  # a pair: of queries, and of all keys in a cache
    bias: AttentionBias | Float[Tensor, "*batch h m k"] | None = None
    logit_scale: LogitScale | None = None
    additive: Float[Tensor, "*batch m dim"] | None = None  # for what queries and keys are made of


NO_ENCODINGS = LayerEncodings()


class StackEncodings(nn.Module):
    """The encodings of a stack of layers: each is built once and evaluated once per forward, for all layers.

    With ``per_layer: true`` in its spec a slot is built once for every layer instead, as learned rotations are unless
    ``per_layer: false`` stands there. A bias that reads content, or that has many numbers, goes to the layers as a
    module, and so does a logit scale, which depends on what the mask of a layer lets through.

    Args:
        depth: Number of layers.
        dim: Channels of a token.
        num_heads: Heads of queries.
        num_kv_heads: Heads of keys and values; as many unless given.
        head_dim: Channels per head; ``dim // num_heads`` unless given.
        size: Shape of the grid that a learned table covers.
        additive: Slot of what is added to the tokens.
        rotary: Slot of what rotates queries and keys.
        bias: Slot of what is added to the logits.
        scale: Slot of what multiplies the logits.
        additive_to: Where the additive encoding enters: "tokens" takes it once, before the first layer, by `add`;
            with "queries_keys" every layer adds it to what its queries and keys are made of, as DETR does.
        layers: Slots in which layers differ: a pattern that repeats over the depth, such as
            ``[{}, {}, {"rotary": None}]``. A slot that an entry leaves out is the common one.

    Raises:
        ValueError: If a spec does not fit its slot, ``per_layer`` is not true or false or stands in ``additive``, which
            is evaluated once, ``additive_to`` is unknown, or ``layers`` has another slot than the last three.

    Example:
        >>> rope, alibi = {"name": "RoPE", "axes": 2}, {"name": "ALiBi", "axes": 2}
        >>> encodings = StackEncodings(depth=3, dim=32, num_heads=2, rotary=rope, bias=alibi)
        >>> layers = encodings(grid_coords(height=4, width=5))
        >>> len(layers), layers[2].rotation.cos.shape, layers[2].bias.shape
        (3, torch.Size([1, 20, 8]), torch.Size([2, 20, 20]))
    """

    def __init__(
        self,
        depth: int,
        *,
        dim: int,
        num_heads: int,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        size: tuple[int, ...] | None = None,
        additive: Slot = None,
        rotary: Slot = None,
        bias: Slot = None,
        scale: Slot = None,
        additive_to: AdditiveTo = "tokens",
        layers: Sequence[Mapping[str, Slot]] | None = None,
    ):
        super().__init__()
        if isinstance(additive, dict) and "per_layer" in additive:
            raise ValueError("per_layer cannot stand in the additive slot, which is evaluated once for all layers")
        if additive_to not in get_args(AdditiveTo):
            raise ValueError(f"additive_to must be one of {', '.join(get_args(AdditiveTo))}, got {additive_to!r}")
        make = partial(build, dim=dim, num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, size=size)
        self.depth, self.additive_to = depth, additive_to
        self.additive = make(additive, kind="additive")
        pattern = layers or [{}]
        for slot in (slot for entry in pattern for slot in entry):
            if slot not in ("rotary", "bias", "scale"):
                raise ValueError(f"layers may differ in rotary, bias and scale, got {slot!r}")
        specs = {
            kind: [pattern[layer % len(pattern)].get(kind, common) for layer in range(depth)]
            for kind, common in (("rotary", rotary), ("bias", bias), ("scale", scale))
        }
        self.rotary, rotary_of = _make_layers(make, specs["rotary"], "rotary")
        self.bias, bias_of = _make_layers(make, specs["bias"], "bias")
        self.scale, scale_of = _make_layers(make, specs["scale"], "scale")
        self.layers = list(zip(rotary_of, bias_of, scale_of, strict=True))

    def add(
        self,
        x: Float[Tensor, "b n dim"],
        coords: Shaped[Tensor, "*batch n a"],
        *,
        cells: Int[Tensor, "*batch n a"] | None = None,
        length: int | Int[Tensor, "*rows"] | None = None,
    ) -> Float[Tensor, "b n dim"]:
        """The tokens with what is added to them. Prefix tokens have none: put them in front afterwards."""
        if self.additive is None or self.additive_to != "tokens":
            return x
        places = cells if self.additive.needs_cells and cells is not None else coords
        return x + self.additive(places, length=length).to(x.dtype)

    def resize(self, *size: int) -> None:
        """Puts encodings for a grid of another size in the place of those that learn a size."""
        if self.additive is not None:
            self.additive = self.additive.resize(*size)
        for slot in (self.rotary, self.bias, self.scale):
            for number, encoding in enumerate(slot):
                assert isinstance(encoding, Encoding)
                slot[number] = encoding.resize(*size)

    def extend(self, how: str, old: Sequence[int], new: Sequence[int]) -> None:
        """Scales every rotary encoding by the ratio of the sides of a grid, on each axis.

        Args:
            how: "interpolate", "ntk" or "yarn".
            old: Sides that the encodings were trained on.
            new: Sides that they are for.

        Raises:
            ValueError: If ``how`` is none of these, or there is no `RoPE`, or one that does not take the scaling.
        """
        if how not in SCALINGS:
            raise ValueError(f"how must be one of {', '.join(SCALINGS)}, got {how!r}")
        ropes = [rope for rope in self.rotary if isinstance(rope, RoPE)]
        if not ropes or len(ropes) != len(self.rotary):
            raise ValueError(
                f"how={how!r} scales a rotary encoding, but the rotary slot has {list(self.rotary) or 'none'}"
            )
        scalings = [None if b == a else SCALINGS[how](b / a, a) for a, b in zip(old, new, strict=True)]
        self.rotary = nn.ModuleList(rope.with_scaling(scalings) for rope in ropes)

    def temper(self, scales: Sequence[LogitScale]) -> None:
        """Gives every layer a logit scale, where none has one: the same if there is one, or one for each layer.

        Raises:
            ValueError: If a layer has a logit scale already.
        """
        if len(self.scale):
            raise ValueError(f"the scale slot has {list(self.scale)} already")
        self.scale = nn.ModuleList(scales)
        self.layers = [(rotary, bias, layer % len(scales)) for layer, (rotary, bias, _) in enumerate(self.layers)]

    def forward(
        self,
        coords: Shaped[Tensor, "*batch n a"],
        *,
        k_coords: Shaped[Tensor, "*batch k a"] | None = None,
        bias_coords: Shaped[Tensor, "*rows n c"] | None = None,
        is_rotated: bool = True,
        cells: Int[Tensor, "*batch n a"] | None = None,
        num_prefix_tokens: int = 0,
        length: int | Int[Tensor, "*rows"] | None = None,
    ) -> list[LayerEncodings]:
        """What each layer is given for tokens at these coordinates, which leave out prefix tokens.

        Those turn as at coordinate 0; a bias that comes as a tensor leaves them out.

        Args:
            coords: Coordinates of the tokens.
            k_coords: Coordinates of all keys, where there are more in a cache.
            bias_coords: Coordinates that the bias takes, where these are others, and there is no cache.
            is_rotated: Whether the keys in the cache are rotated; if not, all keys are given their rotation.
            cells: Cells of the tokens in their grid, for encodings that need these, where coordinates are others.
            num_prefix_tokens: Class and register tokens in front.
            length: What encodings that depend on the length take as such.
        """
        rotations: list[Any] = [rope(coords, length=length).with_prefix(num_prefix_tokens) for rope in self.rotary]
        if k_coords is not None and not is_rotated:
            keys = [rope(k_coords, length=length) for rope in self.rotary]
            rotations = list(zip(rotations, keys, strict=True))
        bias_coords = coords if bias_coords is None else bias_coords
        k_coords = bias_coords if k_coords is None else k_coords
        biases = []
        for bias in self.bias:
            assert isinstance(bias, AttentionBias)
            q, k = (cells, cells) if bias.needs_cells and cells is not None else (bias_coords, k_coords)
            biases.append(bias(q, k) if _is_kept(bias, q, k, num_prefix_tokens) else bias)
        added = None
        if self.additive is not None and self.additive_to == "queries_keys":
            places = cells if self.additive.needs_cells and cells is not None else coords
            added = F.pad(self.additive(places, length=length), (0, 0, num_prefix_tokens, 0))
        return [
            LayerEncodings(_pick(rotations, rotary), _pick(biases, bias), _pick(list(self.scale), scale), added)
            for rotary, bias, scale in self.layers
        ]


def _is_kept(bias: AttentionBias, q_coords: Tensor, k_coords: Tensor, num_prefix_tokens: int) -> bool:
    """Whether a bias is evaluated once for all layers: if it depends on nothing else and is small."""
    if bias.needs or bias.after_softmax or (num_prefix_tokens and bias.prefix_bias() is not None):
        return False
    if serves_any_size():
        return True
    if type(bias).factors is not AttentionBias.factors and q_coords.shape[-2] >= QUERIES:
        return False
    rows = math.prod(torch.broadcast_shapes(q_coords.shape[:-2], k_coords.shape[:-2]))
    return rows * getattr(bias, "num_heads", 1) * q_coords.shape[-2] * k_coords.shape[-2] <= KEPT


def _make_layers(
    make: Callable[..., Encoding | None], specs: Sequence[Slot], kind: Kind
) -> tuple[nn.ModuleList, list[int | None]]:
    """The modules of a slot, and the number of each layer's: None where it is empty, the same for equal specs."""
    modules, numbers = nn.ModuleList(), []
    shared: list[tuple[Slot, int]] = []
    for spec in specs:
        number = next((known for other, known in shared if other is spec or other == spec), None)
        if number is None and spec is not None:
            plain, per_layer = _without_per_layer(spec, kind)
            module = make(plain, kind=kind)
            if module is not None:
                modules.append(module)
                number = len(modules) - 1
                if not (_learns_rotation(module) and module is not spec if per_layer is None else per_layer):
                    shared.append((spec, number))
        numbers.append(number)
    return modules, numbers


def _without_per_layer(spec: Slot, kind: Kind) -> tuple[Slot, bool | None]:
    """The spec, and whether it says that every layer has a module of its own."""
    if not isinstance(spec, dict) or "per_layer" not in spec:
        return spec, None
    if not isinstance(spec["per_layer"], bool):
        raise ValueError(f"per_layer of the {kind} slot must be true or false, got {spec['per_layer']!r}")
    return {key: value for key, value in spec.items() if key != "per_layer"}, spec["per_layer"]


def _learns_rotation(encoding: nn.Module | None) -> bool:
    return isinstance(encoding, RotaryEncoding) and any(True for _ in encoding.parameters())


def _pick(results: Sequence[Any], number: int | None) -> Any:
    return None if number is None else results[number]
