import os

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
def same_seed():
    torch.manual_seed(0)
