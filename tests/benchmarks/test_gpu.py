"""The script for GPUs in its small form, and what it does with parts that fail or take too long."""

import itertools

import pytest
import torch

from benchmarks import gpu
from benchmarks.device import Setup, correctness
from benchmarks.device.steps import slots
from benchmarks.study import read_rows
from mmpos import LearnedTable
from mmpos.factory import ENCODINGS

SETUP = Setup(torch.device("cpu"), small=True)
NAMES = sorted(ENCODINGS)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("name", gpu.PARTS)
def test_the_small_form_of_a_part(name, tmp_path, capsys):
    code = gpu.main(["--small", "--device", "cpu", "--parts", name, "--output", str(tmp_path)])
    out = capsys.readouterr().out
    assert code == 0, out
    assert "failed" not in out
    assert f"## {name}" in out
    rows = read_rows(tmp_path / f"gpu_{name}.csv")
    assert all(row.get("ok", "yes") == "yes" for row in rows)
    if name == "correctness":
        assert {row["encoding"] for row in rows} == set(NAMES)
        assert {(row["mode"], row["dtype"]) for row in rows} == set(
            itertools.product(("eager", "compiled"), ("float32", "bfloat16"))
        )
    if name == "steps":
        assert {row["encoding"] for row in rows if row["task"] == "text"} == {"none", *NAMES}
        assert {row["encoding"] for row in rows if row["task"] == "vision"} >= {
            "none",
            "RoPE",
            "RoPE, mixed",
            "SwinBias",
        }


def test_correctness_takes_all_configurations_of_the_contract_eager_first():
    items = [about for about, _ in correctness.run(Setup(torch.device("cpu"), small=False))]
    pairs = [(about["encoding"], about["configuration"]) for about in items if about["mode"] == "eager"]
    assert set(pairs) == {
        (name, str(number)) for name, made in correctness.configurations().items() for number in range(len(made))
    }
    assert [about["mode"] for about in items] == ["eager"] * (len(items) // 2) + ["compiled"] * (len(items) // 2)
    assert len({about["encoding"] for about in items[: 2 * len(NAMES)]}) == len(NAMES)


def test_a_wrong_result_is_told(monkeypatch):
    right, calls = correctness.outputs, []

    def wrong(*arguments):  # the first call is the CPU's, the second the device's
        calls.append(arguments)
        return {name: value + 0.1 * (len(calls) - 1) for name, value in right(*arguments).items()}

    monkeypatch.setattr(correctness, "outputs", wrong)
    row = correctness.compare(lambda: LearnedTable(6, (7, 5)), torch.float32, "eager", torch.device("cpu"))
    assert (row["ok"], row["same_bits"]) == ("no", "no")


def test_gaps_are_shares_of_the_largest_entry():
    want = torch.tensor([1.0, -4.0, torch.nan])
    assert correctness.gap(want, want) == 0
    assert correctness.gap(torch.tensor([1.5, -4.0, torch.nan]), want) == 0.125
    assert correctness.gap(torch.tensor([1.0, -4.0, 0.0]), want) == torch.inf
    assert correctness.gap(want[:2], want) == torch.inf


def failing(setup):
    def broken():
        raise RuntimeError("no such kernel\nand more")

    yield {"encoding": "first"}, lambda: {"ok": "yes"}
    yield {"encoding": "second"}, broken
    yield {"encoding": "third"}, lambda: {"ok": "no"}
    raise ValueError("the part itself")


def test_what_fails_stops_nothing_else(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(
        gpu, "PARTS", {"broken": (failing, 60), "whole": (lambda setup: iter([({"a": "1"}, dict)]), 60)}
    )
    assert gpu.main(["--small", "--output", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "failed: second: RuntimeError: no such kernel\n" in out
    assert "failed: third: not as on the CPU" in out
    assert "failed: the part: ValueError: the part itself" in out
    assert [row["encoding"] for row in read_rows(tmp_path / "gpu_broken.csv")] == ["first", "third"]
    assert read_rows(tmp_path / "gpu_whole.csv") == [{"a": "1"}]
    assert "no such kernel\nand more" in (tmp_path / "gpu_errors.txt").read_text(encoding="utf-8")


def test_a_part_ends_with_its_time(tmp_path):
    def endless(setup):
        return (({"number": str(number)}, lambda: {"ok": "yes"}) for number in range(9))

    rows, notes = gpu.run_part(endless, SETUP, -1.0, tmp_path / "log")
    assert rows == []
    assert notes == ["the time of -1 s was over before 0 and 8 more"]


def test_the_budgets_leave_time_for_the_start():
    assert sum(seconds for _, seconds in gpu.PARTS.values()) <= 7.5 * 60


@pytest.mark.parametrize("axes, without", [(1, set()), (2, {"TAPE", "Time2Vec", "Sandwich"})])
def test_models_get_every_encoding_of_as_many_axes(axes, without):
    found = slots(axes, 48)
    assert found.pop("none") == {}
    assert set(found) == set(NAMES) - without
    for name, slot in found.items():
        assert list(slot) == [ENCODINGS[name][0]]
