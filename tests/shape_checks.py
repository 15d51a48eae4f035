"""Shapes in the signatures of mmpos, checked while the tests run: jaxtyping's import hook with beartype.

The package's own errors come first: arguments are compared with a signature after the call, so whatever a function
refuses itself, it refuses in its own words, and whatever it lets through must have the shape that it announces.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any, get_args

import jaxtyping
import torch
from beartype import BeartypeConf, beartype

CHECKED: list[Callable] = []


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


def _jaxtyped(plain: Callable, *targets: Callable, **options: Any) -> Callable:
    """`jaxtyping.jaxtyped`, but Dynamo, which cannot trace the checks, sees functions of mmpos as they are."""
    if not targets:
        return functools.partial(_jaxtyped, plain, **options)
    (target,) = targets
    if torch.compiler.is_compiling():  # a function within a function
        return target
    checked = plain(target, **options)
    if not inspect.isfunction(target) or target.__module__.partition(".")[0] != "mmpos":
        return checked
    place = len(CHECKED)
    CHECKED.append(checked)

    @functools.wraps(target)
    def call(*args, **kwargs):
        if (
            torch.compiler.is_compiling()
        ):  # by Dynamo or for export, which would take the sizes at hand for the only ones
            return target(*args, **kwargs)
        return CHECKED[place](*args, **kwargs)  # not held in a cell, which Dynamo would look into

    return call
