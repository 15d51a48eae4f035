"""Rotating queries and keys as a share of the speed of copying them, eager and compiled."""

from collections.abc import Callable, Iterator
from functools import partial
from statistics import median

import torch
from torch import Tensor

from mmpos import RoPE, sequence_coords

from ..timing import Call, ratios, take_turns
from . import Item, Row, Setup

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
LARGE, SMALL = (8, 32, 4096, 128), (2, 3, 64, 16)
TARGET = 80  # percent


def run(setup: Setup) -> Iterator[Item]:
    for mode in ("eager", "compiled"):
        for layout in ("half", "interleaved"):
            for dtype in DTYPES:
                for which in ("forward", "training"):
                    if setup.small and mode == "compiled" and (layout, dtype) != ("half", "bfloat16"):
                        continue
                    about = {"layout": layout, "dtype": dtype, "mode": mode, "pass": which}
                    yield about, partial(measure, setup, layout, DTYPES[dtype], mode, which)


def measure(setup: Setup, layout: str, dtype: torch.dtype, mode: str, which: str) -> Row:
    """The copy's time over the turn's, for a forward and backward pass of two copies; what both read and write."""
    size = SMALL if setup.small else LARGE
    q, k = (torch.randn(size, device=setup.device).to(dtype) for _ in range(2))
    rotation = RoPE(size[-1], layout=layout)(sequence_coords(size[-2], device=setup.device))
    torch._dynamo.reset()
    apply = rotation.apply if mode == "eager" else torch.compile(rotation.apply)
    if which == "forward":
        calls = {"clone": lambda: [q.clone(), k.clone()], "turn": torch.no_grad()(lambda: [apply(q), apply(k)])}
    else:
        calls = {"clone": lambda: [q.clone(), k.clone(), q.clone(), k.clone()], "turn": trained(apply, q, k)}
    times = take_turns(calls, setup.device, repeats=3 if setup.small else 30, seconds=2)
    share = 100 / ratios(times, "clone")["turn"]
    moved = 2 * (q.nbytes + k.nbytes) * (1 if which == "forward" else 2)
    return {
        "clone_ms": f"{median(times['clone']):.3f}",
        "turn_ms": f"{median(times['turn']):.3f}",
        "clone_gb_per_s": f"{moved / 1e6 / median(times['clone']):.0f}",
        "share_percent": f"{share:.0f}",
        "at_target": "yes" if share >= TARGET else "no",
    }


def trained(apply: Callable[[Tensor], Tensor], q: Tensor, k: Tensor) -> Call:
    inputs = [part.detach().requires_grad_() for part in (q, k)]
    slopes = [torch.ones_like(part) for part in inputs]
    return lambda: torch.autograd.grad([apply(part) for part in inputs], inputs, slopes)
