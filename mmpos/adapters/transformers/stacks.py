"""Biases of ours in each family of models that has some.

Hooks tell them where the tokens of a forward are and hand them to the attention, which stays the model's own.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ...coords import grid_coords
from ...encodings import ALiBi, AttentionBias, ContinuousBias, T5Bias
from ..layers import check_no_replica
from .slots import NAME, Places, Slot


class T5Slot(Slot):
    """In a stack of T5, mT5 or UMT5, which computes its bias in the first layer or in all."""

    @staticmethod
    def attentions(stack: Any) -> list[Any]:
        return [block.layer[0].SelfAttention for block in stack.block]

    @staticmethod
    def computing(stack: Any) -> list[Any]:
        """The attention that computes a bias; other layers take over that of the first."""
        return [each for each in T5Slot.attentions(stack) if each.has_relative_attention_bias]

    @staticmethod
    def heads_of(attention: Any) -> int:
        return attention.n_heads

    @staticmethod
    def width_of(attention: Any) -> int:
        return attention.key_value_proj_dim

    @staticmethod
    def own(stack: Any) -> list[AttentionBias]:
        found: list[AttentionBias] = []
        for each in T5Slot.computing(stack):
            buckets, furthest = each.relative_attention_num_buckets, each.relative_attention_max_distance
            bias = T5Bias(each.n_heads, buckets, furthest, bidirectional=not each.is_decoder)
            bias.weight = _copied(each.relative_attention_bias.weight)
            found.append(bias)
        return found

    def enter(self, stack: Any) -> None:
        hooks = [stack.register_forward_pre_hook(self._follow, with_kwargs=True)]
        for layer, each in enumerate(self.computing(stack)):
            hooks.append(each.register_forward_pre_hook(partial(self._give, layer), with_kwargs=True))
            self._exchange(each, "relative_attention_bias", None)
            self._others.append((each, "compute_bias", None))
        self._enter(stack, *hooks)

    def _follow(self, stack: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Hands on where the tokens are, as an argument: a layer that is computed again for gradients has it too."""
        return args, {**kwargs, NAME: self._read(stack, args, kwargs)[1]}

    def _give(self, layer: int, attention: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        kwargs = dict(kwargs)
        attention.compute_bias = partial(self._compute, layer, kwargs.pop(NAME), args[0].dtype)
        return args, kwargs

    def _compute(self, layer: int, places: Places, dtype: torch.dtype, *sizes: Any, **more: Any) -> Tensor:
        return self._bias(layer, places).to(dtype)


class BloomSlot(Slot):
    """In a BloomModel, which makes one bias for all layers."""

    @staticmethod
    def attentions(stack: Any) -> list[Any]:
        return [block.self_attention for block in stack.h]

    @staticmethod
    def own(stack: Any) -> list[AttentionBias]:
        return [ALiBi(stack.num_heads)]

    def enter(self, stack: Any) -> None:
        self._others.append((stack, "build_alibi_tensor", None))
        self._enter(stack, stack.register_forward_pre_hook(self._follow, with_kwargs=True))

    def _follow(self, stack: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        given, places = self._read(stack, args, kwargs)
        if places is None:
            return None
        if given.get("attention_mask") is None:  # without one the model would not ask for a bias
            tokens = given["inputs_embeds"] if given.get("input_ids") is None else given["input_ids"]
            given["attention_mask"] = places[1].new_ones(len(tokens), len(places[1]))
        stack.build_alibi_tensor = partial(self._build, places)
        return (), given

    def _build(self, places: Places, attention_mask: Tensor, num_heads: int, dtype: torch.dtype) -> Tensor:
        bias = self._bias(0, places).to(dtype)
        return bias.expand(len(attention_mask), -1, -1, -1).flatten(0, 1)


class MptSlot(Slot):
    """In an MptModel, which makes one bias for all layers, and all rows of a batch, and adds it to scaled logits."""

    @staticmethod
    def attentions(stack: Any) -> list[Any]:
        return [block.attn for block in stack.blocks]

    @staticmethod
    def heads_of(attention: Any) -> int:
        return attention.n_heads

    @staticmethod
    def own(stack: Any) -> list[AttentionBias]:
        return [ALiBi(stack.num_heads)]

    def enter(self, stack: Any) -> None:
        hooks = [stack.register_forward_pre_hook(self._follow, with_kwargs=True)]
        for each in self.attentions(stack):
            scale = each.softmax_scale
            hooks.append(each.register_forward_pre_hook(partial(self._give, scale), with_kwargs=True))
            hooks.append(each.register_forward_hook(partial(self._take_back, scale), always_call=True))
        self._others.append((stack, "build_mpt_alibi_tensor", None))
        self._enter(stack, *hooks)

    def _follow(self, stack: Any, args: tuple, kwargs: dict[str, Any]) -> None:
        places = self._read(stack, args, kwargs)[1]
        if places is not None:
            stack.build_mpt_alibi_tensor = partial(self._build, places)

    def _build(self, places: Places, *sizes: Any, **more: Any) -> Tensor:
        return self._bias(0, places)

    def _give(self, scale: float, attention: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        attention.softmax_scale = ScaleAndAdd(scale, kwargs["position_bias"])
        return args, {**kwargs, "position_bias": None}

    def _take_back(self, scale: float, attention: Any, args: tuple, output: Any) -> None:
        attention.softmax_scale = scale


class ScaleAndAdd:
    """Stands where MPT's attention has a number to multiply its logits by, and adds a bias of each row as well."""

    def __init__(self, scale: float, bias: Float[Tensor, "#b h q k"]):
        self.scale, self.bias = scale, bias

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Tensor:
        """What ``logits * this`` is, said so that a compiler follows it."""
        logits, given = args
        return logits * given.scale + given.bias


class SwinSlot(Slot):
    """In the encoder of a Swin v2, each layer of which has a bias within its windows."""

    axes = 2

    @staticmethod
    def attentions(stack: Any) -> list[Any]:
        return [block.attention.self for stage in stack.layers for block in stage.blocks]

    @staticmethod
    def heads_of(attention: Any) -> int:
        return attention.num_attention_heads

    @staticmethod
    def width_of(attention: Any) -> int:
        return attention.attention_head_size

    @staticmethod
    def corners(attention: Any) -> Int[Tensor, "2 a"]:
        return torch.tensor([[0, 0], [side - 1 for side in attention.window_size]])

    @staticmethod
    def own(stack: Any) -> list[AttentionBias]:
        found: list[AttentionBias] = []
        for each in SwinSlot.attentions(stack):
            trained, network = each.pretrained_window_size, each.continuous_position_bias_mlp
            window = tuple(trained if trained[0] > 0 else each.window_size)
            bias = ContinuousBias(each.num_attention_heads, window, hidden_dim=network[0].out_features)
            for ours, theirs in zip(bias.mlp, network, strict=True):
                for name, parameter in theirs.named_parameters():
                    setattr(ours, name, _copied(parameter))
            found.append(bias)
        return found

    def enter(self, stack: Any) -> None:
        hooks = []
        for layer, each in enumerate(self.attentions(stack)):
            self._exchange(each, "continuous_position_bias_mlp", Level(self.heads[layer]))
            if self.numbers[layer if len(self.numbers) > 1 else 0] is not None:
                hook = partial(self._weigh, layer, each.window_size)
                hooks.append(each.dropout.register_forward_pre_hook(hook))
        self._enter(stack, *hooks)

    def _weigh(self, layer: int, window: Sequence[int], dropout: nn.Module, args: tuple[Tensor]) -> Tensor:
        """Adds the bias behind the softmax, to the logarithms of the weights, and has the softmax of that."""
        check_no_replica(dropout, self)
        weights = args[0].float()
        cells = grid_coords(*window, device=weights.device)
        some = weights > 0  # others are masked
        logits = weights.where(some, 1).log().masked_fill(~some, -torch.inf) + self._bias(layer, (cells, cells))
        return logits.softmax(-1).to(args[0].dtype)


class Level(nn.Module):
    """Stands where Swin v2 computes a bias, which becomes the same for all keys, so that a softmax does not see it."""

    def __init__(self, num_heads: int):
        super().__init__()
        self.num_heads = num_heads

    def forward(self, offsets: Float[Tensor, "*shape a"]) -> Float[Tensor, "*shape h"]:
        return offsets.new_zeros(*offsets.shape[:-1], self.num_heads)


def _copied(parameter: nn.Parameter) -> nn.Parameter:
    return nn.Parameter(parameter.detach().clone(), requires_grad=parameter.requires_grad)
