import os
import sys

import pytest
import torch

from tests import shape_checks

shape_checks.install()


def pytest_configure(config):
    # Tests run side by side, one process a core: neither torch nor its compiler should take more than one.
    if "PYTEST_XDIST_WORKER" in os.environ:
        torch.set_num_threads(1)
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")


@pytest.fixture(autouse=True)
def same_start():
    """Every test has the same random numbers, and no compiled code of tests before it, of which there is a most."""
    torch.manual_seed(0)
    yield
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
