"""What stands in a transformers model in the place of an attention bias of its own."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from ...coords import padded_coords
from ...encodings import AttentionBias
from ..layers import check_no_replica, number_distinct

NAME = "mmpos_bias"  # where it is in the model, and under what hooks hand on where tokens are
Places = tuple[Int[Tensor, "*rows q a"], Int[Tensor, "*rows k a"]]  # of queries and of keys


class Slot(nn.Module, ABC):
    """Biases of ours in a stack of layers, until `leave` puts back what they replaced.

    It is a module of the stack, so that what it learns is trained, moved and saved with the model.
    """

    axes: int = 1

    def __init__(self, stack: Any, biases: Sequence[AttentionBias | None]):
        super().__init__()
        self.biases, self.numbers = number_distinct(biases)
        self.heads = [self.heads_of(attention) for attention in self.attentions(stack)]
        self._names = list(inspect.signature(type(stack).forward).parameters)[1:]
        self._hooks: list[Any] = []
        self._others: list[tuple[Any, str, Any]] = []

    @staticmethod
    @abstractmethod
    def attentions(stack: Any) -> list[Any]:
        """The attention of each layer."""

    @staticmethod
    @abstractmethod
    def own(stack: Any) -> list[AttentionBias]:
        """The biases that the stack has by itself: one for all layers, or one for each."""

    @abstractmethod
    def enter(self, stack: Any) -> None:
        """Goes into the stack, whose own bias goes out."""

    @staticmethod
    def heads_of(attention: Any) -> int:
        """Heads of a layer."""
        return attention.num_heads

    @staticmethod
    def width_of(attention: Any) -> int:
        """Channels of each head of a layer."""
        return attention.head_dim

    @staticmethod
    def corners(attention: Any) -> Int[Tensor, "2 a"]:
        """Two places that a bias must know, to try one at."""
        return torch.tensor([[0], [1]])

    def bias_of(self, layer: int) -> AttentionBias | None:
        """The bias of a layer, of which there may be one for all."""
        number = self.numbers[layer if len(self.numbers) > 1 else 0]
        bias = None if number is None else self.biases[number]
        assert isinstance(bias, AttentionBias | None)
        return bias

    def leave(self, stack: Any) -> None:
        """Goes out of the stack and puts back what it had, on its device and in its dtype."""
        for hook in self._hooks:
            hook.remove()
        delattr(stack, NAME)
        like = next(stack.parameters())
        for owner, name, value in self._others:
            vars(owner).pop(name, None)
            if isinstance(value, nn.Module):
                setattr(owner, name, value.to(like.device, like.dtype).train(stack.training))

    def _enter(self, stack: Any, *hooks: Any) -> None:
        self._hooks += hooks
        self.to(next(stack.parameters()).device).train(stack.training)
        stack.add_module(NAME, self)

    def _exchange(self, owner: nn.Module, name: str, value: nn.Module | None) -> None:
        self._others.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    def _bias(self, layer: int, places: Places) -> Float[Tensor, "b h q k"]:
        """The bias of a layer in float32, for all rows of a batch together where these do not differ."""
        (q, k), bias = places, self.bias_of(layer)
        if bias is None:
            return torch.zeros(1, self.heads[layer], q.shape[-2], k.shape[-2], device=q.device)
        found = bias(q, k)
        return (found if found.ndim == 4 else found[None]).expand(-1, self.heads[layer], -1, -1)

    def _read(self, stack: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[dict[str, Any], Places | None]:
        """The arguments of a forward by name, and where its queries and keys are: real tokens count from 0."""
        check_no_replica(stack, self)
        given = {**dict(zip(self._names, args, strict=False)), **kwargs}
        tokens, mask = given.get("input_ids"), given.get("attention_mask")
        tokens = given.get("inputs_embeds") if tokens is None else tokens
        if tokens is None:
            return given, None  # which the model refuses
        cache = given.get("cache", given.get("past_key_values"))
        cache = getattr(cache, "self_attention_cache", cache)
        past = 0 if cache is None else int(cache.get_seq_length())
        count = past + tokens.shape[1]
        total = count if cache is None else cache.get_mask_sizes(tokens.shape[1], 0)[0]  # a static one has room left
        if mask is None:
            keys = torch.arange(total, device=tokens.device)[:, None]
            return given, (keys[past:count], keys)
        if mask.ndim not in (2, 4) or mask.shape[-1] < count:
            raise ValueError(
                f"attention_mask must be (b, k) with the {count} tokens so far, which says where they are; got "
                f"shape {tuple(mask.shape)}"
            )
        real = (mask if mask.ndim == 2 else _seen_by_the_last(mask)).to(tokens.device) != 0
        keys = padded_coords(F.pad(real, (0, total - real.shape[1])))
        return given, (keys[:, past:count], keys)


def _seen_by_the_last(mask: Shaped[Tensor, "b heads q k"]) -> Bool[Tensor, "b k"]:
    """The real tokens of a mask of queries and keys, as generation makes one for a static cache."""
    seen = mask[:, 0] if mask.dtype == torch.bool else mask[:, 0] >= 0
    if not (torch.compiler.is_compiling() or seen.is_meta) and (seen & ~seen[:, -1:]).any():
        raise ValueError(
            "attention_mask of queries and keys hides tokens from the last query that others see, so it does not say "
            "where they are; give one of shape (b, k)"
        )
    return seen[:, -1]
