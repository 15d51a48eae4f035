"""Points about one call: shapes, dtypes, which coordinates are legal, and that nothing but arguments matters."""

import torch
from torch import Tensor

from .subject import (
    FEW,
    LENGTH,
    MANY,
    MORE,
    SOME,
    SPAN,
    DoesNotApply,
    Outputs,
    Subject,
    Violation,
    at_row,
    expect,
    expect_same,
)

BATCHES: tuple[tuple[int, ...], ...] = ((), (2,), (2, 3))


def shapes(subject: Subject) -> None:
    """Results have the shape that the interface says, unbatched and batched, on more than 256 tokens."""
    encoding = subject.fresh()
    widths = _widths(subject, subject.call(encoding, subject.inputs(SOME, FEW)))
    if subject.kind in ("additive", "bias"):
        name, width = "dim" if subject.kind == "additive" else "num_heads", widths["result"][0]
        said = getattr(subject.encoding, name, width)
        expect(width == said, f"expected as many as its {name} ({said}), got {width}")
    for rows in BATCHES:
        n, m = (MANY, MORE) if len(rows) < 2 else (SOME, FEW)
        _check_shapes(subject, subject.call(encoding, subject.inputs(n, m, rows)), widths, rows, n, m)
    inputs = subject.inputs(SOME, FEW, (2, 3))
    for name in subject.token_axes:
        inputs[name] = inputs[name].mT.contiguous().mT
    want = subject.call(encoding, subject.inputs(SOME, FEW, (2, 3)))
    expect_same(subject.call(encoding, inputs), want, "coordinates with other strides")


def few_tokens(subject: Subject) -> None:
    """A single token and none at all are legal."""
    encoding = subject.fresh()
    widths = _widths(subject, subject.call(encoding, subject.inputs(SOME, FEW)))
    pairs = ((1, 1), (1, FEW), (0, FEW), (SOME, 0), (0, 0)) if subject.kind == "bias" else ((1, 0), (0, 0))
    for n, m in pairs:
        for rows in ((), (2,)):
            _check_shapes(subject, subject.call(encoding, subject.inputs(n, m, rows)), widths, rows, n, m)


def dtypes(subject: Subject) -> None:
    """Results are float32; those of learned additive encodings may have the dtype of their parameters."""
    for dtype in (None, torch.bfloat16, torch.float16):
        encoding = subject.fresh() if dtype is None else subject.fresh().to(dtype)
        allowed = {torch.float32}
        if subject.kind == "additive":
            allowed |= {parameter.dtype for parameter in encoding.parameters()}
        for floats in (False, True):
            for name, result in subject.call(encoding, subject.inputs(floats=floats)).items():
                names = " or ".join(sorted(map(str, allowed)))
                cast = "" if dtype is None else f" of the module in {dtype}"
                expect(result.dtype in allowed, f"expected {names} in the {name}{cast}, got {result.dtype}")


def coordinate_dtypes(subject: Subject) -> None:
    """A place is the same place whichever dtype counts it: ``3``, ``3.0`` and ``3`` of 8 bits."""
    encoding, inputs = subject.fresh(), subject.inputs(SOME, FEW, (2,))
    if any(inputs[name].is_floating_point() for name in subject.token_axes):
        raise DoesNotApply("its example_coords are not integers")
    for name in subject.token_axes:
        inputs[name] = inputs[name] % 128 if subject.example is None else inputs[name]
    largest = max(int(inputs[name].max()) for name in subject.token_axes)
    want = subject.call(encoding, inputs)
    for dtype in (torch.int32, torch.int16, torch.int8, torch.uint8, torch.float32, torch.float64):
        if not dtype.is_floating_point and largest > torch.iinfo(dtype).max:
            continue
        other = inputs | {name: inputs[name].to(dtype) for name in subject.token_axes}
        expect_same(subject.call(encoding, other), want, f"coordinates in {dtype} instead of int64", 1e-6)


def free_coordinates(subject: Subject) -> None:
    """Fractional and negative coordinates are legal, however far out."""
    subject.only_without_limits()
    for span in (-1.0, -float(SPAN)):
        inputs = subject.inputs(floats=True, span=span)
        whole = inputs | {name: inputs[name].long() for name in subject.token_axes}
        for legal in (inputs, whole):
            for name, result in subject.call(subject.fresh(), legal).items():
                wrong = int((~result.isfinite()).sum())
                expect(not wrong, f"expected finite numbers at coordinates from {span:g}, got {wrong} others in {name}")


def nonfinite_coordinates(subject: Subject) -> None:
    """A token with a NaN or infinite coordinate gets NaN, and no other token anything else."""
    encoding, inputs = subject.fresh(), subject.inputs(floats=True)
    clean = subject.call(encoding, inputs)
    for name, axis in subject.token_axes.items():
        coords, tokens = inputs[name].clone(), torch.tensor([1, 3, 4], device=subject.device)
        for place, value in enumerate((torch.nan, torch.inf, -torch.inf)):
            coords[tokens[place], place % subject.axes] = value
        got = subject.call(encoding, inputs | {name: coords})
        want = {part: result.index_fill(axis, tokens, torch.nan) for part, result in clean.items()}
        if subject.kind == "scale":  # which need not depend on coordinates
            want = {part: result.where(got[part].isnan(), clean[part]) for part, result in want.items()}
        expect_same(got, want, f"NaN and infinity in 3 of {len(coords)} {name}")


def length(subject: Subject) -> None:
    """A length is an integer, a tensor with one for each row, or None, each row's own."""
    if subject.kind not in ("additive", "rotary"):
        raise DoesNotApply("for AdditiveEncoding and RotaryEncoding only")
    encoding, inputs = subject.fresh(), subject.inputs(SOME, FEW, (2,))
    want = subject.call(encoding, inputs)
    each = torch.full((2,), LENGTH, device=subject.device)
    expect_same(subject.call(encoding, inputs | {"length": each}), want, "length as a tensor instead of an integer")
    inputs["coords"][0] = inputs["coords"][1, :1]  # rows of unequal length
    if subject.example is None:
        inputs["coords"][:, 0] = 0  # a call that starts elsewhere may need a length
    inputs["length"] = None
    _check_rows(subject, inputs, 2, "without a length")


def batch(subject: Subject) -> None:
    """A batch equals its samples one by one."""
    for floats in (False, True):
        _check_rows(subject, subject.inputs(SOME, FEW, (3,), floats=floats), 3, "in a batch")


def token_alone(subject: Subject) -> None:
    """A token gets the same with others beside it as alone, as in a step of decoding with a cache."""
    for floats in (False, True):
        encoding, inputs = subject.fresh(), subject.inputs(floats=floats)
        name, axis = next(iter(subject.token_axes.items()))
        with_it = {name, "query", "tokens", "visible"} if subject.kind in ("bias", "scale") else {name}
        want = {part: result.narrow(axis, 5, 1) for part, result in subject.call(encoding, inputs).items()}
        alone = {
            key: value.narrow(-1 if key == "visible" else -2, 5, 1) if key in with_it else value
            for key, value in inputs.items()
        }
        expect_same(subject.call(encoding, alone), want, "a token alone instead of among 23", 1e-6)


def call_order(subject: Subject) -> None:
    """A call gives the same bits whatever was called before it."""
    calls = [subject.inputs(n, m, seed=seed) for seed, (n, m) in enumerate([(SOME, FEW), (MANY, MORE), (FEW, SOME)])]
    calls.append(subject.inputs(SOME, FEW, floats=True))
    want = [subject.call(subject.fresh(), inputs) for inputs in calls]
    encoding = subject.fresh()
    for number, index in enumerate([0, 1, 0, 3, 2, 1, 2, 0, 3]):
        before = f"call {number + 1} of a module, against the first of another"
        expect_same(subject.call(encoding, calls[index]), want[index], before)


def unchanged_inputs(subject: Subject) -> None:
    """A call does not modify its arguments."""
    for floats in (False, True):
        inputs = subject.inputs(floats=floats)
        before = {name: value.clone() for name, value in inputs.items() if isinstance(value, Tensor)}
        subject.call_in_place(subject.fresh(), inputs)
        for name, value in before.items():
            expect_same({name: inputs[name]}, {name: value}, f"{name} after the call")


def wrong_axes(subject: Subject) -> None:
    """Coordinates with another number of axes, or none, are a ValueError that shows their shape."""
    for name in subject.token_axes:
        inputs = subject.inputs()
        right = inputs[name]
        for wrong in (torch.cat([right, right[..., :1]], -1), right[..., :-1], right[..., 0]):
            error = _error(subject, inputs | {name: wrong})
            label, shape = f"{name} of shape {tuple(wrong.shape)}", str(tuple(wrong.shape))
            expect(isinstance(error, ValueError), f"expected a ValueError for {label}, got {_describe(error)}")
            expect(shape in str(error), f"expected an error that shows the shape {shape}, got {_describe(error)}")


def half_precision_coordinates(subject: Subject) -> None:
    """Coordinates in half precision, which cannot tell neighbours apart past 256, are a TypeError."""
    _check_refused(subject, torch.float16, torch.bfloat16)


def boolean_coordinates(subject: Subject) -> None:
    """Boolean coordinates are a TypeError."""
    _check_refused(subject, torch.bool)


def _check_refused(subject: Subject, *dtypes: torch.dtype) -> None:
    for name in subject.token_axes:
        for dtype in dtypes:
            inputs = subject.inputs()
            error = _error(subject, inputs | {name: inputs[name].to(dtype)})
            expect(isinstance(error, TypeError), f"expected a TypeError for {name} in {dtype}, got {_describe(error)}")


def _error(subject: Subject, inputs: dict) -> Exception | None:
    try:
        subject.call(subject.fresh(), inputs)
    except Violation:
        raise
    except Exception as error:
        return error
    return None


def _describe(error: Exception | None) -> str:
    return "no error" if error is None else f"{type(error).__name__}: {error}"


def _check_rows(subject: Subject, inputs: dict, rows: int, what: str) -> None:
    """Rows of a batch against calls of their own: the same bits unless a learned matrix product rounds otherwise."""
    together = subject.call(subject.fresh(), inputs)
    for row in range(rows):
        alone = subject.call(subject.fresh(), at_row(inputs, row))
        got = {name: result[row] for name, result in together.items()}
        expect_same(got, alone, f"row {row} {what}, against itself alone", 0.0 if subject.fixed else 1e-6)


def _widths(subject: Subject, outputs: Outputs) -> dict[str, tuple[int, ...]]:
    """Sizes of the axes that do not count tokens: channels, heads, heads and pairs."""
    tokens = subject.token_axes.values()
    ndim = {"additive": 2, "rotary": 3, "bias": 3, "scale": 2}[subject.kind]
    for name, result in outputs.items():
        expect(result.ndim == ndim, f"expected a {name} with {ndim} axes, got shape {tuple(result.shape)}")
    return {
        name: tuple(size for axis, size in enumerate(result.shape, -ndim) if axis not in tokens)
        for name, result in outputs.items()
    }


def _check_shapes(subject: Subject, outputs: Outputs, widths: dict, rows: tuple[int, ...], n: int, m: int) -> None:
    for name, result in outputs.items():
        expect(name in widths, f"expected results {', '.join(widths)} at any length, got {name} as well")
        expected = {
            "additive": (*rows, n, *widths[name]),
            "rotary": (*rows, *widths[name][:1], n, *widths[name][1:]),
            "bias": (*rows, *widths[name], n, m),
            "scale": (*rows, *widths[name], n),
        }[subject.kind]
        expect(tuple(result.shape) == expected, f"expected a {name} of shape {expected}, got {tuple(result.shape)}")
