"""Every encoding on the device against the CPU: eager and compiled, its module in float32 and in bfloat16."""

import copy
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from mmpos import RoPE, Rotation, create_encoding
from mmpos.testing.subject import LENGTH, Inputs, Outputs, Subject, rotation_parts
from tests.configurations import CONFIGURATIONS

from . import Item, Row, Setup

# Shares of the largest entry. A sum in another order is rounded differently, in bfloat16 by its last bit or two.
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2**-7}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
TOKENS, KEYS, ROWS = 301, 269, (2,)
COMPILED_WHEN_SMALL = ("RoPE", "GroupBias")
NOISE = 0.01

Makers = list[Callable[[], nn.Module]]


def configurations() -> dict[str, Makers]:
    """Those of the contract test."""
    return {
        name: [partial(create_encoding, name, **arguments) for arguments in all_arguments]
        for name, all_arguments in CONFIGURATIONS.items()
    }


def run(setup: Setup) -> Iterator[Item]:
    """All in eager mode, then the first configuration of each compiled, then the others."""
    makers = configurations()
    most = max(map(len, makers.values()))
    chosen = [(name, number) for number in range(most) for name in makers if number < len(makers[name])]
    for mode in ("eager", "compiled"):
        for name, number in chosen:
            if setup.small and (number or (mode == "compiled" and name not in COMPILED_WHEN_SMALL)):
                continue
            for dtype in DTYPES:
                about = {"encoding": name, "configuration": str(number), "dtype": dtype, "mode": mode}
                yield about, partial(compare, makers[name][number], DTYPES[dtype], mode, setup.device)


def compare(make: Callable[[], nn.Module], dtype: torch.dtype, mode: str, device: torch.device) -> Row:
    """Largest difference from the CPU, as a share of the largest entry, and whether all bits are the same."""
    torch.manual_seed(0)
    encoding = copy.deepcopy(make()).to(dtype)  # whose parts may be those of others
    with torch.no_grad():
        for parameter in encoding.parameters():  # some start from zero
            parameter.add_(NOISE * torch.randn_like(parameter))
    subject = Subject(encoding)
    inputs = subject.inputs(TOKENS, KEYS, ROWS)
    there = {name: value.to(device) if isinstance(value, Tensor) else value for name, value in inputs.items()}
    moved = copy.deepcopy(encoding).to(device)
    called = moved if mode == "eager" else torch.compile(moved, fullgraph=True, dynamic=False)
    try:
        with torch.no_grad():
            want, got = (
                outputs(subject, encoding, encoding, inputs, dtype),
                outputs(subject, moved, called, there, dtype),
            )
    finally:
        torch._dynamo.reset()
    gaps = [gap(got[name].cpu(), want[name]) for name in want]
    largest = max(gaps)
    encoded = [name for name in want if name != "turned"]  # compilers may multiply and add in one rounding
    same = all(torch.equal(got[name].cpu().nan_to_num(), want[name].nan_to_num()) for name in encoded)
    ok = largest <= TOLERANCE[dtype]
    return {"error": f"{largest:.1e}", "same_bits": "yes" if same else "no", "ok": "yes" if ok else "no"}


def summary(rows: Sequence[Row]) -> list[Row]:
    """A row for each encoding: the largest error of all its configurations, with a star where all bits are the same."""
    found: list[Row] = []
    for name in dict.fromkeys(row["encoding"] for row in rows):
        line = {"encoding": name}
        for mode in ("eager", "compiled"):
            for dtype in DTYPES:
                own = [row for row in rows if (row["encoding"], row["mode"], row["dtype"]) == (name, mode, dtype)]
                same = all(row["same_bits"] == "yes" for row in own)
                largest = max((float(row["error"]) for row in own), default=0.0)
                line[f"{mode}, {dtype}"] = f"{largest:.0e}{'*' * same} of {len(own)}" if own else ""
        found.append(line)
    return found


def outputs(subject: Subject, encoding: nn.Module, called: Callable, inputs: Inputs, dtype: torch.dtype) -> Outputs:
    """Tensors of the encoding; for a rotation also queries of this dtype that it has turned."""
    if not isinstance(encoding, RoPE):
        return subject.call(called, inputs)
    rotation: Rotation = called(inputs["coords"], length=LENGTH)
    heads = max(rotation.cos.shape[-3], 3)
    shape = (*rotation.cos.shape[:-3], heads, rotation.cos.shape[-2], encoding.head_dim)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(3)).to(rotation.cos.device, dtype)
    apply = rotation.apply if called is encoding else torch.compile(rotation.apply, fullgraph=True, dynamic=False)
    return rotation_parts(rotation) | {"turned": apply(x, "query")}


def gap(got: Tensor, want: Tensor) -> float:
    """Largest difference over the largest entry; infinite where only one is NaN or the shapes differ."""
    if got.shape != want.shape or not torch.equal(got.isnan(), want.isnan()):
        return torch.inf
    difference = (got.double() - want.double()).abs().masked_fill(got == want, 0).nan_to_num(0)
    return (difference.max() / want.double().abs().nan_to_num(0).max().clamp(min=1e-30)).item()
