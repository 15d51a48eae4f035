import os
from collections import Counter

import pytest
import torch

from mmpos import create_encoding
from mmpos.factory import ENCODINGS
from mmpos.scaling import YaRN
from mmpos.spectra import Sections
from mmpos.testing import POINTS, check_encoding, modules
from mmpos.testing.subject import Subject
from tests.configurations import CONFIGURATIONS

LONG = int(os.environ.get("MMPOS_EXAMPLES", "1")) > 1
NAMES = sorted(ENCODINGS)  # before tests register encodings of their own


def test_every_encoding_of_the_factory_has_configurations():
    assert sorted(CONFIGURATIONS) == NAMES


CASES = [
    pytest.param(name, arguments, number == 0, id=f"{name}-{number}")
    for name, all_arguments in CONFIGURATIONS.items()
    for number, arguments in enumerate(all_arguments)
]


@pytest.mark.parametrize("name, arguments, first", CASES)
def test_it_keeps_the_contract(name, arguments, first, monkeypatch):
    encoding = create_encoding(name, **arguments)
    learns = any(True for _ in encoding.parameters())
    if not LONG and (learns or not first):  # kernels take most of the time: here one of each whose bits are promised
        monkeypatch.setattr(modules, "_backend", lambda: "aot_eager" if first else "eager")
    report = check_encoding(encoding)
    assert {*report.passed, *report.skipped} == set(POINTS)


def lists_of_floats(value):
    """Whether a list at any depth holds a float."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    own = isinstance(value, list) and any(isinstance(item, float) for item in inner)
    return own or any(map(lists_of_floats, inner))


@pytest.mark.parametrize("name, arguments, first", CASES)
def test_numbers_are_held_in_tuples(name, arguments, first):
    """Code that is compiled for any size takes tuples as constants, but each number of a list as an input."""
    for module in create_encoding(name, **arguments).modules():
        assert not [attribute for attribute, value in vars(module).items() if lists_of_floats(value)]


@pytest.mark.parametrize(
    "name, arguments",
    [
        ("Sandwich", {"num_heads": 3, "dim": 16}),
        ("RoPE", {"head_dim": 16, "axes": 3, "spectrum": Sections((2, 3, 3)), "scaling": (YaRN(4, 64), None, None)}),
        ("RoPE", {"head_dim": 16, "scaling": YaRN(4, 64)}),
    ],
    ids=["Sandwich", "RoPE with YaRN on one axis", "RoPE with YaRN"],
)
def test_compiled_for_any_size_numbers_are_constants(name, arguments):
    subject, found = Subject(create_encoding(name, **arguments)), Counter()

    def count(graph, inputs):
        found.update(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    inputs = subject.inputs(9, 7, (2,))
    got = subject.call(torch.compile(subject.fresh(), dynamic=True, fullgraph=True, backend=count), inputs)
    for part, want in subject.call(subject.fresh(), inputs).items():
        assert torch.equal(got[part], want)
    assert found["output"] == 1
    assert not found["item"]
