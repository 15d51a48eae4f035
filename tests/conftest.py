"""Shapes are checked, and where MMPOS_REQUIRE_PARITY=1 a test that is skipped for want of a package fails."""

import gc
import logging
import os
import sys

import pytest

from tests.image_files import NO_FASHION

REQUIRED = os.environ.get("MMPOS_REQUIRE_PARITY") == "1"


def refuse_skip(report):
    if REQUIRED and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not reason.endswith(NO_FASHION):  # Debian has it, pip does not
            report.outcome = "failed"
            report.longrepr = f"MMPOS_REQUIRE_PARITY=1, but: {reason}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report():
    return refuse_skip((yield))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    return refuse_skip((yield))


def pytest_configure(config):
    if config.getoption("numprocesses", None) and "PYTEST_XDIST_WORKER" not in os.environ:
        return  # the tests are for other processes, and this one starts them sooner without packages
    # First: typing remembers a union by its members, and hands one package's float | int to another's int | float, by
    # which --trainer.limit_train_batches=1 would mean every batch.
    import lightning.pytorch  # noqa: F401
    import torch

    from tests import shape_checks

    shape_checks.install()
    # A failing compiled test would print torch's trace. A log_level for all would cost a millisecond a test.
    logging.getLogger("torch.__trace").propagate = False
    # Lightning has torch look for a driver's library whenever its compiler asks for a GPU, which it does all the time.
    if not torch.cuda.is_available():
        os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    # Tests run side by side, one process a core: neither torch nor its compiler should take more than one.
    if "PYTEST_XDIST_WORKER" in os.environ:
        torch.set_num_threads(1)
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")


def pytest_collection_finish():
    # Packages and tests stay: looking through all of them again and again took a tenth of the time.
    gc.freeze()
    gc.set_threshold(*gc.get_threshold()[:2], 200)


@pytest.fixture(autouse=True, scope="session")
def home_is_left_alone(tmp_path_factory):
    """Nothing is read from or written to the user's folders."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
            patch.setenv(name, str(tmp_path_factory.mktemp(name.lower())))
        yield


@pytest.fixture(autouse=True)
def same_start():
    """Every test has the same random numbers, and no compiled code of tests before it, of which there is a most."""
    import torch

    torch.manual_seed(0)
    yield
    os.environ.pop("PL_GLOBAL_SEED", None)  # by which a command of one test would seed the processes of another
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
