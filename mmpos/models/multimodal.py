"""A decoder over text, pictures, films and sound that stand in one sequence."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from jaxtyping import Bool, Float, Int, Int64, Shaped
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from ..attend import LayerCache
from ..factory import Slot
from ..masks import AttentionMask, causal, padding
from ..multimodal import Placement, Text, Together, multimodal_coords
from ..multimodal.rules import find_rule
from .blocks import LAYER_NORM, check_blocks, make_blocks, no_weight_decay_names
from .mixed import CONTENTS, MixedRows, kind_of
from .stack import StackEncodings

Rule: TypeAlias = str | Mapping[str, Any]
"""Name of a rule, or a mapping with its ``name`` and its options."""

_outside: Any = torch.compiler.disable  # whose own type hides that of a method


class Place(NamedTuple):
    """Where the tokens of rows are, padded on the left so that all rows end together.

    Args:
        source: Number of each token among all there are: of text, then of patches, then of sound.
        coords: Coordinates (t, y, x).
        real: False where a place is a pad.
        grid: Number of the image or video that a token is of, from 0 in each row; -1 for all others.
    """

    source: Int64[Tensor, "b n"]
    coords: Shaped[Tensor, "b n 3"]
    real: Bool[Tensor, "b n"]
    grid: Int64[Tensor, "b n"]


class MultimodalTransformer(nn.Module):
    """Predicts the next token of text from all that stands before it: text, patches of pictures and films, sound.

    A rule of `multimodal_coords` says where tokens are, on the axes (t, y, x); encodings get these coordinates.

    Args:
        num_tokens: Size of the vocabulary of text.
        patch_width: Numbers of a patch of a picture or a frame; None without such.
        sound_width: Numbers of a frame of sound; None without such.
        dim: Channels of a token.
        depth: Number of blocks.
        num_heads: Heads per block.
        rule: Where tokens are: the name of a rule, or a mapping such as ``{"name": "aligned", "text_step": 0.1}``.
        two_way: Whether the tokens of an image or a video see each other both ways, as in PaliGemma; a token sees
            itself and those before it otherwise.
        drop_path: Probability that a sample skips a branch in training, in the last block; it grows linearly to that.
        block: Further arguments of the blocks; see `Block`.
        norm_layer: Makes a normalisation of so many channels.
        additive: Slot of what is added to the tokens.
        rotary: Slot of what rotates queries and keys.
        bias: Slot of what is added to the logits.
        scale: Slot of what multiplies the logits.

    Raises:
        ValueError: If the rule is unknown or has no such option, the heads do not divide ``dim``, or a slot cannot be
            built.

    Example:
        >>> rope = {"name": "RoPE", "axes": 3, "spectrum": {"name": "Sections", "sections": [1, 1, 2]}}
        >>> decoder = MultimodalTransformer(patch_width=16, dim=32, depth=2, rule="qwen2_vl", rotary=rope)
        >>> rows = MixedRows([[(Text(2), torch.tensor([72, 105])), (Image(2, 3), torch.randn(6, 16))]])
        >>> decoder(rows).shape
        torch.Size([1, 8, 256])

    Reference:
        Beyer et al., PaliGemma, 2024, sec. 3.2, for ``two_way``. https://arxiv.org/abs/2407.07726
    """

    def __init__(
        self,
        num_tokens: int = 256,
        patch_width: int | None = None,
        sound_width: int | None = None,
        dim: int = 128,
        depth: int = 4,
        num_heads: int = 4,
        *,
        rule: Rule = "aligned",
        two_way: bool = False,
        drop_path: float = 0.0,
        block: Mapping[str, Any] | None = None,
        norm_layer: Callable[[int], nn.Module] = LAYER_NORM,
        additive: Slot = None,
        rotary: Slot = None,
        bias: Slot = None,
        scale: Slot = None,
    ):
        super().__init__()
        options = {"norm_layer": norm_layer, **(block or {})}
        check_blocks(dim, depth, num_heads, drop_path, options)
        self.rule, self.rule_options = _read_rule(rule)
        self.num_tokens, self.two_way = num_tokens, two_way
        self.embed = nn.Embedding(num_tokens, dim)
        self.patch_embed = None if patch_width is None else nn.Linear(patch_width, dim)
        self.sound_embed = None if sound_width is None else nn.Linear(sound_width, dim)
        self.encodings = StackEncodings(
            depth,
            dim=dim,
            num_heads=num_heads,
            num_kv_heads=options.get("num_kv_heads"),
            head_dim=options.get("head_dim"),
            additive=additive,
            rotary=rotary,
            bias=bias,
            scale=scale,
        )
        self.blocks = make_blocks(dim, depth, num_heads, drop_path, options)
        self.norm = norm_layer(dim)
        self.head = nn.Linear(dim, num_tokens, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the embedding anew, which is the head's too; the other parts draw theirs."""
        self.head.weight = self.embed.weight
        nn.init.normal_(self.embed.weight, std=0.02)

    def no_weight_decay(self) -> set[str]:
        """Names of parameters that an optimiser should not decay."""
        return no_weight_decay_names(self) | {"embed.weight"}

    def forward(self, rows: MixedRows, *, last: int | None = None) -> Float[Tensor, "b m tokens"]:
        """Logits of the next token of text at every place; rows are padded on the left, so all end together.

        Args:
            rows: Segments and what stands in them.
            last: Number of places at the end that are asked for; all if None.
        """
        x = self.forward_features(rows)
        return self.head(x if last is None else x[:, -last:])

    def forward_features(self, rows: MixedRows) -> Float[Tensor, "b n dim"]:
        """The tokens behind the last block and the norm; rows are padded on the left."""
        place = self.place(rows)
        return self._run(self._embed(rows)[place.source], place.coords, self._mask(place))

    @torch.inference_mode()
    def answer(self, rows: MixedRows, max_new_tokens: int, *, stop: int | None = None) -> list[Int64[Tensor, " m"]]:
        """Goes on with all rows at once by the most likely token each, from a cache of keys and values.

        New tokens stand where the rule has text that follows the row.

        Args:
            rows: Segments and what stands in them.
            max_new_tokens: Most tokens that are added to each.
            stop: Token after which a row is not gone on with; it is kept.

        Raises:
            ValueError: If ``max_new_tokens`` is less than 1.
        """
        if max_new_tokens < 1:
            raise ValueError(f"max_new_tokens must be at least 1, got {max_new_tokens}")
        place = self.place(rows, more=max_new_tokens)
        caches = [LayerCache(is_rotated=True) for _ in self.blocks]
        keys, end = place.coords[:, :-max_new_tokens], place.real.shape[1] - max_new_tokens
        start = Place(place.source, keys, place.real[:, :end], place.grid[:, :end])
        x = self._run(self._embed(rows)[start.source], keys, self._mask(start), caches=caches)
        new, closed = torch.empty(len(rows), 0, dtype=torch.int64, device=x.device), None
        while True:
            token = self.head(x[:, -1]).argmax(-1, keepdim=True)
            new = torch.cat([new, token], dim=1)
            ended = token[:, 0] == (-1 if stop is None else stop)
            closed = ended if closed is None else closed | ended
            if new.shape[1] == max_new_tokens or closed.all():
                return [_until(row, stop) for row in new]
            seen = end + new.shape[1]
            coords, mask = place.coords[:, :seen], causal() & padding(place.real[:, :seen])
            x = self._run(self._embed_text(token), coords[:, -1:], mask, k_coords=coords, caches=caches)

    @_outside
    def place(self, rows: MixedRows, *, more: int = 0) -> Place:
        """Where the tokens of the rows are, and so many of text behind each, which have no source."""
        if not isinstance(rows, MixedRows):
            raise TypeError(f"rows must be MixedRows, got {type(rows).__name__}")
        device = self.embed.weight.device
        places = {row: place for place, row in enumerate(dict.fromkeys(map(tuple, rows.segments)))}
        which = torch.tensor([places[tuple(row)] for row in rows.segments])  # rows that are alike are placed once
        segments = [(*row, Text(more)) for row in places] if more else list(places)
        coords, real, _ = multimodal_coords(segments, self.rule, padding="left", device="cpu", **self.rule_options)
        found = [self._row(row) for row in places]
        kind, order, grid = (
            pad_sequence(list(part), batch_first=True, padding_value=-1, padding_side="left")[which]
            for part in zip(*found, strict=True)
        )
        counts = torch.stack([(kind == index).sum(1) for index in range(len(CONTENTS))], dim=1)
        before = counts.cumsum(0) - counts + (counts.sum(0).cumsum(0) - counts.sum(0))
        source = torch.where(kind < 0, 0, order + before.gather(1, kind.clamp_min(0)))
        return Place(source.to(device), coords[which].to(device), real[which].to(device), grid.to(device))

    def _row(self, row: Sequence[Any]) -> tuple[Int64[Tensor, " n"], Int64[Tensor, " n"], Int64[Tensor, " n"]]:
        """Of each token what stands there, its number among those of the kind in the row, and its grid."""
        counts = [0] * len(CONTENTS)
        tokens = [torch.empty(3, 0, dtype=torch.int64)]
        for number, segment in enumerate(row):
            parts = segment.segments if isinstance(segment, Together) else (segment,)
            own = []
            for part in parts:
                kind = CONTENTS.index(kind_of(part))
                keep = None if isinstance(part, Text) else part.keep
                order = torch.arange(part.size) if keep is None else keep.cumsum(0) - 1
                grid = number if kind_of(part) == "patches" else -1
                own.append(
                    torch.stack([torch.full_like(order, kind), order + counts[kind], torch.full_like(order, grid)])
                )
                counts[kind] += part.size if keep is None else int(keep.sum())
            joined = torch.cat(own, dim=1)
            keep = None if isinstance(segment, Text) else segment.keep
            if isinstance(segment, Together):  # a rule may have them stand by turns
                placed = find_rule(self.rule, self.rule_options)(segment, 0)
                if isinstance(placed, Placement) and placed.order is not None:
                    joined, keep = joined[:, placed.order], None if keep is None else keep[placed.order]
            tokens.append(joined if keep is None else joined[:, keep])
        kind, order, grid = torch.cat(tokens, dim=1)
        return kind, order, grid

    def _embed(self, rows: MixedRows) -> Float[Tensor, "all dim"]:
        """All tokens: of text, then of patches, then of sound."""
        x = [self._embed_text(rows.tokens)]
        for name, layer, content in (
            ("patch_width", self.patch_embed, rows.patches), ("sound_width", self.sound_embed, rows.sound),
        ):  # fmt: skip
            if not len(content):
                continue
            if layer is None or layer.in_features != content.shape[1]:
                width = None if layer is None else layer.in_features
                raise ValueError(f"{name} ({width}) must be {content.shape[1]}, as wide as what stands in the rows")
            x.append(layer(content.to(layer.weight.dtype)).to(x[0].dtype))
        return torch.cat(x)

    def _embed_text(self, tokens: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape dim"]:
        return self.embed(tokens) * self.embed.embedding_dim**0.5

    def _mask(self, place: Place) -> AttentionMask | Bool[Tensor, "b 1 n n"]:
        if not self.two_way:
            return causal() & padding(place.real)
        n = place.real.shape[1]
        before = torch.ones(n, n, dtype=torch.bool, device=place.real.device).tril()
        alike = (place.grid[:, :, None] == place.grid[:, None, :]) & (place.grid >= 0)[:, None, :]
        return ((before | alike) & place.real[:, None, :])[:, None]

    def _run(
        self,
        x: Float[Tensor, "b n dim"],
        coords: Shaped[Tensor, "b n 3"],
        mask: AttentionMask | Bool[Tensor, "b 1 n n"],
        *,
        k_coords: Shaped[Tensor, "b k 3"] | None = None,
        caches: Sequence[LayerCache] | None = None,
    ) -> Float[Tensor, "b n dim"]:
        x = self.encodings.add(x, coords)
        layers = self.encodings(coords, k_coords=k_coords)
        for number, (block, encodings) in enumerate(zip(self.blocks, layers, strict=True)):
            cache = None if caches is None else caches[number]
            x = block(x, encodings, coords=coords, k_coords=k_coords, mask=mask, cache=cache)
        return self.norm(x)


def _read_rule(rule: Rule) -> tuple[str, dict[str, Any]]:
    if isinstance(rule, str):
        name, options = rule, {}
    else:
        options = dict(rule)
        if "name" not in options:
            raise ValueError(f"rule must be a name or a mapping with one, got {rule!r}")
        name = options.pop("name")
    with torch.device("cpu"):  # a model may be made on the meta device, where a rule cannot count
        find_rule(name, options)(Text(1), 0)  # refuses what it does not know
    return name, options


def _until(row: Int64[Tensor, " m"], stop: int | None) -> Int64[Tensor, " end"]:
    ends = (row == stop).nonzero() if stop is not None else row.new_empty(0, 1)
    return row if not len(ends) else row[: int(ends[0, 0]) + 1]
