"""Shapes in the signatures of mmpos, checked while the tests run: jaxtyping's import hook with beartype.

The package's own errors come first: arguments are compared with a signature after the call, so whatever a function
refuses itself, it refuses in its own words, and whatever it lets through must have the shape that it announces. What a
function took and gave before, by types and shapes, is not compared again.
"""

import functools
import inspect
import threading
from collections.abc import Callable, Hashable, Iterable
from typing import Any, get_args, get_origin

import jaxtyping
import torch
from beartype import BeartypeConf, beartype
from torch import Tensor

CHECKS: list[Callable] = []


def install() -> None:
    """Checks all of mmpos that is imported from here on."""
    jaxtyping.jaxtyped = functools.partial(_jaxtyped, jaxtyping.jaxtyped)
    jaxtyping.install_import_hook("mmpos", f"{__name__}.check")


def check(function: Callable) -> Callable:
    """Compares arguments and result of a call with the shapes in its signature.

    jaxtyping asks twice: before the call, with the arguments and no type of the result, and after it, with both.
    """
    if function.__annotations__.get("return", Any) is Any:
        return function
    for name, hint in function.__annotations__.items():
        if not _has_shape(hint):
            function.__annotations__[name] = Any  # plain types are pyright's
    return beartype(function, conf=BeartypeConf(is_pep484_tower=True))


def _has_shape(hint: Any) -> bool:
    own = isinstance(hint, type) and issubclass(hint, jaxtyping.AbstractArray)
    return own or any(map(_has_shape, get_args(hint)))


def _is_of_many(hint: Any) -> bool:
    """Whether a value may hold any number of items, of which beartype looks at one by chance."""
    args, origin = get_args(hint), get_origin(hint)
    items = isinstance(origin, type) and issubclass(origin, Iterable) and (origin is not tuple or ... in args)
    return items or any(map(_is_of_many, args))


def _jaxtyped(plain: Callable, *targets: Callable, **options: Any) -> Callable:
    """`jaxtyping.jaxtyped`, but Dynamo, which cannot trace the checks, sees functions of mmpos as they are."""
    if not targets:
        return functools.partial(_jaxtyped, plain, **options)
    (target,) = targets
    if torch.compiler.is_compiling():  # a function within a function
        return target
    if not inspect.isfunction(target) or target.__module__.partition(".")[0] != "mmpos":
        return plain(target, **options)
    if not any(map(_has_shape, target.__annotations__.values())):
        return target
    place = len(CHECKS)
    CHECKS.append(_comparison(functools.partial(plain, **options), target))

    @functools.wraps(target)
    def call(*args, **kwargs):
        result = target(*args, **kwargs)
        if not torch.compiler.is_compiling():  # or the sizes at hand would be taken for the only ones
            CHECKS[place](result, args, kwargs)  # not held in a cell, which Dynamo would look into
        return result

    return call


def _comparison(checked: Callable, target: Callable) -> Callable[[Any, tuple, dict], None]:
    """Raises if a result and the arguments that it is of do not have the shapes in the signature of ``target``."""
    given, seen = threading.local(), set()
    samples = any(_has_shape(hint) and _is_of_many(hint) for hint in target.__annotations__.values())

    @checked
    @functools.wraps(target)
    def answer(*args, **kwargs):
        return given.result

    def compare(result: Any, args: tuple, kwargs: dict) -> None:
        try:
            key = _kind((args, kwargs, result))
            if key in seen:
                return
        except TypeError:
            key = None
        given.result = result
        try:
            answer(*args, **kwargs)
        finally:
            del given.result  # or it would be kept
        if key is not None and not samples:
            seen.add(key)

    return compare


def _kind(value: Any) -> Hashable:
    """All that a comparison looks at: types, and the dtype and shape of a tensor; TypeError for what may hold more."""
    kind = type(value)
    if kind is Tensor or kind is torch.nn.Parameter:
        return value.dtype, value.shape
    if kind is tuple or (issubclass(kind, tuple) and hasattr(kind, "_fields")):
        return kind, *map(_kind, value)
    if kind is dict:
        return kind, *((name, _kind(item)) for name, item in value.items())
    if kind is str:
        return value
    if issubclass(kind, Tensor | list | set | dict | tuple):  # which may hold tensors
        raise TypeError(f"{kind} is compared each time")
    return kind
