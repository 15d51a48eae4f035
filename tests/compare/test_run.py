"""Cells that are run: what is done stays done, whatever becomes of the others. Their runs are stand-ins."""

import csv
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from filelock import FileLock

from mmpos.compare import command, compare, read_study
from tests.compare.conftest import FAKE

ROOT = Path(__file__).parents[2]
PYTHON = sys.executable  # other tests put something in its place


def read(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_all_cells_run_once(fake_runs, write_study, starts, tmp_path):
    study = write_study()
    report = compare(study)
    assert not report.failed
    rows = read(tmp_path / "out" / "study.csv")
    assert rows == report.rows
    assert list(rows[0]) == ["encoding", "seed", "fingerprint", "size", "how", "score", "seconds"]
    # The stand-in scores level + seed, a half of it at size 16, and a quarter in the other way.
    shown = [(row["encoding"], row["seed"], row["size"], row["how"], float(row["score"])) for row in rows]
    expected = []
    for encoding, seed, score in (("low", "0", 1), ("high", "0", 10), ("low", "4", 5), ("high", "4", 14)):
        expected += [(encoding, seed, "8", "plain", score), (encoding, seed, "16", "plain", score / 2),
                     (encoding, seed, "16", "other", score / 4)]  # fmt: skip
    assert shown == expected
    assert (
        (tmp_path / "out" / "study.md").read_text().startswith("| encoding | how | 8 | 16 |\n|---|---|---|---|\n| low")
    )
    assert sorted(path.name for path in (tmp_path / "out").iterdir())[:2] == ["study.csv", "study.md"]
    assert not (tmp_path / "out" / "study").exists()
    compare(write_study())
    assert [line[:2] for line in starts()] == [["1", "0"], ["10", "0"], ["1", "4"], ["10", "4"]]


def test_what_a_test_logs_is_the_result_where_no_table_is_named(fake_runs, write_study):
    report = compare(write_study(results=None, columns=None, rows=None, metrics={"test_score": None}))
    assert [row["test_score"] for row in report.rows] == ["1.0", "10.0", "5.0", "14.0"]
    assert "epoch" not in report.rows[0]


def test_a_changed_cell_runs_again_and_others_do_not(fake_runs, write_study, starts, tmp_path, capsys):
    compare(write_study())
    (tmp_path / "low.yaml").write_text("model: {name: other}\n")
    report = compare(write_study())
    assert [line[:2] for line in starts()[4:]] == [["1", "0"], ["1", "4"]]
    assert "2 results are of other settings than those of now" in capsys.readouterr().err
    assert len(report.rows) == 12
    assert len({(row["encoding"], row["seed"], row["size"], row["how"]) for row in report.rows}) == 12


def test_an_encoding_that_is_taken_out_keeps_its_results(fake_runs, write_study, starts):
    compare(write_study())
    report = compare(write_study(encodings={"low": {"config": "low.yaml", "arguments": {"level": 1}}}))
    assert len(starts()) == 4
    assert len(report.rows) == 12


def test_a_cell_that_fails_does_not_stop_the_others(fake_runs, write_study, starts, tmp_path):
    arguments = {"starts": str(tmp_path / "starts.txt"), "fail": "4"}
    study = write_study(arguments=arguments)
    report = compare(study)
    assert [outcome.cell.name for outcome in report.failed] == ["low, seed 4", "high, seed 4"]
    assert report.failed[0].error.splitlines() == [
        "exit status 1", "begins", "a first line", "RuntimeError: this run was told to fail",
    ]  # fmt: skip
    logs = sorted((tmp_path / "out" / "study").rglob("log.txt"))
    assert [log.parent.name.split("-")[::2] for log in logs] == [["high", "4"], ["low", "4"]]
    assert logs[0].read_text().endswith("this run was told to fail\n")
    assert {row["seed"] for row in read(tmp_path / "out" / "study.csv")} == {"0"}
    assert "2 of 4 cells are missing" in (tmp_path / "out" / "study.md").read_text()
    compare(study)
    assert len(starts()) == 6


def test_a_run_without_its_table_has_failed(fake_runs, write_study):
    report = compare(write_study(results="lengths.csv"))
    assert report.failed[0].error == "the run left 0 files lengths.csv; its CSV files: metrics.csv, sizes.csv"


def test_a_metric_that_is_not_there_ends_the_study_with_its_result_kept(fake_runs, write_study, starts, tmp_path):
    with pytest.raises(ValueError, match=r"metrics\[scores\]: the results have no column 'scores'"):
        compare(write_study(metrics={"scores": None}))
    assert len(read(tmp_path / "out" / "study.csv")) == 3
    done = len(starts())
    assert done <= 2  # the next may have begun
    with pytest.raises(ValueError, match=r"metrics\[scores\]: the results have no column 'scores'"):
        compare(write_study(metrics={"scores": None}))
    assert len(starts()) == done  # what is there was read first
    compare(write_study())
    assert len({(line[0], line[1]) for line in starts()}) == 4


@pytest.mark.parametrize("jobs", [1, 3])
def test_cells_at_a_time_share_the_cores(fake_runs, write_study, starts, monkeypatch, jobs):
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    report = compare(write_study(), jobs=jobs)
    assert {line[3] for line in starts()} == {str(7 // jobs)}
    assert len(report.rows) == 12
    with pytest.raises(ValueError, match="jobs must be positive, got 0"):
        compare(write_study(), jobs=0)


def test_two_at_once_are_refused(fake_runs, write_study, starts, tmp_path):
    (tmp_path / "out" / "study").mkdir(parents=True)
    with FileLock(tmp_path / "out" / "study" / "lock"), pytest.raises(RuntimeError, match="another process works on"):
        compare(write_study())
    assert not starts()
    compare(write_study())


def test_results_of_something_else_are_not_touched(fake_runs, write_study, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "study.csv").write_text("encoding,seed\nlow,0\n")
    with pytest.raises(ValueError, match="no column fingerprint"):
        compare(write_study())
    assert (tmp_path / "out" / "study.csv").read_text() == "encoding,seed\nlow,0\n"


def test_runs_are_kept_if_asked(fake_runs, write_study, tmp_path):
    compare(write_study(), keep=True)
    assert len(list((tmp_path / "out" / "study").rglob("version_0/metrics.csv"))) == 4


def test_the_study_works_without_matplotlib(fake_runs, write_study, tmp_path, monkeypatch):
    from mmpos.compare import run

    monkeypatch.setattr(run.importlib.util, "find_spec", lambda name: None)
    report = compare(write_study())
    assert not report.plotted
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["study.csv", "study.md"]


def test_the_command_tells_what_failed(fake_runs, write_study, tmp_path, capsys):
    import argparse

    write_study(arguments={"starts": str(tmp_path / "starts.txt"), "fail": "4"})
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    with pytest.raises(SystemExit) as exit:
        command.run(parser.parse_args([str(tmp_path / "study.yaml")]), [])
    assert exit.value.code == "error: 2 of 4 cells failed; the same command tries them again"
    out, err = capsys.readouterr()
    assert f"results: {tmp_path / 'out' / 'study.csv'}" in out
    assert "| low | plain | 1.00 | 0.50 |" in out
    assert "failed: high, seed 4\n    exit status 1\n" in err
    assert "2 done, 2 failed, 0 left" in err
    command.run(parser.parse_args([str(tmp_path / "study.yaml"), "--dry-run"]), [])
    assert capsys.readouterr().out.splitlines()[1:3] == ["done  high, seed 0", "left  low, seed 4"]


def test_without_ray_a_package_is_named(fake_runs, write_study, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"--ray needs Ray: pip install 'mmpos\[ray\]'"):
        compare(write_study(), ray="")


DRIVER = """
import argparse, sys, types
from mmpos.compare import command
sys.modules["mmpos.compare.check"] = types.SimpleNamespace(check_cells=lambda cells: None)
sys.executable = {fake!r}
parser = argparse.ArgumentParser()
command.add_arguments(parser)
command.run(parser.parse_args(), [])
"""


@pytest.fixture
def stopped(write_study, starts, tmp_path):
    """Ends a study in its second cell with a signal; its exit status, and the runs that were still there after it."""

    def stop(how):
        slow = {"config": "high.yaml", "arguments": {"level": 10, "sleep": 60}}
        quick = {"config": "low.yaml", "arguments": {"level": 1}}
        write_study(encodings={"low": quick, "high": slow})
        driver = tmp_path / "driver.py"
        driver.write_text(DRIVER.format(fake=str(FAKE)))
        # Tests may run where Ctrl-C is ignored, which a process inherits.
        process = subprocess.Popen(
            [PYTHON, driver, tmp_path / "study.yaml"], stderr=subprocess.PIPE, text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )  # fmt: skip
        deadline = time.monotonic() + 60
        while len(starts()) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(how)
        _, err = process.communicate(timeout=30)
        run = int(starts()[1][2])
        deadline = time.monotonic() + 10
        while Path(f"/proc/{run}").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        return process.returncode, err, Path(f"/proc/{run}").exists()

    return stop


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize("how, status", [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_stopped_it_leaves_finished_cells_and_no_process(stopped, fake_runs, starts, tmp_path, how, status):
    code, err, left = stopped(how)
    assert (code, left) == (status, False), err
    rows = read(tmp_path / "out" / "study.csv")
    assert [(row["encoding"], row["seed"]) for row in rows] == [("low", "0")] * 3
    assert not list((tmp_path / "out").glob("*.part"))
    if how == signal.SIGINT:
        assert "interrupted; finished cells are kept" in err
    study = tmp_path / "study.yaml"
    study.write_text(study.read_text().replace("sleep: 60", "fast: 1"))
    report = compare(read_study(study))
    assert len(report.rows) == 12
    assert len([line for line in starts() if line[:2] == ["1", "0"]]) == 1


def test_a_run_ends_when_whoever_started_it_does():
    code = "import time; from mmpos.compare.cell import end_with_parent; end_with_parent(); print('up', flush=True); "
    process = subprocess.Popen(
        [PYTHON, "-c", code + "time.sleep(60)"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        assert process.stdout.readline() == b"up\n"
        assert process.poll() is None
        process.stdin.close()
        assert process.wait(timeout=20) == -signal.SIGKILL
