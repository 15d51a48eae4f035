"""Biases in FlexAttention's kernel against the formula written out, with gradients to what they learn.

On a CPU FlexAttention has no backward pass; there gradients are those of attention in blocks of queries.
"""

from collections.abc import Iterator
from functools import partial
from statistics import median

import torch
from torch import Tensor, nn

from mmpos import AttentionBias, attention, sequence_coords
from mmpos.catalogue import ENCODINGS

from ..specs import HEADS, WIDTH, make, spec
from ..timing import ratios, take_turns
from . import Item, Row, Setup
from .correctness import gap

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 3e-2}
WHEN_SMALL = ("T5Bias",)


def run(setup: Setup) -> Iterator[Item]:
    """Every bias that can say one entry at a time."""
    for name, (kind, _) in ENCODINGS.items():
        if kind != "bias" or (setup.small and name not in WHEN_SMALL):
            continue
        bias = make(spec(name), (256,))
        if type(bias).score is AttentionBias.score or bias.needs or bias.after_softmax:
            continue
        for is_causal in (True,) if setup.small else (True, False):
            for dtype in ("float32",) if setup.small else DTYPES:
                about = {"bias": name, "dtype": dtype, "mask": "causal" if is_causal else "none"}
                yield about, partial(compare, setup, name, DTYPES[dtype], is_causal)


def compare(setup: Setup, name: str, dtype: torch.dtype, is_causal: bool) -> Row:
    """Largest differences of results, of gradients of q, k and v and of gradients of learned tensors, and times."""
    torch.manual_seed(0)
    batch, tokens = (1, 64) if setup.small else (2, 2048)
    bias = make(spec(name), (tokens,)).to(setup.device)
    with torch.no_grad():
        for parameter in bias.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    coords = sequence_coords(tokens, device=setup.device)
    inputs = [torch.randn(batch, HEADS, tokens, WIDTH, device=setup.device).to(dtype) for _ in range(3)]
    slope = torch.randn_like(inputs[0])
    options = {"bias": bias, "q_coords": coords, "is_causal": is_causal}
    # float32 copies of the same numbers, so that the formula is the truth for bfloat16 too.
    exact = [part.float() for part in inputs]
    with torch.no_grad():
        got, want = attention(*inputs, **options, backend="flex"), attention(*exact, **options, backend="dense")
    learning = setup.device.type == "cuda"
    backend = "flex" if learning else "blocks"
    own, true = (
        gradients(inputs, slope, bias, options, backend),
        gradients(exact, slope.float(), bias, options, "dense"),
    )
    of_inputs = max(gap(a, b) for a, b in zip(own[:3], true[:3], strict=True))
    of_bias = max((gap(a, b) for a, b in zip(own[3:], true[3:], strict=True)), default=0.0)
    calls = {other: partial(gradients, inputs, slope, bias, options, other) for other in (backend, "dense")}
    times = take_turns(calls, setup.device, repeats=2 if setup.small else 10, seconds=1)
    error = gap(got, want)
    ok = max(error, of_inputs, of_bias) <= TOLERANCE[dtype]
    return {
        "error": f"{error:.1e}",
        "gradients_by": backend,
        "gradient_error": f"{of_inputs:.1e}",
        "bias_gradient_error": f"{of_bias:.1e}" if len(own) > 3 else "",
        "ms": f"{median(times[backend]):.2f}",
        "ratio_to_dense": f"{ratios(times, 'dense')[backend]:.2f}",
        "ok": "yes" if ok else "no",
    }


def gradients(inputs: list[Tensor], slope: Tensor, bias: nn.Module, options: dict, backend: str) -> list[Tensor]:
    """Of queries, keys, values and what the bias learns."""
    leaves = [part.detach().requires_grad_() for part in inputs]
    learned = [parameter for parameter in bias.parameters() if parameter.requires_grad]
    result = attention(*leaves, **options, backend=backend)
    found = torch.autograd.grad(result, [*leaves, *learned], slope, allow_unused=True, materialize_grads=True)
    return list(found)
