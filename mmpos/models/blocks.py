"""Transformer blocks, and the encodings of a stack of them.

Nothing here knows a modality: a model forms the coordinates of its tokens and hands them in.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
from timm.layers.drop import DropPath
from timm.layers.layer_scale import LayerScale
from timm.layers.mlp import Mlp
from torch import Tensor, nn

from ..attend import Attention
from ..encodings import AttentionBias, Encoding, LogitScale, RotaryEncoding, Rotation
from ..factory import Kind, Slot, build

LAYER_NORM = partial(nn.LayerNorm, eps=1e-6)
"""What timm's ViTs normalise with."""


AdditiveTo = Literal["tokens", "queries_keys"]


class LayerEncodings(NamedTuple):
    """What the attention of one layer is given; None is an empty slot."""

    rotation: Rotation | None = None
    bias: AttentionBias | Float[Tensor, "*batch h m m"] | None = None
    logit_scale: LogitScale | None = None
    additive: Float[Tensor, "*batch m dim"] | None = None  # for what queries and keys are made of


NO_ENCODINGS = LayerEncodings()


class StackEncodings(nn.Module):
    """The encodings of a stack of layers: each is built once and evaluated once per forward, for all layers.

    With ``per_layer: true`` in its spec a slot is built once for every layer instead, as learned rotations are unless
    ``per_layer: false`` stands there. A bias that reads content goes to the layers as a module, and so does a logit
    scale, which depends on what the mask of a layer lets through.

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
        length: int | Int[Tensor, "*rows"] | None = None,
    ) -> Float[Tensor, "b n dim"]:
        """The tokens with what is added to them. Prefix tokens have none: put them in front afterwards."""
        if self.additive is None or self.additive_to != "tokens":
            return x
        return x + self.additive(coords, length=length).to(x.dtype)

    def resize(self, *size: int) -> None:
        """Puts encodings for a grid of another size in the place of those that learn a size."""
        if self.additive is not None:
            self.additive = self.additive.resize(*size)
        for slot in (self.rotary, self.bias, self.scale):
            for number, encoding in enumerate(slot):
                assert isinstance(encoding, Encoding)
                slot[number] = encoding.resize(*size)

    def forward(
        self,
        coords: Shaped[Tensor, "*batch n a"],
        *,
        additive_coords: Shaped[Tensor, "*batch n a"] | None = None,
        num_prefix_tokens: int = 0,
        length: int | Int[Tensor, "*rows"] | None = None,
    ) -> list[LayerEncodings]:
        """What each layer is given for tokens at these coordinates, which leave out prefix tokens.

        Those turn as at coordinate 0 and have no bias. ``additive_coords`` are those of the additive encoding, where
        they differ, as cells of a table do from coordinates that are normalised.
        """
        rotations = [rope(coords, length=length).with_prefix(num_prefix_tokens) for rope in self.rotary]
        prefix = (num_prefix_tokens, 0, num_prefix_tokens, 0)
        biases = [bias if bias.needs else F.pad(bias(coords, coords), prefix) for bias in self.bias]
        added = None
        if self.additive is not None and self.additive_to == "queries_keys":
            places = coords if additive_coords is None else additive_coords
            added = F.pad(self.additive(places, length=length), (0, 0, num_prefix_tokens, 0))
        return [
            LayerEncodings(_pick(rotations, rotary), _pick(biases, bias), _pick(list(self.scale), scale), added)
            for rotary, bias, scale in self.layers
        ]


class Block(nn.Module):
    """Pre-norm transformer block: ``x + attn(norm1(x))``, then ``x + mlp(norm2(x))``.

    The encodings come in with the tokens, so the blocks of one model may differ in them. Names are timm's, whose
    weights load.

    Args:
        dim: Channels of a token.
        num_heads: Heads of queries.
        num_kv_heads: Heads of keys and values; as many as queries unless given.
        head_dim: Channels per head; ``dim // num_heads`` unless given.
        mlp_ratio: Hidden channels of the MLP over ``dim``.
        qkv_bias: Whether the projections of q, k and v have a bias.
        qk_norm: Whether queries and keys of each head are normalised.
        init_values: Start of a learned scale of each branch (LayerScale); none unless given.
        attn_drop: Probability that an attention weight is dropped in training.
        proj_drop: Probability that an output of a branch is dropped in training.
        drop_path: Probability that a sample skips a branch in training.
        norm_layer: Makes a normalisation of so many channels.

    Example:
        >>> Block(dim=48, num_heads=4)(torch.randn(2, 12, 48)).shape
        torch.Size([2, 12, 48])
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        mlp_ratio: float = 4.0,
        qkv_bias: bool = True,
        qk_norm: bool = False,
        init_values: float | None = None,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        drop_path: float = 0.0,
        norm_layer: Callable[[int], nn.Module] = LAYER_NORM,
    ):
        super().__init__()
        self.norm1 = norm_layer(dim)
        self.attn = Attention(
            dim,
            num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            qkv_bias=qkv_bias,
            qk_norm=norm_layer if qk_norm else None,
            attn_drop=attn_drop,
            proj_drop=proj_drop,
        )
        self.norm2 = norm_layer(dim)
        self.mlp = Mlp(dim, hidden_features=int(dim * mlp_ratio), drop=proj_drop)
        self.ls1, self.ls2 = (
            nn.Identity() if init_values is None else LayerScale(dim, init_values=init_values) for _ in range(2)
        )
        self.drop_path = DropPath(drop_path)

    def forward(
        self,
        x: Float[Tensor, "b n dim"],
        encodings: LayerEncodings = NO_ENCODINGS,
        *,
        coords: Shaped[Tensor, "*rows m a"] | None = None,
        num_prefix_tokens: int = 0,
        mask: Bool[Tensor, "*#rows #h n n"] | None = None,
        is_causal: bool = False,
    ) -> Float[Tensor, "b n dim"]:
        """Transforms ``x``; coordinates are for encodings that come as modules."""
        attended = self.attn(
            self.norm1(x),
            additive=encodings.additive,
            rotation=encodings.rotation,
            bias=encodings.bias,
            logit_scale=encodings.logit_scale,
            coords=coords,
            num_prefix_tokens=num_prefix_tokens,
            mask=mask,
            is_causal=is_causal,
        )
        x = x + self.drop_path(self.ls1(attended))
        return x + self.drop_path(self.ls2(self.mlp(self.norm2(x))))


def no_weight_decay_names(model: nn.Module) -> set[str]:
    """Names, seen from ``model``, of the parameters that its parts ask an optimiser not to decay."""
    names = set()
    for path, part in model.named_modules():
        if part is not model:
            names |= {f"{path}.{name}" for name in getattr(part, "no_weight_decay", set)()}
    return names


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
