"""What a mask says of some queries and keys."""

from collections.abc import Callable
from functools import reduce
from math import prod
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

# Pairs that are written out at a time where visible keys are counted.
PAIRS_AT_ONCE = 2**22


class Span(NamedTuple):
    """Keys ``start`` to ``stop``, and before them the first ``extra`` ones."""

    extra: int
    start: int
    stop: int

    def take(self, x: Shaped[Tensor, "..."], dim: int) -> Shaped[Tensor, "..."]:
        """What ``x`` holds for these keys."""
        if self.start == 0 and self.stop == x.shape[dim]:
            return x
        chosen = x.narrow(dim, self.start, self.stop - self.start)
        return torch.cat([x.narrow(dim, 0, self.extra), chosen], dim) if self.extra else chosen


class Sight(NamedTuple):
    """A mask between so many queries and keys, which tells what a block of queries sees without writing out all pairs.

    Args:
        is_causal: As in `AttentionMask`, and so are ``back`` and ``ahead``.
        back: See there.
        ahead: See there.
        same: Ids of queries ``(#b, q)``, how many of the first queries belong to all documents, and both for keys.
        real: Keys ``(#b, k)`` that are not hidden.
        given: Pairs ``(#b, #h, #q, #k)`` that are not hidden.
        queries: Number of queries.
        keys: Number of keys.
        num_prefix_tokens: How many of the first tokens belong to all windows.
        device: Where dense masks are made.
    """

    is_causal: bool
    back: int | None
    ahead: int | None
    same: tuple[tuple[Tensor, int, Tensor, int], ...]
    real: tuple[Tensor, ...]
    given: tuple[Tensor, ...]
    queries: int
    keys: int
    num_prefix_tokens: int
    device: torch.device

    @property
    def is_plain(self) -> bool:
        """Whether there is no condition but causality."""
        # Dynamo finds the length of a tuple of tensors, not whether there is any.
        return self.back is None and self.ahead is None and len((*self.same, *self.real, *self.given)) == 0

    @property
    def can_blind(self) -> bool:
        """Whether a query may see no key at all, not even the one at its own place."""
        one_of_its_own = all(q_ids is k_ids for q_ids, _, k_ids, _ in self.same)
        return self.queries > self.keys or bool(self.real or self.given) or not one_of_its_own

    @property
    def rows(self) -> tuple[int, int]:
        """Batch and heads so far as they see different keys."""
        batch = [part.shape[0] for part in (*self.real, *self.given, *(ids for ids, *_ in self.same))]
        batch += [k_ids.shape[0] for _, _, k_ids, _ in self.same]
        heads = [part.shape[1] for part in self.given]
        return max(batch) if batch else 1, max(heads) if heads else 1

    @property
    def width(self) -> int:
        """How many keys a query sees at most, beside prefix tokens, so far as windows say it."""
        ahead = 0 if self.is_causal else self.ahead
        return self.keys if self.back is None or ahead is None else min(self.back + 1 + ahead, self.keys)

    def keys_seen(self, start: int, stop: int) -> Span:
        """Keys among which are all that queries ``start`` to ``stop`` see."""
        shift, first, last = self.keys - self.queries, 0, self.keys
        if self.is_causal:
            last = min(last, max(stop + shift, 0))
        if start + shift >= self.num_prefix_tokens:
            first = first if self.back is None else max(start + shift - self.back, 0)
            last = last if self.ahead is None else min(last, max(stop + shift + self.ahead, 0))
        for q_ids, q_free, k_ids, _ in self.same:
            if q_free <= start < stop and values_known(q_ids):
                ids = q_ids[:, start:stop]
                near = (k_ids >= ids.amin(-1, keepdim=True)) & (k_ids <= ids.amax(-1, keepdim=True))
                places = near.any(0).nonzero().flatten().tolist() or [0]
                first, last = max(first, places[0]), min(last, places[-1] + 1)
        first = min(first, last)
        extra = min(self.num_prefix_tokens, last)
        return Span(extra, first, last) if first > extra else Span(0, 0, last)

    def dense(self, start: int, stop: int, keys: Span) -> Bool[Tensor, "..."] | None:
        """What fits ``(b, h, q, k)``, True where one of these queries sees one of these keys; None if all see all."""
        i = torch.arange(start, stop, device=self.device)[:, None]
        j = keys.take(torch.arange(self.keys, device=self.device), 0)

        return self._visible(
            i,
            j,
            query=lambda part: part[:, None, start:stop, None],
            key=lambda part: keys.take(part, -1)[:, None, None, :],
            pair=lambda part: _take_pairs(part, start, stop, keys),
            by_place=self._hides_by_place(start, stop, keys),
        )

    def sees(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """Whether in row ``b`` and head ``h`` query ``i`` sees key ``j``; FlexAttention's mask function."""
        batch, heads = self.rows
        seen = self._visible(
            i,
            j,
            query=lambda part: part.expand(batch, -1)[b, i],
            key=lambda part: part.expand(batch, -1)[b, j],
            pair=lambda part: part.expand(batch, heads, self.queries, self.keys)[b, h, i, j],
            by_place=True,
        )
        return i >= 0 if seen is None else seen

    def count_keys(self) -> Int[Tensor, "*#b q"]:
        """How many keys each query sees.

        Raises:
            ValueError: If heads see different keys.
        """
        for part in self.given:
            if part.shape[-3] != 1:
                raise ValueError(f"a logit scale takes one mask for all heads, got mask shape {tuple(part.shape)}")
        place = torch.arange(self.queries, device=self.device) + self.keys - self.queries
        windowed = self.back is not None or self.ahead is not None
        if not (self.same or self.real or self.given or (windowed and self.num_prefix_tokens)):
            last = place if self.is_causal else torch.full_like(place, self.keys - 1)
            last = last if self.ahead is None else torch.minimum(last, place + self.ahead)
            first = torch.zeros_like(place) if self.back is None else (place - self.back).clamp(min=0)
            return (last.clamp(max=self.keys - 1) - first + 1).clamp(min=0)
        counts = []
        for start, stop in cut(self.queries, 0 if serves_any_size() else PAIRS_AT_ONCE // max(self.keys, 1)):
            seen = self.dense(start, stop, Span(0, 0, self.keys))
            if seen is None:
                counts.append(torch.full((stop - start,), self.keys, device=self.device))
            else:
                seen = seen if seen.ndim == 2 else seen[:, 0]
                counts.append(seen.expand(*seen.shape[:-2], stop - start, self.keys).sum(-1))
        return torch.cat(counts, -1) if counts else place

    def _visible(
        self,
        i: Tensor,
        j: Tensor,
        *,
        query: Callable[[Tensor], Tensor],
        key: Callable[[Tensor], Tensor],
        pair: Callable[[Tensor], Tensor],
        by_place: bool,
    ) -> Tensor | None:
        """Whether queries ``i`` see keys ``j``; the functions pick what a tensor holds for them."""
        conditions = self._in_place(i + self.keys - self.queries, j) if by_place else []
        for q_ids, q_free, k_ids, k_free in self.same:
            same = query(q_ids) == key(k_ids)
            conditions.append(same | (i < q_free) | (j < k_free) if q_free or k_free else same)
        conditions += [*map(key, self.real), *map(pair, self.given)]
        return reduce(torch.logical_and, conditions) if conditions else None

    def _in_place(self, place: Tensor, j: Tensor) -> list[Tensor]:
        """What causality and windows say of queries at a place and keys ``j``."""
        conditions = [j <= place] if self.is_causal else []
        near = [j >= place - self.back] if self.back is not None else []
        near += [j <= place + self.ahead] if self.ahead is not None else []
        prefix = self.num_prefix_tokens
        return conditions + [side | (place < prefix) | (j < prefix) if prefix else side for side in near]

    def _hides_by_place(self, start: int, stop: int, keys: Span) -> bool:
        """Whether causality or a window hides any of these keys from any of these queries."""
        if serves_any_size():
            return self.is_causal or self.ahead is not None or self.back is not None
        first, last = start + self.keys - self.queries, stop - 1 + self.keys - self.queries
        return (
            (self.is_causal and keys.stop - 1 > first)
            or (self.ahead is not None and keys.stop - 1 > first + self.ahead)
            or (self.back is not None and keys.start < last - self.back)
        )


def _take_pairs(pairs: Bool[Tensor, "#b #h #q #k"], start: int, stop: int, keys: Span) -> Bool[Tensor, "#b #h #m #n"]:
    pairs = pairs if pairs.shape[-2] == 1 else pairs.narrow(-2, start, stop - start)
    return pairs if pairs.shape[-1] == 1 else keys.take(pairs, -1)


def cut(queries: int, rows: int) -> list[tuple[int, int]]:
    """Blocks of at most so many queries; compiled code, which writes every block out, has 32 of them at most.

    An exported program has one.
    """
    rows = max(rows, 1)
    if serves_any_size() or queries <= rows:  # counted, a number that is open would be made that of now
        return [(0, queries)]
    if torch.compiler.is_compiling():
        rows = max(rows, -(-queries // 32))
    return [(start, min(start + rows, queries)) for start in range(0, max(queries, 1), rows)]


def values_known(x: Tensor) -> bool:
    """Whether decisions may depend on what a tensor holds."""
    return not torch.compiler.is_compiling() and not x.is_meta


def serves_any_size() -> bool:
    """Whether a program is being written for tensors of any size, so that nothing may depend on those at hand."""
    return torch.compiler.is_exporting()


def flat_rows(part: Shaped[Tensor, "..."], batch: tuple[int, ...], tail: int) -> Shaped[Tensor, "..."]:
    """The axes of ``part`` before the last ``tail`` ones as one, of 1 where the rows of the batch are all alike."""
    rows, shape = part.shape[: part.ndim - tail], part.shape[part.ndim - tail :]
    if len(batch) == len(rows) == 1:
        return part
    if all(size == 1 for size in rows):
        return part.reshape(1, *shape)
    return part.expand(*batch, *shape).reshape(prod(batch), *shape)
