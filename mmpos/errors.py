"""What a user's errors are, and what is said of them: one line each."""

import argparse
import difflib
import importlib
import inspect
import re
from pickle import UnpicklingError

from lightning.fabric.utilities.exceptions import MisconfigurationException

from . import data, training
from .training.checkpoints import explain_unpickling
from .training.faults import explain_fault

DEBUG = "MMPOS_DEBUG"
USER_ERRORS = (
    argparse.ArgumentError,
    ImportError,
    MisconfigurationException,
    OSError,
    TypeError,
    UnpicklingError,
    ValueError,
)
# Lines in which jsonargparse lists the members of a union and why each does not fit.
NOISE = re.compile(
    r"Does not|Subtypes:|Errors:|- Expected a <class 'NoneType'>|Given value type:|Given value: (\{|\w+\()"
)


def explain(error: BaseException) -> str:
    """What is wrong in one line, without the machinery around it."""
    if fault := explain_fault(error):
        return fault
    if isinstance(error, UnpicklingError):
        return f"the checkpoint is refused: {explain_unpickling(error)}"
    while str(error).startswith("Does not validate") and error.__cause__ is not None:
        error = error.__cause__  # what the constructor raised
    lines = [line.strip() for line in str(error).splitlines()]
    if "Original Traceback" in str(error):  # of a process that loads images
        lines = [lines[-1].partition(": ")[2]]
    text = " ".join(line.removeprefix("- ") for line in lines if not NOISE.match(line))
    if unknown := re.search(r"dot import path string: (\S+)", text):
        return f"unknown class {unknown[1]!r}; known: {', '.join(sorted([*data.__all__, *training.__all__]))}"
    if unknown := re.search(r"class_path '(\S+)\.(\w+)': Option '(\w+)' is not accepted", text):
        module, name, option = unknown.groups()
        options = inspect.signature(getattr(importlib.import_module(module), name)).parameters
        close = difflib.get_close_matches(option, options, n=1)
        hint = f"did you mean {close[0]!r}? Known" if close else "known"
        return f"{name} has no argument {option!r}; {hint}: {', '.join(sorted(options))}"
    return text
