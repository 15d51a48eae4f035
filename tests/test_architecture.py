"""The package as text: imports point one way, importing is light, and what must not come in has not."""

import ast
import functools
import json
import statistics
import subprocess
import sys
from pathlib import Path

import jaxtyping
import pytest
import torch
from jaxtyping import Float
from torch import Tensor

import mmpos
from mmpos.encodings.turn import formula
from mmpos.factory import ENCODINGS, INTERFACES
from tests import shape_checks

ROOT = Path(mmpos.__file__).parent
FILES = {path.relative_to(ROOT).as_posix(): path for path in sorted(ROOT.rglob("*.py"))}
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in FILES.items()}

# What a layer imports lies in its own line or in one above. A new file needs a place here.
LAYERS = [
    {
        "arguments",
        "coords",
        "multimodal",
        "transforms",
        "calendar",
        "phases",
        "frequencies",
        "spectra",
        "scaling",
        "resample",
    },
    {"encodings", "layout"},
    {"presets", "values", "catalogue", "factory"},
    {"masks", "attend"},
    {"models", "adapters"},
    {"training", "data", "diagnostics", "testing"},
    {"errors"},
    {"cli"},
    {"compare", "__main__"},
]
LAYER = {name: depth for depth, names in enumerate(LAYERS) for name in names}
CORE = [name for name in TREES if LAYER.get(name.split("/")[0].removesuffix(".py"), 9) <= LAYER["attend"]]

# Loaded when they are used, not by `import mmpos`.
LATE = [
    "lightning", "pytorch_lightning", "timm", "torchvision", "sklearn", "yaml", "rich", "jsonargparse", "pandas",
    "matplotlib", "transformers", "torch.nn.attention.flex_attention", "torch._dynamo", "torch._inductor",
]  # fmt: skip


def imports(name):
    """What a file imports from the package, as paths below it: ``("encodings", "base")``, or ``()`` for the root."""
    here = ("mmpos", *Path(name).parts[:-1])
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.Import):
            found = [tuple(alias.name.split(".")) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = here[: len(here) - node.level + 1] if node.level else ()
            origin = (*above, *(node.module.split(".") if node.module else ()))
            # `from . import data` names modules, `from .coords import grid_coords` names what is in one.
            found = [(*origin, alias.name) if len(origin) == 1 else origin for alias in node.names]
        else:
            continue
        yield from (path[1:] for path in found if path[0] == "mmpos")


def part(path):
    return path[0].removesuffix(".py") if path else ""


@pytest.mark.parametrize("name", [name for name in TREES if name != "__init__.py"])
def test_imports_point_one_way(name):
    own = part(Path(name).parts)
    assert own in LAYER, f"mmpos/{name} has no place in the order of layers"
    for path in imports(name):
        if path and part(path) in LAYER:
            assert LAYER[part(path)] <= LAYER[own], f"mmpos/{name} imports {'.'.join(path)} of a later layer"
        else:
            assert LAYER[own] > LAYER["attend"], f"mmpos/{name} imports the package's root, which imports it"


def test_parts_do_not_import_each_other_in_a_circle():
    graph = {own: set() for own in LAYER}
    for name in TREES:
        if name != "__init__.py":
            own = part(Path(name).parts)
            graph[own] |= {part(path) for path in imports(name) if part(path) in LAYER} - {own}
    while graph:
        leaves = [own for own, needed in graph.items() if not needed & graph.keys()]
        assert leaves, f"imports go in a circle among {sorted(graph)}"
        for own in leaves:
            del graph[own]


def test_adapters_see_encodings_and_attention_only():
    seen = {"adapters", "coords", "scaling", "spectra", "encodings", "attend", "resample", "frequencies", "transforms"}
    for name in TREES:
        if name.startswith("adapters"):
            assert {part(path) for path in imports(name)} <= seen, name


IMPORT = """
import json, sys, time
start = time.process_time()
import torch
torch_seconds = time.process_time() - start
before, seconds = set(sys.modules), []
for run in range(5):
    for name in set(sys.modules) - before:
        del sys.modules[name]
    start = time.process_time()
    import mmpos
    seconds.append(time.process_time() - start)
print(json.dumps({"torch": torch_seconds, "seconds": seconds, "modules": sorted(set(sys.modules) - before)}))
"""


@pytest.fixture(scope="module")
def fresh_import():
    """`import mmpos` over `import torch`, in a process of its own: processor seconds, and what was loaded."""
    run = subprocess.run([sys.executable, "-c", IMPORT], cwd=ROOT.parent, capture_output=True, check=True)
    return json.loads(run.stdout)


def test_import_is_light(fresh_import):
    loaded = fresh_import["modules"]
    heavy = [name for name in loaded for late in LATE if name == late or name.startswith(late + ".")]
    assert not heavy
    assert "mmpos.attend" in loaded
    assert not {"mmpos.models", "mmpos.data", "mmpos.training", "mmpos.testing", "mmpos.cli"} & set(loaded)


def test_import_is_quick(fresh_import):
    assert statistics.median(fresh_import["seconds"]) < fresh_import["torch"] / 5


def test_public_names_are_there():
    assert len(set(mmpos.__all__)) == len(mmpos.__all__)
    for name in mmpos.__all__:
        assert getattr(mmpos, name).__doc__, name
    with pytest.raises(AttributeError, match="has no attribute 'rope'"):
        _ = mmpos.rope


def calls(tree):
    """Names of what is called or decorates: ``lru_cache`` of ``functools.lru_cache(...)``."""
    for node in ast.walk(tree):
        parts = [node.func] if isinstance(node, ast.Call) else getattr(node, "decorator_list", [])
        for called in parts:
            yield called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")


def functions(tree):
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


@pytest.mark.parametrize("name", TREES)
def test_no_cache_remembers_a_length(name):
    caches = {"lru_cache", "cache", "cached_property"}
    remembering = {fn.name for fn in functions(TREES[name]) if caches & set(calls(fn))}
    assert remembering <= ({"_compiled"} if name == "attend/flex.py" else set())  # a kernel for each kind of device
    arguments = {arg.arg for fn in functions(TREES[name]) for arg in (*fn.args.args, *fn.args.kwonlyargs)}
    assert not arguments & {"max_seq_len", "max_len", "max_length", "max_position_embeddings"}


@pytest.mark.parametrize("name", CORE)
def test_the_core_holds_no_buffers_and_guesses_no_kinds(name):
    assert not {"register_buffer", "Buffer", "hasattr"} & set(calls(TREES[name]))


@pytest.mark.parametrize("name", CORE)
def test_arguments_are_named(name):
    # Where a name chooses the function, its arguments come from outside with it; they are checked there.
    open_ended = {fn.name for fn in functions(TREES[name]) if fn.args.kwarg}
    checked = {"factory.py": "create_encoding", "multimodal/rows.py": "multimodal_coords"}
    assert open_ended <= {checked.get(name)}


def test_there_is_one_grid():
    assert [name for name, tree in TREES.items() if "meshgrid" in calls(tree)] == ["coords.py"]


@pytest.mark.parametrize("name", [name for name in CORE if part(Path(name).parts) != "attend"])
def test_angles_are_products_that_autocast_leaves_alone(name):
    if part(Path(name).parts) in LAYERS[0] or name == "encodings/rotary.py":
        assert not {"einsum", "matmul", "mm", "bmm", "tensordot", "outer", "linear"} & set(calls(TREES[name]))
        assert not [node for node in ast.walk(TREES[name]) if isinstance(node, ast.MatMult)]


@pytest.mark.parametrize("name", ENCODINGS)
def test_an_encoding_implements_an_interface_and_inherits_nothing_else(name):
    kind, encoding = ENCODINGS[name]
    if isinstance(encoding, type):
        assert encoding.__bases__ == (INTERFACES[kind],)
        assert encoding.__name__ == name


def test_shapes_in_signatures_are_checked_while_tests_run():
    x, cos, sin = torch.zeros(1, 2, 3, 4), torch.zeros(1, 3, 2), torch.zeros(1, 1, 2)
    formula(x, cos, cos, "half")
    for _ in range(2):  # what failed is no more right the second time
        with pytest.raises(jaxtyping.TypeCheckError, match="sin"):
            formula(x, cos, sin, "half")
    with pytest.raises(jaxtyping.TypeCheckError, match="cos"):
        formula(x, cos.long(), cos.long(), "half")


def test_what_a_function_gives_is_checked_while_tests_run():
    """Results of other shapes than announced, after others that were right: one, in a tuple, in a list."""

    def give(x: Float[Tensor, "n"], gives) -> Float[Tensor, "n"]:
        return gives

    def pair(x: Float[Tensor, "n"], gives) -> tuple[Float[Tensor, "n"], Float[Tensor, "n"]]:
        return gives

    def many(x: Float[Tensor, "n"], gives) -> tuple[Float[Tensor, "n"], ...]:
        return gives

    def some(x: Float[Tensor, "n"], gives) -> list[Float[Tensor, "n"]]:
        return gives

    checked = functools.partial(jaxtyping.jaxtyped, typechecker=shape_checks.check)
    right, wrong = torch.zeros(3), torch.zeros(4)
    for function, good, bad in (
        (give, right, wrong), (pair, (right, right), (right, wrong)), (some, [right], [wrong]),
        (many, (right,), (wrong,)),
    ):  # fmt: skip
        function.__module__ = "mmpos"
        function = checked(function)
        for _ in range(2):
            assert function(right, gives=good) is good
            with pytest.raises(jaxtyping.TypeCheckError, match=function.__name__):
                function(right, gives=bad)
    for count in range(1, 11):  # one item is looked at by chance: what passed is looked at again
        with pytest.raises(jaxtyping.TypeCheckError, match="many"):
            [function(right, gives=(wrong, *[right] * count)) for _ in range(500)]
