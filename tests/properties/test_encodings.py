"""Every encoding of the factory: constructors, by name and by spec, and calls with any coordinates and contents."""

import inspect
import math

import torch
from hypothesis import given
from hypothesis import strategies as st

import mmpos
from mmpos import factory
from mmpos.testing.subject import TOKEN_AXES, Subject
from tests.test_contract import CONFIGURATIONS

from .outcomes import FLOATS, INTEGERS, Call, check_outcome, check_refusal, examples, odd, tensors

CASES = [(name, arguments) for name, all_arguments in CONFIGURATIONS.items() for arguments in all_arguments]
BUILT = [mmpos.create_encoding(name, **arguments) for name, arguments in CASES]

# Words in errors for what a nested argument is called.
NESTED = {"parts", "on", "axes", "coords", "size", "freqs", "series", "factors", "width", "waves", "pairs", "slot"}


@st.composite
def constructions(draw):
    """A name with arguments, of which one or two are wrong."""
    name, arguments = draw(st.sampled_from(CASES))
    known = list(inspect.signature(mmpos.factory.ENCODINGS[name][1]).parameters)
    wrong = draw(st.sets(st.sampled_from(known), min_size=1, max_size=2))
    return name, {**arguments, **{key: draw(odd()) for key in wrong}}


@examples(90)
@given(made=constructions())
def test_encodings_are_built_or_refused(made):
    check_construction(made)


def check_construction(made):
    name, arguments = made
    try:
        encoding = mmpos.create_encoding(name, **arguments)
    except Exception as error:
        check_refusal(error, {*inspect.signature(factory.ENCODINGS[name][1]).parameters, *NESTED})
        return
    subject = Subject(encoding)
    inputs = {key: part[:0] if key == "coords" else part for key, part in subject.inputs(3, 2).items()}
    subject.call(encoding, inputs)


@st.composite
def calls(draw):
    """An encoding and what it is called with: right in number, but of any dtype, values, strides and rows, or wrong."""
    encoding = draw(st.sampled_from(BUILT))
    subject = Subject(encoding)
    n, m, rows = draw(st.integers(0, 4)), draw(st.integers(0, 4)), draw(st.sampled_from([(), (2,), (0,), (2, 3)]))
    inputs = subject.inputs(n, m, rows)
    meta = draw(st.integers(0, 4)) == 0
    for place, key in enumerate(TOKEN_AXES[subject.kind]):
        example = subject.example(4).flatten().tolist() if subject.example is not None else None
        values = draw(st.sampled_from([None, example or [0, 1, 3], example or [0.25, -7]]))
        shape = (*rows, (n, m)[place], subject.axes)
        device = "meta" if meta else "cpu"
        inputs[key] = draw(tensors([*FLOATS, *INTEGERS], st.just(shape), values, (device,)))
    if meta:
        inputs = {key: part.to("meta") if isinstance(part, torch.Tensor) else part for key, part in inputs.items()}
        encoding = subject.fresh().to("meta")
    if "length" in inputs:
        inputs["length"] = draw(st.sampled_from([8192, 0, None, 1, torch.full(rows, 300)]))
    whole = draw(st.booleans())
    if not whole:
        inputs[draw(st.sampled_from(list(inputs)))] = draw(odd())
    return encoding, inputs, (n, m, rows) if whole else None


@examples(110)
@given(made=calls())
def test_calls_are_right_or_refused(made):
    check_call(made)


def check_call(made):
    encoding, inputs, shape = made
    subject = Subject(encoding)
    names = frozenset({*inputs, "coords", type(encoding).__name__, "train_length"})
    result = check_outcome(Call(encoding, {}, names=names), inputs)
    if result is None or shape is None:
        return
    n, m, rows = shape
    parts = [result] if isinstance(result, torch.Tensor) else [result.cos, result.sin]
    for part in parts:
        if subject.kind == "bias":
            assert part.shape[-2:] == (n, m), part.shape
            assert part.shape[:-3] == rows or math.prod(rows) == 1
        elif subject.kind == "scale":
            assert part.shape[-1] == n, part.shape
        else:
            assert part.shape[-2] == n, part.shape
            assert part.shape[: len(rows)] == rows, part.shape
        assert part.dtype in (torch.float32, torch.float64)
    if parts[0].is_meta or subject.kind == "scale":
        return
    # A token gets NaN where its coordinates are no numbers, and a number where they are such as an index can be.
    for key, axis in TOKEN_AXES[subject.kind].items():
        coords = inputs[key].double()
        lost, sound = ~coords.isfinite().all(-1), (coords.abs() < 2**31).all(-1)
        other = [inputs[each].double() for each in TOKEN_AXES[subject.kind] if each != key]
        if any(not bool((each.abs() < 2**31).all()) for each in other):
            continue
        for part in parts:
            part = part.detach().movedim(axis, len(rows)).flatten(len(rows) + 1) if part.numel() else part[..., :0]
            if part.numel():
                assert bool(part.isnan().all(-1)[lost].all()), f"{key}: no NaN at {coords[lost]}"
                assert not bool(part[sound].isnan().any()), f"{key}: NaN at {coords[sound]}"
