"""Every code block of the README and the documents runs; the README's two commands are the ones that are tested."""

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture
def restored_table():
    from mmpos.factory import ENCODINGS

    before = dict(ENCODINGS)
    yield
    ENCODINGS.clear()
    ENCODINGS.update(before)


def test_blocks_run_in_order(tmp_path, monkeypatch, restored_table):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "positions.yaml").write_text(next(code for language, code in BLOCKS if language == "yaml"))
    namespace: dict = {}
    python = [code for language, code in BLOCKS if language == "python"]
    assert len(python) >= 5
    for code in python:
        exec(compile(code, "README.md", "exec"), namespace)


def test_every_block_is_of_a_language_that_is_run():
    assert {language for language, _ in BLOCKS} <= {"python", "yaml"}


def test_the_two_commands_stand_where_ci_looks_for_them():
    commands = [line.strip() for line in README.splitlines() if line.startswith("    pip install")]
    assert commands == [
        "pip install -e . && python train.py fit --config configs/image/rope.yaml",
        "pip install -e '.[test]' && pytest",
    ]


@pytest.mark.parametrize(
    "study, page",
    [
        ("bias", "docs/attention.md"),
        ("depth", "docs/text.md"),
        ("encodings", "docs/benchmarks.md"),
        ("rotation", "docs/benchmarks.md"),
    ],
)
def test_a_table_of_a_benchmark_is_that_of_its_results(study, page):
    read_rows = importlib.import_module("benchmarks.study").read_rows
    benchmark = importlib.import_module("benchmarks." + {"encodings": "__main__"}.get(study, study))
    text = (ROOT / page).read_text(encoding="utf-8")
    shown = text.partition(f"<!-- {study} -->")[2].partition(f"<!-- /{study} -->")[0]
    assert shown.strip() == benchmark.table(read_rows(benchmark.PATH))


@pytest.mark.parametrize(
    "name, page",
    [
        ("digits", "docs/images.md"),
        ("image", "docs/images.md"),
        ("text", "docs/text.md"),
        ("series", "docs/series.md"),
        ("irregular", "docs/series.md"),
        ("video", "docs/video.md"),
        ("multimodal", "docs/multimodal.md"),
    ],
)
def test_a_table_of_a_study_is_that_of_its_results(name, page):
    from mmpos.compare import read_study
    from mmpos.compare.results import read_rows
    from mmpos.compare.table import summarise, table

    study = read_study(ROOT / "configs" / "compare" / f"{name}.yaml")
    rows = read_rows(ROOT / "benchmarks" / "results" / f"{name}.csv")
    assert summarise(study, rows).missing == 0  # all results are of the configs and arguments of now
    text = (ROOT / page).read_text(encoding="utf-8")
    assert text.partition(f"<!-- {name} -->")[2].partition(f"<!-- /{name} -->")[0].strip() == table(study, rows)


def test_comments_that_show_output_are_true(capsys, tmp_path, monkeypatch, restored_table):
    test_blocks_run_in_order(tmp_path, monkeypatch, restored_table)
    printed = capsys.readouterr().out.splitlines()
    shown = [line.partition("  # ")[2] for _, code in BLOCKS for line in code.splitlines() if line.startswith("print(")]
    assert printed == shown
    assert shown


PAGES = sorted((ROOT / "docs").rglob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT / "docs")) for page in PAGES])
def test_pages_run_and_print_what_they_say(page, capsys, restored_table):
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    namespace: dict = {}
    for code in blocks:
        exec(compile(code, page.name, "exec"), namespace)
    shown = [line.partition("  # ")[2] for code in blocks for line in code.splitlines() if line.startswith("print(")]
    assert blocks
    assert capsys.readouterr().out.splitlines() == shown
