"""All points in reading order, and the function that checks them."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import nn

from . import calls, gradients, mechanisms, modules
from .subject import DoesNotApply, Subject, Violation

POINTS: dict[str, Callable[[Subject], None]] = {
    point.__name__: point
    for point in (
        calls.shapes,
        calls.few_tokens,
        calls.dtypes,
        calls.coordinate_dtypes,
        calls.free_coordinates,
        calls.nonfinite_coordinates,
        calls.length,
        calls.batch,
        calls.token_alone,
        calls.call_order,
        calls.unchanged_inputs,
        calls.wrong_axes,
        calls.half_precision_coordinates,
        calls.boolean_coordinates,
        gradients.parameter_gradients,
        gradients.input_gradients,
        gradients.inference_first,
        modules.state_dict,
        modules.weight_decay,
        modules.pickling,
        modules.deepcopy,
        modules.casting,
        modules.autocasting,
        modules.meta_device,
        modules.reset_parameters,
        modules.compiling,
        mechanisms.unit_rotation,
        mechanisms.relative_rotation,
        mechanisms.applying,
        mechanisms.inverse_rotation,
        mechanisms.prefix_rotation,
        mechanisms.masked_rotation,
        mechanisms.score,
        mechanisms.factors,
    )
}


class Report(NamedTuple):
    """What `check_encoding` found in order."""

    passed: tuple[str, ...]
    skipped: dict[str, str]
    """Points that say nothing about this encoding, and why."""


class EncodingError(AssertionError):
    """An encoding that fails points of the suite; the message and ``failures`` name each of them."""

    def __init__(self, encoding: nn.Module, failures: dict[str, str], checked: int):
        self.failures = failures
        lines = (f"  {name}: {message}" for name, message in failures.items())
        name = f"{type(encoding).__name__}({encoding.extra_repr()})"
        super().__init__("\n".join([f"{name} fails {len(failures)} of {checked} points", *lines]))


def check_encoding(encoding: nn.Module, *, points: Iterable[str] | None = None) -> Report:
    """Checks that an encoding keeps all promises of its interface; see the module for what they are.

    Args:
        encoding: A built encoding of any of the four interfaces. Only copies of it are called.
        points: Names of the points to check, of ``POINTS``; all unless given.

    Returns:
        Names of the points that it passed, and of those that say nothing about it with the reason.

    Raises:
        EncodingError: If it fails any; the message says for each what was expected and what was got, and the cause is
            the first error that nobody expected.
        TypeError: If it implements none of the interfaces or does not say its ``axes``.
        ValueError: If a point is unknown.

    Example:
        >>> check_encoding(RoPE(head_dim=24, axes=2), points=["relative_rotation", "score"])
        Report(passed=('relative_rotation',), skipped={'score': 'for AttentionBias only'})
    """
    __tracebackhide__ = True
    chosen = list(POINTS if points is None else points)
    unknown = [name for name in chosen if name not in POINTS]
    if unknown:
        raise ValueError(f"unknown points {', '.join(map(repr, unknown))}; known: {', '.join(POINTS)}")
    subject = Subject(encoding)
    passed, skipped, failures, cause = [], {}, {}, None
    for name in chosen:
        try:
            with torch.random.fork_rng(devices=[]), torch.enable_grad():
                POINTS[name](subject)
        except DoesNotApply as reason:
            skipped[name] = str(reason)
        except Violation as violation:
            failures[name] = str(violation)
        except Exception as error:
            first_line = str(error).strip().partition("\n")[0]
            failures[name] = f"expected no error, got {type(error).__name__}: {first_line}"
            cause = cause or error
        else:
            passed.append(name)
    if failures:
        raise EncodingError(encoding, failures, len(chosen) - len(skipped)) from cause
    return Report(tuple(passed), skipped)
