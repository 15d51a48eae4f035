"""What a call may come to: the right result, or a ValueError or TypeError of ours that names the argument."""

import inspect
import os
import random
import re
import traceback
import warnings
from collections.abc import Callable, Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from torch import Tensor

import mmpos
from tests.calendar.reference import NOTHING

PACKAGE = str(Path(mmpos.__file__).parent)

# The long form: MMPOS_EXAMPLES=50 runs fifty times as many examples, more than 20,000 in all, other ones each time.
TIMES = int(os.environ.get("MMPOS_EXAMPLES", "1"))


def examples(count: int) -> settings:
    """Settings of a test that tries so many examples in CI, always the same."""
    return settings(
        max_examples=count * TIMES,
        derandomize=TIMES == 1,
        database=None,
        deadline=None,
        phases=[Phase.explicit, Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )


class Call(NamedTuple):
    """A public function, a strategy for each of its arguments, and what is right of its result."""

    function: Callable[..., Any]
    arguments: Mapping[str, st.SearchStrategy]
    right: Callable[..., bool] = lambda result, **arguments: True
    names: frozenset[str] = frozenset()
    """Names, besides those of its arguments, that an error may have."""


FLOATS = [torch.float64, torch.float32]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
OTHERS = [torch.bool, torch.float16, torch.bfloat16, torch.complex64, torch.float8_e4m3fn, torch.uint16, torch.uint64]
NUMBERS = [0, 1, 2, 3, 5, 11, -1, -7, 127, 255, 300, 2**24, 2**31 - 1, -(2**31), 2**53 + 1, 2**62, -(2**63), 2**63 - 1]
REALS = [*NUMBERS, 0.5, -2.25, 1e-300, 1e30, -1e300, torch.nan, torch.inf, -torch.inf, -0.0]


@st.composite
def tensors(
    draw: st.DrawFn,
    dtypes: list[torch.dtype] | None = None,
    shapes: st.SearchStrategy[tuple[int, ...]] | None = None,
    values: list[float] | None = None,
    devices: tuple[str, ...] = ("cpu", "cpu", "cpu", "meta"),
) -> Tensor:
    """Tensors of any dtype, shape and stride, with whatever values the dtype holds."""
    dtype = draw(st.sampled_from(dtypes or [*FLOATS, *INTEGERS, *OTHERS]))
    shape = draw(st.lists(st.integers(0, 4), max_size=4).map(tuple) if shapes is None else shapes)
    device = draw(st.sampled_from(devices))
    layout = draw(st.sampled_from(["plain", "plain", "turned", "stepped", "expanded", "slope"]))
    chance = random.Random(draw(st.integers(0, 2**16)))
    if layout == "turned" and len(shape) > 1:
        return _filled((*shape[:-2], shape[-1], shape[-2]), dtype, values, chance, device).mT
    if layout == "stepped" and shape:
        return _filled((*shape[:-1], 2 * shape[-1]), dtype, values, chance, device)[..., ::2]
    if layout == "expanded" and shape:
        return _filled((1, *shape[1:]), dtype, values, chance, device).expand(shape)
    found = _filled(shape, dtype, values, chance, device)
    return found.requires_grad_() if layout == "slope" and dtype in FLOATS else found


def _filled(shape: tuple[int, ...], dtype: torch.dtype, values: Any, chance: random.Random, device: str) -> Tensor:
    count = int(np.prod(shape, dtype=int))
    if dtype.is_floating_point or dtype.is_complex:
        found = torch.tensor(chance.choices(values or REALS, k=count), dtype=torch.float64)
    else:
        low, high = (0, 1) if dtype == torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
        pool = [
            int(value) for value in values or NUMBERS if abs(value) < 2**64 and low <= value <= min(high, 2**63 - 1)
        ]
        found = torch.tensor(chance.choices(pool or [0], k=count), dtype=torch.int64)
    return found.to(dtype).reshape(shape).to(device)


ODD = [
    None, True, False, -1, 0, 1, 3, 2.5, -0.5, float("nan"), float("inf"), 10**30, -(2**63), 2**63, 10**400, "", "text",
    "1e-4", "nan", b"bytes", 1j, [], (), {}, [1, 2], (1, "a"), [[1], [2, 3]], [None], {"a": 1}, {1, 2}, object, len,
    torch.float32, Decimal("NaN"), Decimal(3), Fraction(1, 3), np.float32(1.5), np.int64(3), np.array([1.0, 2.0]),
    NOTHING, range(3), date(2024, 2, 29), datetime(2024, 2, 29, 1), timedelta(1), slice(None), ...,
]  # fmt: skip


def odd() -> st.SearchStrategy[Any]:
    """Anything at all."""
    return st.one_of(st.sampled_from(ODD), st.sampled_from(ODD), tensors(), st.text(max_size=5), st.floats())


@st.composite
def arguments_of(draw: st.DrawFn, call: Call) -> dict[str, Any]:
    """Arguments of a call, some of them wrong."""
    names = list(call.arguments)
    if not names:
        return {}
    wrong = draw(st.sets(st.sampled_from(names), max_size=2)) if draw(st.integers(0, 3)) else set()
    return {name: draw(odd() if name in wrong else strategy) for name, strategy in call.arguments.items()}


def check_outcome(call: Call, arguments: dict[str, Any]) -> Any:
    """Makes a call; fails unless it is right or refused as it should be. Returns the result, or None."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            result = call.function(**arguments)
        except Exception as error:
            check_refusal(error, {*inspect.signature(call.function).parameters, *call.names})
            return None
    assert call.right(result, **arguments), f"wrong result {result!r}"
    return result


def check_refusal(error: BaseException, names: set[str]) -> None:
    """Fails unless an error is a ValueError or TypeError raised in the package, with the name of an argument in it."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{type(error).__name__} at {where.filename}:{where.lineno}: {error}"
    if type(error) not in (ValueError, TypeError) or not where.filename.startswith(PACKAGE):
        raise AssertionError(f"not refused but failed: {place}") from error
    if not any(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", str(error)) for name in names):
        raise AssertionError(f"names none of {', '.join(sorted(names))}: {place}") from error
