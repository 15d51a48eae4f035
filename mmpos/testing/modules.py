"""Points about the module around the formula: what it saves, copies, casts, initialises and compiles to."""

import copy
import functools
import os
import pickle
import shutil
import sys
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .subject import FEW, MANY, MORE, SOME, DoesNotApply, Inputs, Outputs, Subject, Violation, expect, expect_same


def state_dict(subject: Subject) -> None:
    """The state holds learned tensors only, and loading it gives the same bits."""
    encoding = subject.fresh()
    learned, state = dict(encoding.named_parameters()), encoding.state_dict()
    extra = sorted(set(state) - set(learned) | {name for name, _ in encoding.named_buffers()})
    expect(not extra, f"expected learned parameters and no buffers, got {', '.join(extra)}")
    expect(set(state) == set(learned), f"expected all of {', '.join(learned)} in state_dict(), got {', '.join(state)}")
    other = subject.fresh()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.fill_(0.5)
    other.load_state_dict(state)
    _check_equal(subject, other, encoding, "after load_state_dict")


def weight_decay(subject: Subject) -> None:
    """A learned encoding names the parameters that must not decay."""
    learned = dict(subject.encoding.named_parameters())
    if not learned:
        raise DoesNotApply("it learns nothing")
    method = getattr(subject.encoding, "no_weight_decay", None)
    if method is None:
        raise Violation(f"expected a method no_weight_decay(), a set of some of {', '.join(learned)}, got none")
    names = set(method())
    unknown = ", ".join(sorted(names - set(learned)))
    expect(not unknown, f"expected no_weight_decay() to name some of {', '.join(learned)}, got {unknown}")


def pickling(subject: Subject) -> None:
    """A pickled module gives the same bits, also after it was called."""
    kind = type(subject.encoding)
    found = functools.reduce(
        lambda owner, name: getattr(owner, name, None), kind.__qualname__.split("."), sys.modules.get(kind.__module__)
    )
    if found is not kind:
        raise DoesNotApply(f"pickle finds no {kind.__qualname__} in {kind.__module__}: define it in a module")
    encoding = subject.fresh()
    subject.call(encoding, subject.inputs())
    _check_equal(subject, pickle.loads(pickle.dumps(encoding)), encoding, "after pickle")


def deepcopy(subject: Subject) -> None:
    """A deep copy gives the same bits, also of a module that was called with gradients."""
    encoding = subject.fresh()
    subject.call(encoding, subject.inputs())
    _check_equal(subject, copy.deepcopy(encoding), encoding, "after deepcopy")


def casting(subject: Subject) -> None:
    """Casting the module rounds learned tensors and nothing else: the bits of what is fixed stay."""
    for dtype in (torch.bfloat16, torch.float16):
        cast, rounded = subject.fresh().to(dtype), subject.fresh()
        with torch.no_grad():
            for parameter, low in zip(rounded.parameters(), cast.parameters(), strict=True):
                parameter.copy_(low)
        for floats in (False, True):
            inputs = subject.inputs(MANY, MORE, floats=floats)
            low = dtype if any(parameter.dtype == dtype for parameter in cast.parameters()) else None
            got, want = subject.call(cast, inputs), subject.call(rounded, inputs)
            _check_precision(subject, got, want, f"after .to({dtype})", low)


def autocasting(subject: Subject) -> None:
    """Autocast leaves the bits alone; results of learned additive encodings may be rounded to its dtype."""
    for floats in (False, True):
        inputs = subject.inputs(MANY, MORE, floats=floats)
        want = subject.call(subject.fresh(), inputs)
        with torch.autocast(subject.device.type, dtype=torch.bfloat16):
            got = subject.call(subject.fresh(), inputs)
        _check_precision(subject, got, want, "under autocast to bfloat16", torch.bfloat16)


def meta_device(subject: Subject) -> None:
    """On the meta device results are meta tensors of the right shape and dtype."""
    encoding = subject.fresh().to("meta")
    for rows in ((), (2,)):
        for floats in (False, True):
            inputs = subject.inputs(MANY, MORE, rows, floats=floats)
            want = subject.call(subject.fresh(), inputs)
            for name, got in subject.call(encoding, _to_meta(inputs)).items():
                expect(got.is_meta, f"expected a {name} on the meta device, got one on {got.device}")
                expected, actual = (tuple(want[name].shape), want[name].dtype), (tuple(got.shape), got.dtype)
                expect(actual == expected, f"expected a {name} of {expected} on the meta device, got {actual}")


def reset_parameters(subject: Subject) -> None:
    """Taken through meta, `to_empty` and `reset_parameters`, it equals a fresh build under the same seed."""
    fresh = subject.fresh()
    empty = subject.fresh().to("meta").to_empty(device=subject.device)
    with torch.no_grad():
        for tensor in (*empty.parameters(), *empty.buffers()):  # what to_empty leaves is arbitrary, so make it wrong
            tensor.fill_(torch.nan if tensor.is_floating_point() or tensor.is_complex() else 1)
    for encoding in (fresh, empty):
        torch.manual_seed(0)
        for module in encoding.modules():
            reset = getattr(module, "reset_parameters", None)
            if reset is not None:
                reset()
    want = dict(fresh.named_parameters())
    for name, parameter in empty.named_parameters():
        expect_same({"result": parameter}, {"result": want[name]}, f"{name} after reset_parameters")
    _check_equal(subject, empty, fresh, "after to_empty and reset_parameters")


def compiling(subject: Subject) -> None:
    """Compiled without graph breaks, once for all lengths, it agrees, to the bit if it is fixed."""
    torch.compiler.reset()  # classes that were compiled often before would not be compiled again
    try:
        backend = _backend()
        _compare_compiled(subject, backend, ((MANY, MORE), (SOME, FEW)), floats=False)
        # The same bits are promised at integer coordinates only, and kernels for real ones take seconds to compile.
        without = "aot_eager" if backend == "inductor" else backend
        _compare_compiled(subject, without, ((SOME, FEW),), floats=True)
    finally:
        torch.compiler.reset()


def _compare_compiled(subject: Subject, backend: str, sizes: Sequence[tuple[int, int]], floats: bool) -> None:
    from torch._dynamo.exc import RecompileError  # slow to import

    compiled = torch.compile(subject.fresh(), fullgraph=True, dynamic=True, backend=backend)
    for place, (n, m) in enumerate(sizes):
        inputs = subject.inputs(n, m, floats=floats)
        want = subject.call(subject.fresh(), inputs)
        what = f"compiled by {backend}, with {n} tokens at {'real' if floats else 'integer'} coordinates"
        with torch._dynamo.config.patch(error_on_recompile=place > 0):
            try:
                got = subject.call(compiled, inputs)
            except RecompileError as error:
                why = str(error).strip().splitlines()[-1].strip(" -")
                raise Violation(f"{what}: expected the code of other sizes, got code compiled anew: {why}") from None
        expect_same(got, want, what, 0.0 if subject.fixed else 1e-6)


def _backend() -> str:
    """Inductor, or where no C++ compiler is, what traces and runs without one."""
    compiler = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
    return "inductor" if shutil.which(compiler) else "aot_eager"


def _check_equal(subject: Subject, got: nn.Module, want: nn.Module, what: str) -> None:
    for floats in (False, True):
        inputs = subject.inputs(floats=floats)
        expect_same(subject.call(got, inputs), subject.call(want, inputs), what)


def _check_precision(subject: Subject, got: Outputs, want: Outputs, what: str, low: torch.dtype | None = None) -> None:
    """The same bits, or as close as the dtype allows in which a learned encoding gives or rounds its results."""
    for name, result in got.items():
        tolerance = 0.0
        if not subject.fixed:
            coarse = low if low is not None and subject.kind == "additive" else result.dtype
            tolerance = 8 * torch.finfo(coarse).eps
        expect_same({name: result}, {name: want[name]}, what, tolerance)


def _to_meta(inputs: Inputs) -> Inputs:
    return {name: value.to("meta") if isinstance(value, Tensor) else value for name, value in inputs.items()}
