"""Every example in a docstring runs and prints what it says."""

import doctest
import importlib
import pkgutil

import pytest
import torch

import mmpos
from tests.test_readme import BLOCKS

MODULES = sorted(info.name for info in pkgutil.walk_packages(mmpos.__path__, "mmpos."))


@pytest.mark.parametrize("name", MODULES)
def test_examples(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "positions.yaml").write_text(next(code for language, code in BLOCKS if language == "yaml"))
    module = importlib.import_module(name)
    names = {public: getattr(mmpos, public) for public in mmpos.__all__} | {"torch": torch, "mmpos": mmpos}
    failed, _ = doctest.testmod(module, extraglobs=names)
    assert not failed


def test_public_classes_and_functions_have_an_example():
    """The interfaces and values whose use another example shows are named here."""
    shown_elsewhere = {
        "AdditiveEncoding", "AttentionBias", "LogitScale", "RotaryEncoding", "Rotation", "Encodings",
        "register_encoding", "Bands", "Geometric", "Learned", "Mixed", "Periods", "Sections", "Shared", "XPos",
        "jitter", "rescale", "shift", "scaling",
    }  # fmt: skip
    without = {name for name in mmpos.__all__ if ">>>" not in (getattr(mmpos, name).__doc__ or "")}
    assert without == shown_elsewhere
