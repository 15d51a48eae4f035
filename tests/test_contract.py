import pytest

from mmpos import create_encoding
from mmpos.encodings.rotary import XPos
from mmpos.factory import ENCODINGS
from mmpos.scaling import DynamicNTK, LongRoPE, YaRN
from mmpos.spectra import Given, Learned, Mixed, Sections
from mmpos.testing import POINTS, check_encoding

NAMES = sorted(ENCODINGS)  # before tests register encodings of their own

CONFIGURATIONS = {
    "ALiBi": [{"num_heads": 5}, {"num_heads": 12, "axes": 2}, {"num_heads": 8, "axes": 3}],
    "LearnedTable": [{"dim": 10, "size": 17}, {"dim": 6, "size": (7, 5)}, {"dim": 5, "size": (3, 4, 2)}],
    "RoPE": [
        {"head_dim": 16},
        {"head_dim": 24, "axes": 2, "base": 100.0, "layout": "interleaved"},
        {"head_dim": 20, "axes": 3, "rotary_dim": 18},
        {"head_dim": 12, "axes": 2, "spectrum": Given(((1.0, 0.3, -0.2), (0.0, 0.5, 7.0)))},
        {"head_dim": 12, "axes": 2, "spectrum": Mixed(), "num_heads": 6, "num_kv_heads": 3, "layout": "interleaved"},
        {"head_dim": 14, "spectrum": Learned(), "num_heads": 5, "rotary_heads": 2},
        {"head_dim": 16, "axes": 3, "spectrum": Sections((2, 3, 3)), "scaling": (YaRN(4, 64), None, None)},
        {"head_dim": 14, "scaling": DynamicNTK(2, train_length=100)},
        {"head_dim": 12, "scaling": LongRoPE((1, 1, 1, 2, 3, 4), (1, 2, 3, 4, 5, 6), train_length=100, factor=4)},
        {"head_dim": 10, "xpos": XPos()},
    ],
    "Sinusoidal": [{"dim": 14}, {"dim": 20, "axes": 2, "base": 100.0}, {"dim": 18, "axes": 3}],
}


def test_every_encoding_of_the_factory_has_configurations():
    assert sorted(CONFIGURATIONS) == NAMES


CASES = [
    pytest.param(name, arguments, id=f"{name}-{number}")
    for name, all_arguments in CONFIGURATIONS.items()
    for number, arguments in enumerate(all_arguments)
]


@pytest.mark.parametrize("name, arguments", CASES)
def test_it_keeps_the_contract(name, arguments):
    report = check_encoding(create_encoding(name, **arguments))
    assert {*report.passed, *report.skipped} == set(POINTS)
