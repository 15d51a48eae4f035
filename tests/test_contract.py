import os

import pytest

from mmpos import create_encoding
from mmpos.factory import ENCODINGS
from mmpos.testing import POINTS, check_encoding, modules
from tests.configurations import CONFIGURATIONS

LONG = int(os.environ.get("MMPOS_EXAMPLES", "1")) > 1
NAMES = sorted(ENCODINGS)  # before tests register encodings of their own


def test_every_encoding_of_the_factory_has_configurations():
    assert sorted(CONFIGURATIONS) == NAMES


CASES = [
    pytest.param(name, arguments, LONG or number == 0, id=f"{name}-{number}")
    for name, all_arguments in CONFIGURATIONS.items()
    for number, arguments in enumerate(all_arguments)
]


@pytest.mark.parametrize("name, arguments, kernels", CASES)
def test_it_keeps_the_contract(name, arguments, kernels, monkeypatch):
    if not kernels:  # which take most of the time: in the short form one configuration of each has them, others a graph
        monkeypatch.setattr(modules, "_backend", lambda: "eager")
    report = check_encoding(create_encoding(name, **arguments))
    assert {*report.passed, *report.skipped} == set(POINTS)
