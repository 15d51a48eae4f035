"""Text that a decoder goes on with."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .cache import Cache
from .text import TextTransformer


@torch.inference_mode()
def generate(
    model: TextTransformer,
    prompts: Sequence[Int[Tensor, " n"]],
    max_new_tokens: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    stop: int | None = None,
    window: int | None = None,
    sinks: int = 0,
    length: int | None = None,
    generator: torch.Generator | None = None,
) -> list[Int[Tensor, " m"]]:
    """Goes on with several prompts of any lengths at once, one token at a time from a cache of keys and values.

    Args:
        model: A decoder.
        prompts: Tokens of each prompt, at least one.
        max_new_tokens: Most tokens that are added to each.
        temperature: Divides the logits; 0 takes the most likely token.
        top_k: Tokens to draw from, the most likely; all if None.
        top_p: Draws from the most likely tokens that together have this probability; all if None.
        stop: Token after which a prompt is not gone on with; it is kept.
        window: Tokens at the end that a streaming cache keeps, see `Cache`; all are kept if None.
        sinks: Tokens at the beginning that a streaming cache keeps.
        length: What encodings that depend on the length take as such; of the whole, if it is known, by default.
        generator: Source of random numbers.

    Returns:
        The new tokens of each prompt.

    Raises:
        ValueError: If there is no prompt or an empty one, a number is out of range, or the model classifies.

    Example:
        >>> decoder = TextTransformer(num_tokens=256, dim=32, depth=2, num_heads=4, rotary={"name": "RoPE"})
        >>> prompts = [torch.tensor([72, 101]), torch.tensor([87, 111, 114, 108])]
        >>> [len(text) for text in generate(decoder, prompts, max_new_tokens=5)]
        [5, 5]
    """
    _check(model, prompts, max_new_tokens, temperature, top_k, top_p)
    device = model.embed.weight.device
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
    longest = int(lengths.max())
    if length is None:
        length = longest + max_new_tokens if window is None else min(longest + max_new_tokens, window + sinks)
    cache = Cache(len(model.blocks), window=window, sinks=sinks)
    real = torch.arange(longest, device=device) >= longest - lengths[:, None]
    row = torch.zeros(len(prompts), longest, dtype=torch.int64, device=device)
    row[real] = torch.cat([prompt.to(device) for prompt in prompts])
    logits = model(row, real=real, length=length, cache=cache)[:, -1]
    new = torch.empty(len(prompts), 0, dtype=torch.int64, device=device)
    open_rows = torch.ones(len(prompts), dtype=torch.bool, device=device)
    while new.shape[-1] < max_new_tokens:
        token = sample(logits, temperature=temperature, top_k=top_k, top_p=top_p, generator=generator)
        new = torch.cat([new, token[:, None]], dim=-1)
        if stop is not None:
            open_rows &= token != stop
            if not open_rows.any():
                break
        if new.shape[-1] < max_new_tokens:
            logits = model(token[:, None], length=length, cache=cache)[:, -1]
    return [_until(row, stop) for row in new]


def sample(
    logits: Float[Tensor, "b tokens"],
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: torch.Generator | None = None,
) -> Int[Tensor, " b"]:
    """Draws a token of each row; arguments as those of `generate`."""
    logits = logits.float()
    if temperature == 0:
        return logits.argmax(-1)
    logits = logits / temperature
    if top_k is not None and top_k < logits.shape[-1]:
        logits = logits.masked_fill(logits < logits.topk(top_k).values[:, -1:], -torch.inf)
    if top_p is not None:
        ordered, order = logits.softmax(-1).sort(descending=True)
        before = ordered.cumsum(-1) - ordered  # the probability of the more likely ones
        hidden = torch.zeros_like(before, dtype=torch.bool).scatter(-1, order, before >= top_p)
        logits = logits.masked_fill(hidden, -torch.inf)
    return torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]


def _until(row: Int[Tensor, " m"], stop: int | None) -> Int[Tensor, " end"]:
    ends = (row == stop).nonzero() if stop is not None else row.new_empty(0, 1)
    return row if not len(ends) else row[: int(ends[0, 0]) + 1]


def _check(model, prompts, max_new_tokens, temperature, top_k, top_p) -> None:
    if model.num_classes is not None:
        raise ValueError("a model that classifies rows cannot go on with them")
    if not prompts or not all(prompt.ndim == 1 and len(prompt) for prompt in prompts):
        raise ValueError(
            f"prompts must be rows of one token or more, got {[tuple(prompt.shape) for prompt in prompts]}"
        )
    if max_new_tokens < 0:
        raise ValueError(f"max_new_tokens must not be negative, got {max_new_tokens}")
    if not temperature >= 0:
        raise ValueError(f"temperature must not be negative, got {temperature}")
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k must be positive, got {top_k}")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"top_p must be above 0 and at most 1, got {top_p}")
