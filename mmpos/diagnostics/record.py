"""Looks into the attention of a model while it runs, and switches its encodings off."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..attend import Attention, attention
from ..attend.prepare import prepare
from ..catalogue import INTERFACES, Kind
from ..encodings import Rotation
from ..masks import Span


@dataclass(frozen=True)
class AttentionRecord:
    """One call of attention, as it was.

    Args:
        name: Path of the module in the model, or the number of the call where no module of ours made it.
        q: Queries ``(b, h, q, d)``.
        k: Keys ``(b, g, k, d)``.
        arguments: What `mmpos.attention` takes besides: rotation, bias, mask and so on.
    """

    name: str
    q: Tensor
    k: Tensor
    arguments: dict[str, Any]

    @property
    def num_prefix_tokens(self) -> int:
        """Leading tokens that have no coordinates."""
        return self.arguments.get("num_prefix_tokens", 0)

    @property
    def q_coords(self) -> Shaped[Tensor, "*b m a"] | None:
        """Coordinates of the queries without prefix tokens, where the call had them."""
        return self.arguments.get("q_coords")

    @property
    def k_coords(self) -> Shaped[Tensor, "*b m a"] | None:
        """Coordinates of the keys without prefix tokens."""
        k_coords = self.arguments.get("k_coords")
        return self.q_coords if k_coords is None else k_coords

    def logits(self) -> Float[Tensor, "b h q k"]:
        """What the softmax takes, with rotation, scale and bias; -inf for keys that are hidden."""
        q, k, _, bias, sight, scale, _ = prepare(self.q.float(), self.k.float(), self.k.float(), **self.arguments)
        keys = Span(0, 0, sight.keys)
        logits = scale * q @ k.repeat_interleave(q.shape[1] // k.shape[1], dim=1).mT
        if bias is not None and not bias.after_softmax:
            logits = logits + bias.dense(keys)
        visible = sight.dense(0, sight.queries, keys)
        return logits if visible is None else logits.masked_fill(~visible, -torch.inf)

    def weights(self) -> Float[Tensor, "b h q k"]:
        """How much of each value a query takes: attention to values that are one-hot."""
        q, k = self.q.float(), self.k.float()
        one_hot = torch.eye(k.shape[-2], device=k.device).expand(*k.shape[:-1], -1)
        return attention(q, k, one_hot, **self.arguments, backend="dense")


@contextmanager
def record_attention(model: nn.Module) -> Iterator[list[AttentionRecord]]:
    """The calls of attention that a model makes inside the block, in their order.

    Sees the `Attention` of our models with its rotation, bias and coordinates, and in any other model the calls of
    `torch.nn.functional.scaled_dot_product_attention`, whose queries and keys are turned already. Compiled code, fused
    layers that call neither, and our own with a cache are not seen.

    Args:
        model: The model.

    Example:
        >>> from mmpos.diagnostics import record_attention
        >>> from mmpos.models import VisionTransformer
        >>> vit = VisionTransformer(image_size=(8, 12), depth=2, rotary={"name": "RoPE", "axes": 2})
        >>> with record_attention(vit) as calls:
        ...     _ = vit(torch.randn(3, 1, 8, 12))
        >>> [(call.name, call.weights().shape) for call in calls]
        [('blocks.0.attn', torch.Size([3, 4, 24, 24])), ('blocks.1.attn', torch.Size([3, 4, 24, 24]))]
    """
    calls: list[AttentionRecord] = []
    watch = _Watch(calls)
    with ExitStack() as stack:
        for path, module in model.named_modules():
            if isinstance(module, Attention):
                for handle in watch.follow(path, module):
                    stack.callback(handle.remove)
        stack.enter_context(watch)
        yield calls


@contextmanager
def switched_off(model: nn.Module, kind: Kind) -> Iterator[None]:
    """Switches the encodings of a slot off inside the block: nothing is added, turned, biased or scaled.

    Reaches every encoding that is a part of the model, in models of ours and in others.

    Args:
        model: The model.
        kind: "additive", "rotary", "bias" or "scale".

    Raises:
        ValueError: If the kind is unknown.
    """
    if kind not in INTERFACES:
        raise ValueError(f"kind must be one of {', '.join(INTERFACES)}, got {kind!r}")
    with ExitStack() as stack:
        for module in model.modules():
            if isinstance(module, INTERFACES[kind]):
                stack.callback(module.register_forward_hook(_NEUTRAL[kind]).remove)
            if isinstance(module, Attention) and kind == "bias":  # which may take a lowering of it in place of a call
                stack.callback(module.register_forward_pre_hook(_without_bias, with_kwargs=True).remove)
        yield


def slots_of(model: nn.Module) -> list[Kind]:
    """The slots in which a model has an encoding."""
    return [kind for kind, own in INTERFACES.items() if any(isinstance(module, own) for module in model.modules())]


def slot_contributions(model: nn.Module, evaluate: Callable[[], float]) -> dict[str, float]:
    """What ``evaluate`` gives with all encodings ("all"), and with each slot switched off in turn.

    The model is in evaluation mode meanwhile, and nothing is kept for gradients.

    Args:
        model: The model.
        evaluate: A loss or a score of the model.

    Example:
        >>> from mmpos.diagnostics import slot_contributions
        >>> from mmpos.models import VisionTransformer
        >>> vit = VisionTransformer(rotary={"name": "RoPE", "axes": 2}, bias={"name": "ALiBi", "axes": 2})
        >>> images = torch.randn(3, 1, 8, 8)
        >>> list(slot_contributions(vit, lambda: vit(images).square().mean().item()))
        ['all', 'rotary', 'bias']
    """
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            scores = {"all": evaluate()}
            for kind in slots_of(model):
                with switched_off(model, kind):
                    scores[kind] = evaluate()
    finally:
        for module, training in modes:
            module.training = training
    return scores


class _Watch(TorchFunctionMode):
    """Sees calls of PyTorch's attention, and of ours by hooks; those of PyTorch's inside ours do not count."""

    def __init__(self, calls: list[AttentionRecord]):
        super().__init__()
        self.calls, self.inside, self.parts = calls, 0, {}

    def follow(self, path: str, module: Attention) -> list[Any]:
        """Hooks of one attention module."""

        def enter(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
            self.inside += 1

        def keep(name: str) -> Callable:
            return lambda norm, args, output: self.parts.__setitem__((path, name), output.detach())

        def leave(module: nn.Module, args: tuple, kwargs: dict[str, Any], output: Any) -> None:
            self.inside -= 1
            q, k = (self.parts.pop((path, name), None) for name in ("q", "k"))
            if q is not None and k is not None and kwargs.get("cache") is None:
                names = ("rotation", "bias", "logit_scale", "k_coords", "num_prefix_tokens", "mask", "is_causal")
                arguments = {name: kwargs[name] for name in names if name in kwargs}
                arguments |= {"q_coords": kwargs.get("coords"), "tokens": args[0].detach()}
                self.calls.append(AttentionRecord(path, q, k, arguments))

        return [
            module.register_forward_pre_hook(enter, with_kwargs=True),
            module.q_norm.register_forward_hook(keep("q")),
            module.k_norm.register_forward_hook(keep("k")),
            module.register_forward_hook(leave, with_kwargs=True, always_call=True),
        ]

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        if func is F.scaled_dot_product_attention and not self.inside:
            self._keep(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _keep(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> None:
        arguments: dict[str, Any] = {"scale": scale}
        if attn_mask is not None:
            arguments["mask" if attn_mask.dtype == torch.bool else "bias"] = attn_mask.detach()
        if is_causal:  # PyTorch aligns the first query with the first key
            arguments["mask"] = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
        self.calls.append(AttentionRecord(str(len(self.calls)), query.detach(), key.detach(), arguments))


def _still(module: nn.Module, args: tuple, output: Rotation) -> Rotation:
    return Rotation(torch.ones_like(output.cos), torch.zeros_like(output.sin), output.layout)


def _without_bias(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    return args, kwargs | {"bias": None}


_NEUTRAL: dict[Kind, Callable] = {
    "additive": lambda module, args, output: torch.zeros_like(output),
    "rotary": _still,
    "bias": lambda module, args, output: torch.zeros_like(output),
    "scale": lambda module, args, output: torch.ones_like(output),
}
