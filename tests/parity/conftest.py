"""Comparisons with a package that is not installed are skipped; MMPOS_REQUIRE_PARITY=1 makes that a failure."""

import os

import pytest

REQUIRED = os.environ.get("MMPOS_REQUIRE_PARITY") == "1"


def refuse_skip(report):
    if REQUIRED and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"MMPOS_REQUIRE_PARITY=1, but: {reason}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report():
    return refuse_skip((yield))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    return refuse_skip((yield))
