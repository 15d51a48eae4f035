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
