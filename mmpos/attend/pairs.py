"""Biases of pairs of queries and keys, which are asked for a block of queries at a time."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Shaped
from torch import Tensor

from ..arguments import fits
from ..encodings import AttentionBias
from ..masks import Span


class CoordinateBias(NamedTuple):
    """An `AttentionBias` of some queries and all keys.

    Args:
        module: What evaluates it.
        q_coords: Coordinates of the queries, without prefix tokens.
        k_coords: Coordinates of the keys, without prefix tokens.
        of_queries: What the module reads of queries, "query" and "tokens", without prefix tokens.
        of_keys: The same of keys, "key".
        q_prefix: How many of the first queries are prefix tokens.
        k_prefix: How many of the first keys are prefix tokens.
        rows: Batch and heads of the logits.
    """

    module: AttentionBias
    q_coords: Shaped[Tensor, "... m a"]
    k_coords: Shaped[Tensor, "... n a"]
    of_queries: Mapping[str, Tensor]
    of_keys: Mapping[str, Tensor]
    q_prefix: int
    k_prefix: int
    rows: tuple[int, int]

    @property
    def after_softmax(self) -> bool:
        """Whether it is added to the weights."""
        return self.module.after_softmax

    @property
    def copies(self) -> int:
        """How many numbers a pair of a query and a key has, over batch and heads."""
        batch, heads = self.rows
        alike = self.q_coords.ndim == self.k_coords.ndim == 2 and not self.module.needs
        return heads if alike else batch * heads

    @property
    def requires_grad(self) -> bool:
        """Whether it learns, or what it is computed from does."""
        inputs = (*self.module.parameters(), self.q_coords, self.k_coords, *self.of_queries.values())
        return any(part.requires_grad for part in (*inputs, *self.of_keys.values()))

    def split(self, sizes: Sequence[int]) -> "list[CoordinateBias]":
        """The bias of each block of so many queries."""
        prefixes, tokens = _share_prefix(sizes, self.q_prefix)
        coords = self.q_coords.split(tokens, dim=-2)
        content = {name: part.split(tokens, dim=-2) for name, part in self.of_queries.items()}
        return [
            self._replace(
                q_coords=coords[i], q_prefix=prefix, of_queries={name: parts[i] for name, parts in content.items()}
            )
            for i, prefix in enumerate(prefixes)
        ]

    def dense(self, keys: Span) -> Float[Tensor, "#b #h q k"]:
        """The bias of these queries and these keys."""
        prefix, start, stop = _without_prefix(keys, self.k_prefix)
        if self.q_coords.shape[-2] == 0 or start == stop:
            inner = self.q_coords.new_zeros(1, 1, self.q_coords.shape[-2], stop - start, dtype=torch.float32)
        else:
            of_keys = {name: _rows(part, start, stop) for name, part in self.of_keys.items()}
            inner = self.module(self.q_coords, _rows(self.k_coords, start, stop), **self.of_queries, **of_keys)
            check_fit("bias", inner, (*self.rows, self.q_coords.shape[-2], stop - start))
            inner = inner[(None,) * (4 - inner.ndim)]
        return add_prefix(inner, self.q_prefix, prefix, self.module.prefix_bias())


class TensorBias(NamedTuple):
    """A bias that is given for all pairs but those of prefix tokens, which it may leave out.

    Args:
        tensor: The bias.
        q_prefix: How many of the first queries it leaves out.
        k_prefix: How many of the first keys it leaves out.
    """

    tensor: Float[Tensor, "#b #h m n"]
    q_prefix: int
    k_prefix: int

    after_softmax = False

    @property
    def copies(self) -> int:
        """How many numbers a pair of a query and a key has, over batch and heads."""
        return self.tensor.shape[0] * self.tensor.shape[1]

    @property
    def requires_grad(self) -> bool:
        """Whether it learns."""
        return self.tensor.requires_grad

    def split(self, sizes: Sequence[int]) -> "list[TensorBias]":
        """The bias of each block of so many queries."""
        prefixes, tokens = _share_prefix(sizes, self.q_prefix)
        parts = self.tensor.split(tokens, dim=-2)
        return [TensorBias(part, prefix, self.k_prefix) for part, prefix in zip(parts, prefixes, strict=True)]

    def dense(self, keys: Span) -> Float[Tensor, "#b #h q k"]:
        """The bias of these queries and these keys."""
        prefix, start, stop = _without_prefix(keys, self.k_prefix)
        inner = self.tensor
        if (start, stop) != (0, inner.shape[-1]):
            inner = inner.narrow(-1, start, stop - start)
        return add_prefix(inner, self.q_prefix, prefix, None)


PairBias = CoordinateBias | TensorBias


def check_fit(name: str, part: Tensor, shape: tuple[int, ...]) -> None:
    """Refuses what does not broadcast to logits without enlarging them."""
    if not fits(part.shape, shape):
        raise ValueError(f"{name} must fit logits of shape {tuple(shape)}, got shape {tuple(part.shape)}")


def add_prefix(
    inner: Float[Tensor, "#b #h m n"], rows: int, columns: int, values: Float[Tensor, "3 h"] | None
) -> Float[Tensor, "#b #h q k"]:
    """A bias with rows and columns of prefix tokens put before it, zero unless values are given."""
    if not rows and not columns:
        return inner
    if values is None:
        return F.pad(inner, (columns, 0, rows, 0))
    batch, _, m, n = inner.shape
    heads = values.shape[-1]
    to_tokens, to_prefix, between = values.float()[:, None, :, None, None]
    below = [to_prefix.expand(batch, heads, m, columns), inner.expand(batch, heads, m, n)]
    above = [between.expand(batch, heads, rows, columns), to_tokens.expand(batch, heads, rows, n)]
    return torch.cat([torch.cat(above, -1), torch.cat(below, -1)], -2)


def _share_prefix(sizes: Sequence[int], prefix: int) -> tuple[list[int], list[int]]:
    """How many tokens of each block are prefix tokens, and how many are not."""
    prefixes, start = [], 0
    for size in sizes:
        prefixes.append(max(min(start + size, prefix) - start, 0))
        start += size
    return prefixes, [size - own for size, own in zip(sizes, prefixes, strict=True)]


def _without_prefix(keys: Span, prefix: int) -> tuple[int, int, int]:
    """How many of the keys are prefix tokens, and the range of the others, counted without them."""
    own = keys.extra + max(min(keys.stop, prefix) - keys.start, 0)
    return own, max(keys.start - prefix, 0), max(keys.stop - prefix, 0)


def _rows(part: Shaped[Tensor, "..."], start: int, stop: int) -> Shaped[Tensor, "..."]:
    return part if (start, stop) == (0, part.shape[-2]) else part.narrow(-2, start, stop - start)
