"""A transformer for sequences of tokens, which predicts the next one or classifies rows."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from ..arguments import check_count
from ..coords import padded_coords
from ..encodings import HeadScale, LogScale
from ..factory import Slot
from ..masks import AttentionMask, causal, documents, padding, window
from ..masks.sight import serves_any_size
from .blocks import LAYER_NORM, check_blocks, make_blocks, no_weight_decay_names, share_weights
from .cache import Cache
from .stack import SCALINGS, StackEncodings

EXTENSIONS = ("extend", *SCALINGS, "log_scale", "head_scale")
LAYER_OPTIONS = ("rotary", "bias", "scale", "window")


class TextTransformer(nn.Module):
    """Predicts the next token at every place, or the class of a row: a decoder language model or an encoder.

    Coordinates are made from the tokens at hand, so any length works, as far as the encodings reach. Embeddings are
    multiplied by ``sqrt(dim)``, which makes them as large as what an additive encoding gives.

    Args:
        num_tokens: Size of the vocabulary.
        dim: Channels of a token.
        depth: Number of blocks.
        num_heads: Heads per block.
        num_classes: Number of classes of a row, predicted from the mean over its tokens, each of which sees all others.
            By default the next token is predicted, and a token sees itself and those before it.
        length: Positions of a learned table, where there is one.
        window: Tokens that a token sees, itself and those before it (and as many after it in an encoder); all if None.
        separator: Token that begins a document; tokens of different documents of a row do not see each other, and
            positions start from 0 in each. None if a row is one document.
        drop_path: Probability that a sample skips a branch in training, in the last block; it grows linearly to that.
        block: Further arguments of the blocks, such as ``{"mlp": "swiglu", "num_kv_heads": 2}``; see `Block`.
        norm_layer: Makes a normalisation of so many channels.
        layers: A pattern of layers that repeats over the depth; each entry says where its layers differ, of ``rotary``,
            ``bias``, ``scale`` and ``window``: ``[{"window": 64}, {"window": 64}, {"rotary": None}]``.
        additive: Slot of what is added to the tokens.
        rotary: Slot of what rotates queries and keys.
        bias: Slot of what is added to the logits.
        scale: Slot of what multiplies the logits.

    Raises:
        ValueError: If the heads do not divide ``dim``, a slot cannot be built, or ``layers`` has an unknown name.

    Reference:
        Vaswani et al., Attention is all you need, 2017, sec. 3.4, for the size of embeddings.
        https://arxiv.org/abs/1706.03762

    Example:
        >>> decoder = TextTransformer(num_tokens=256, dim=32, depth=2, num_heads=4, rotary={"name": "RoPE"})
        >>> decoder(torch.randint(256, (2, 7))).shape
        torch.Size([2, 7, 256])
    """

    def __init__(
        self,
        num_tokens: int = 256,
        dim: int = 128,
        depth: int = 4,
        num_heads: int = 4,
        *,
        num_classes: int | None = None,
        length: int | None = None,
        window: int | None = None,
        separator: int | None = None,
        drop_path: float = 0.0,
        block: Mapping[str, Any] | None = None,
        norm_layer: Callable[[int], nn.Module] = LAYER_NORM,
        layers: Sequence[Mapping[str, Any]] | None = None,
        additive: Slot = None,
        rotary: Slot = None,
        bias: Slot = None,
        scale: Slot = None,
    ):
        super().__init__()
        options = {"norm_layer": norm_layer, **(block or {})}
        check_blocks(dim, depth, num_heads, drop_path, options)
        check_count("num_tokens", num_tokens, 1)
        pattern = [dict(entry) for entry in layers or [{}]]
        for name in (name for entry in pattern for name in entry):
            if name not in LAYER_OPTIONS:
                raise ValueError(f"layers may differ in {', '.join(LAYER_OPTIONS)}, got {name!r}")
        self.num_tokens, self.num_classes, self.separator = num_tokens, num_classes, separator
        self.length, self.num_heads = length, num_heads
        self.windows = [pattern[layer % len(pattern)].get("window", window) for layer in range(depth)]
        self.embed = nn.Embedding(num_tokens, dim)
        self.encodings = StackEncodings(
            depth,
            dim=dim,
            num_heads=num_heads,
            num_kv_heads=options.get("num_kv_heads"),
            head_dim=options.get("head_dim"),
            size=None if length is None else (length,),
            additive=additive,
            rotary=rotary,
            bias=bias,
            scale=scale,
            layers=[{name: slot for name, slot in entry.items() if name != "window"} for entry in pattern],
        )
        self.blocks = make_blocks(dim, depth, num_heads, drop_path, options)
        self.norm = norm_layer(dim)
        self.head = nn.Linear(dim, num_tokens if num_classes is None else num_classes, bias=num_classes is not None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the embedding anew, which is the head's too unless that is for classes; the other parts draw theirs."""
        if self.num_classes is None:
            self.head.weight = self.embed.weight
        nn.init.normal_(self.embed.weight, std=0.02)

    def no_weight_decay(self) -> set[str]:
        """Names of parameters that an optimiser should not decay."""
        return no_weight_decay_names(self) | {"embed.weight"}

    def at_length(self, length: int, how: str = "extend", *, trained: int | None = None) -> "TextTransformer":
        """The same model, with the same weights, for longer rows. A learned table is resized.

        Args:
            length: Tokens of a row.
            how: "extend" leaves encodings as they are; "interpolate", "ntk" and "yarn" scale rotary ones by the ratio
                of the lengths. "log_scale" sharpens attention with `LogScale` past the trained length; "head_scale"
                gives every head of every layer a factor of 1, a `HeadScale`, which is to be tuned.
            trained: Tokens of a row in training; the positions of a learned table if None.

        Raises:
            ValueError: If ``how`` is unknown, the model has no rotary encoding that takes the scaling or has a logit
                scale already, or the trained length is not known.
        """
        if how not in EXTENSIONS:
            raise ValueError(f"how must be one of {', '.join(EXTENSIONS)}, got {how!r}")
        trained = self.length if trained is None else trained
        model = share_weights(self)
        model.encodings.resize(length)
        model.length = None if self.length is None else length
        if how == "head_scale":
            device = self.embed.weight.device
            model.encodings.temper([HeadScale(self.num_heads).to(device) for _ in self.blocks])
        elif how != "extend":
            if trained is None:
                raise ValueError(f"how={how!r} needs the trained length")
            if how == "log_scale":
                model.encodings.temper([LogScale(trained)])
            else:
                model.encodings.extend(how, [trained], [length])
        return model

    def forward(
        self,
        tokens: Int[Tensor, "b n"],
        *,
        coords: Shaped[Tensor, "*b n 1"] | None = None,
        real: Bool[Tensor, "b n"] | None = None,
        length: int | Int[Tensor, " b"] | None = None,
        cache: Cache | None = None,
    ) -> Float[Tensor, "b n tokens"] | Float[Tensor, "b classes"]:
        """Logits of the next token at every place, or of the classes; arguments as those of `forward_features`."""
        x = self.forward_features(tokens, coords=coords, real=real, length=length, cache=cache)
        if self.num_classes is None:
            return self.head(x)
        weights = torch.ones_like(tokens, dtype=x.dtype) if real is None else real.to(x.dtype)
        return self.head((x * weights[..., None]).sum(1) / weights.sum(1, keepdim=True).clamp(min=1))

    def forward_features(
        self,
        tokens: Int[Tensor, "b n"],
        *,
        coords: Shaped[Tensor, "*b n 1"] | None = None,
        real: Bool[Tensor, "b n"] | None = None,
        length: int | Int[Tensor, " b"] | None = None,
        cache: Cache | None = None,
    ) -> Float[Tensor, "b n dim"]:
        """The tokens behind the last block and the norm.

        Args:
            tokens: Numbers of tokens.
            coords: Their positions; counted from 0 in every document, without pads, unless given.
            real: False where a token is a pad; a row of pads and tokens is one document.
            length: What encodings that depend on the length take as such.
            cache: Keys and values of earlier tokens, which these are added to.
        """
        document = None if self.separator is None or real is not None else (tokens == self.separator).cumsum(-1)
        if cache is not None:
            if coords is not None:
                raise ValueError("with a cache positions are counted on: coords must be None")
            real = torch.ones_like(tokens, dtype=torch.bool) if real is None else real
            coords, k_coords, k_real = cache.extend(real)
            document = None  # a row is one prompt
        else:
            coords = self.count(tokens, real) if coords is None else coords
            k_coords, k_real = None, real
        x = self.encodings.add(self.embed(tokens) * self.embed.embedding_dim**0.5, coords, length=length)
        rotated = cache is None or not cache.streams
        layers = self.encodings(coords, k_coords=k_coords, is_rotated=rotated, length=length)
        masks = {size: self._mask(size, document, k_real) for size in dict.fromkeys(self.windows)}
        for layer, (block, encodings) in enumerate(zip(self.blocks, layers, strict=True)):
            x = block(
                x,
                encodings,
                coords=coords,
                k_coords=k_coords,
                mask=masks[self.windows[layer]],
                cache=None if cache is None else cache.layers[layer],
            )
        if cache is not None:
            cache.trim()
        return self.norm(x)

    def count(self, tokens: Int[Tensor, "b n"], real: Bool[Tensor, "b n"] | None = None) -> Int[Tensor, "b n 1"]:
        """Positions from 0 in every document of a row, or of the real tokens of every row."""
        if self.separator is None or real is not None:
            return padded_coords(torch.ones_like(tokens, dtype=torch.bool) if real is None else real)
        place = torch.arange(tokens.shape[-1], device=tokens.device).expand_as(tokens)
        start = place.where(tokens == self.separator, 0)
        if serves_any_size():  # ONNX has no running maximum
            start = start[..., None, :].where(place[..., None, :] <= place[..., :, None], 0).amax(-1)
        else:
            start = start.cummax(-1).values
        return (place - start)[..., None]

    def _mask(self, size: int | None, document: Tensor | None, real: Tensor | None) -> AttentionMask | None:
        conditions = []
        if self.num_classes is None:
            conditions.append(causal())
        if size is not None:
            conditions.append(window(size, two_sided=self.num_classes is not None))
        if document is not None:
            conditions.append(documents(document))
        if real is not None:
            conditions.append(padding(real))
        mask = None
        for condition in conditions:
            mask = condition if mask is None else mask & condition
        return mask
