"""Conditions on a query and a key, and how they join."""

from math import prod
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Integer, Shaped
from torch import Tensor

from ..arguments import check_count, check_flag, check_integers, check_tensor, fits
from ..encodings.checks import check_positive
from .sight import Sight, Span, flat_rows


class AttentionMask(NamedTuple):
    """Conditions that must all hold for a query to see a key; `causal`, `window`, `documents` and `padding` make them.

    Masks join by ``&``, with boolean tensors too. Prefix tokens (class, registers) belong to every window and document:
    they see all keys and all queries see them, unless causality hides one. Ids and padding may leave them out.

    Args:
        is_causal: Whether keys past the place of the query are hidden.
        back: Places before the query beyond which keys are hidden.
        ahead: Places after the query beyond which keys are hidden.
        same: Numbers of queries ``(..., q)`` and of keys ``(..., k)`` that must be equal.
        real: Keys ``(..., k)`` that are not hidden.
        given: Pairs that are not hidden, or what broadcasts to ``(..., h, q, k)``.

    Example:
        >>> (causal() & documents(torch.tensor([0, 0, 1]))).dense(queries=3, keys=3)
        tensor([[ True, False, False],
                [ True,  True, False],
                [False, False,  True]])
    """

    is_causal: bool = False
    back: int | None = None
    ahead: int | None = None
    same: tuple[tuple[Tensor, Tensor], ...] = ()
    real: tuple[Tensor, ...] = ()
    given: tuple[Tensor, ...] = ()

    def __and__(self, other: "AttentionMask | Tensor") -> "AttentionMask":
        if isinstance(other, Tensor):
            other = AttentionMask(given=(other,))
        if not isinstance(other, AttentionMask):
            return NotImplemented
        back, ahead = _least(self.back, other.back), _least(self.ahead, other.ahead)
        tensors = (self.same + other.same, self.real + other.real, self.given + other.given)
        return AttentionMask(self.is_causal or other.is_causal, back, ahead, *tensors)

    __rand__ = __and__

    def dense(self, queries: int, keys: int, *, num_prefix_tokens: int = 0) -> Bool[Tensor, "*batch q k"]:
        """All pairs, True where a query sees a key: ``(q, k)``, or ``(*batch, h, q, k)`` where rows or heads differ.

        Raises:
            ValueError: If ids, padding or a boolean tensor do not fit so many queries and keys.
            TypeError: If a given tensor is not boolean.
        """
        for name, count in (("queries", queries), ("keys", keys), ("num_prefix_tokens", num_prefix_tokens)):
            if not isinstance(count, int | torch.SymInt):
                raise TypeError(f"{name} must be an integer, got {count!r}")
            check_count(name, count)
        rows = [*self.real, *(part for pair in self.same for part in pair)]
        batch = torch.broadcast_shapes(*(part.shape[:-1] for part in rows), *(part.shape[:-3] for part in self.given))
        heads = [part.shape[-3] for part in self.given if part.ndim > 2]
        heads = max(heads) if heads else 1
        device = next((part.device for part in (*rows, *self.given)), torch.device("cpu"))
        sight = self.between((*batch, heads, queries, keys), num_prefix_tokens=num_prefix_tokens, device=device)
        visible = sight.dense(0, queries, Span(0, 0, keys))
        if visible is None:
            return torch.ones(queries, keys, dtype=torch.bool, device=device)
        visible = visible.expand(prod(batch), heads, queries, keys).reshape(*batch, heads, queries, keys)
        return visible if batch or heads > 1 else visible[0]

    def between(self, shape: tuple[int, ...], *, num_prefix_tokens: int = 0, device: torch.device) -> "Sight":
        """The mask of logits of the shape ``(*batch, h, q, k)``, with the rows of a batch in one axis.

        Raises:
            ValueError: If ids, padding or a boolean tensor do not fit that shape.
            TypeError: If a given tensor is not boolean.
        """
        batch, (queries, keys) = shape[:-3], shape[-2:]
        same = []
        for ids, k_ids in self.same:
            of_queries = _fit("ids of documents", ids, batch, queries, num_prefix_tokens)
            alike = k_ids is ids and queries == keys
            of_keys = of_queries if alike else _fit("k_ids of documents", k_ids, batch, keys, num_prefix_tokens)
            same.append((*of_queries, *of_keys))
        for part in self.given:
            if part.dtype != torch.bool:
                raise TypeError(f"mask must be boolean (True may attend), got {part.dtype}")
            if not fits(part.shape, shape):
                raise ValueError(f"mask must fit logits of shape {tuple(shape)}, got shape {tuple(part.shape)}")
        real = tuple(_fit("mask of padding", part, batch, keys, num_prefix_tokens)[0] for part in self.real)
        given = tuple(flat_rows(part[(None,) * max(3 - part.ndim, 0)], batch, 3) for part in self.given)
        conditions = (self.is_causal, self.back, self.ahead, tuple(same), real, given)
        return Sight(*conditions, queries, keys, num_prefix_tokens, device)


def _least(*sides: int | None) -> int | None:
    known = [side for side in sides if side is not None]
    return min(known) if known else None


def _fit(
    name: str, part: Tensor, batch: tuple[int, ...], tokens: int, num_prefix_tokens: int
) -> tuple[Shaped[Tensor, "#b n"], int]:
    """What a tensor holds for all tokens of all rows, with anything for prefix tokens, and how many it left out."""
    missing = tokens - part.shape[-1]
    if missing not in (0, num_prefix_tokens) or not fits(part.shape[:-1], batch):
        raise ValueError(
            f"{name} must have the shape {(*batch, tokens)} of the tokens, got shape {tuple(part.shape)}; "
            f"num_prefix_tokens is {num_prefix_tokens}"
        )
    return F.pad(flat_rows(part, batch, 1), (missing, 0), value=1), missing


def causal() -> AttentionMask:
    """A query sees the key at its own place and those before it."""
    return AttentionMask(is_causal=True)


def window(size: int, *, two_sided: bool = False) -> AttentionMask:
    """A query sees the key at its own place and the ``size - 1`` before it, as in Mistral.

    Args:
        size: Places from the query to the first key that it does not see; counted in tokens, not in coordinates.
        two_sided: Whether it sees the ``size - 1`` keys after it as well; a window is causal unless it does.

    Raises:
        ValueError: If ``size`` is not positive.

    Example:
        >>> window(2).dense(queries=2, keys=4)
        tensor([[False,  True,  True, False],
                [False, False,  True,  True]])

    Reference:
        Jiang et al., Mistral 7B, 2023, sec. 2. https://arxiv.org/abs/2310.06825
    """
    check_positive("size", size)
    check_flag("two_sided", two_sided)
    return AttentionMask(not two_sided, back=size - 1, ahead=size - 1 if two_sided else None)


def documents(ids: Integer[Tensor, "*rows q"], k_ids: Integer[Tensor, "*k_rows k"] | None = None) -> AttentionMask:
    """A query sees the keys of its own document.

    Args:
        ids: The document of each query, as `packed_coords` gives it.
        k_ids: The document of each key; those of the queries unless given.

    Raises:
        TypeError: If the ids are no integers.
    """
    k_ids = ids if k_ids is None else k_ids
    for name, part in (("ids", ids), ("k_ids", k_ids)):
        check_integers(name, part)
        if not part.ndim:
            raise ValueError(f"{name} must be (..., n), got a single number")
    return AttentionMask(same=((ids, k_ids),))


def padding(mask: Bool[Tensor, "*rows k"]) -> AttentionMask:
    """A query sees the keys that are real, True in ``mask``.

    Raises:
        TypeError: If the mask is not boolean.
    """
    check_tensor("mask", mask)
    if mask.dtype != torch.bool:
        raise TypeError(f"mask of padding must be boolean (True is real), got {mask.dtype}")
    if not mask.ndim:
        raise ValueError("mask must be (..., k), got a single value")
    return AttentionMask(real=(mask,))
