"""What a study file may say, and that all else is refused before anything runs."""

from pathlib import Path

import pytest

from mmpos.compare import Metric, read_study
from mmpos.compare.study import KEYS

ROOT = Path(__file__).parents[2]
STUDIES = sorted((ROOT / "configs" / "compare").glob("*.yaml"))


def test_a_cell_for_each_encoding_and_seed(write_study):
    cells = write_study(base="low.yaml").cells
    assert [(cell.encoding, cell.seed) for cell in cells] == [("low", 0), ("high", 0), ("low", 4), ("high", 4)]
    assert cells[3].config == "model: {name: high}\n"
    assert cells[3].base == "model: {name: low}\n"
    assert [word for word in cells[3].command() if "starts" not in word] == ["--seed_everything=4", "--level=10"]
    assert cells[3].name == "high, seed 4"


def test_arguments_of_a_task_and_of_an_encoding_override_those_of_all(write_study):
    study = write_study(
        arguments={"trainer.max_epochs": 1, "model.dim": 8, "model.block": {"drop": 0.5}},
        tasks={"short": {}, "long": {"arguments": {"trainer.max_epochs": 30, "level": 2}, "encodings": ["low"]}},
        columns="task",
    )
    arguments = {(cell.task, cell.encoding): cell.arguments for cell in study.cells}
    assert list(arguments) == [("short", "low"), ("short", "high"), ("long", "low")]
    assert arguments["short", "low"] == {
        "trainer.max_epochs": "1", "model.dim": "8", "model.block": '{"drop": 0.5}', "level": "1",
    }  # fmt: skip
    assert arguments["long", "low"]["trainer.max_epochs"] == "30"
    assert arguments["long", "low"]["level"] == "1"


def test_a_task_has_encodings_of_its_own(write_study):
    tasks = {"a": {"encodings": {"x": "low.yaml"}}, "b": {"encodings": {"y": "high.yaml"}}}
    study = write_study(encodings=None, tasks=tasks, columns=None)
    assert [(cell.task, cell.encoding) for cell in study.cells if cell.seed == 0] == [("a", "x"), ("b", "y")]
    assert study.columns == "task"


def test_metrics_have_units_and_digits(write_study):
    study = write_study(metrics={"accuracy": {"unit": "%", "better": "higher"}, "bits": None})
    assert study.metrics == (Metric("accuracy", "%", "higher", 1), Metric("bits", "", "", 3))


WRONG = {
    "the file has 'seed'; did you mean 'seeds'": {"seed": [1]},
    "encodings is missing": {"encodings": None},
    "metrics is missing": {"metrics": {}},
    "encodings must be a mapping, got \\['low'\\]": {"encodings": ["low"]},
    "encodings\\[low\\]: there is no config .*lower.yaml": {"encodings": {"low": "lower.yaml"}},
    "encodings\\[low\\] has 'argument'; did you mean 'arguments'": {
        "encodings": {"low": {"config": "low.yaml", "argument": {}}}
    },
    "encodings\\[low\\] must be the path of a config": {"encodings": {"low": {}}},
    "seeds must be a list of whole numbers, not negative, got 3": {"seeds": 3},
    "seeds must be a list of whole numbers, not negative, got \\[True\\]": {"seeds": [True]},
    "seeds has a number twice": {"seeds": [1, 1]},
    "base: there is no config": {"base": "nowhere.yaml"},
    "arguments has 'seed_everything', which the study sets itself": {"arguments": {"seed_everything": 1}},
    "arguments has '--model.dim'; write it without dashes": {"arguments": {"--model.dim": 1}},
    "results must be a CSV file": {"results": "sizes"},
    "metrics\\[score\\] has 'units'; did you mean 'unit'": {"metrics": {"score": {"units": "%"}}},
    "metrics\\[score\\].better must be one of higher, lower, got 'more'": {"metrics": {"score": {"better": "more"}}},
    "metrics\\[score\\].digits must be a whole number": {"metrics": {"score": {"digits": -1}}},
    "columns and rows are both 'size'": {"rows": "size"},
    "with tasks, columns \\('size'\\) or rows \\('how'\\) must be task": {"tasks": {"a": {}}},
    "columns is task, but there are no tasks": {"columns": "task"},
    "tasks\\[a\\].encodings has 'lo'; did you mean 'low'": {"tasks": {"a": {"encodings": ["lo"]}}, "columns": "task"},
    "plot must be one of dots, lines, got 'bars'": {"plot": "bars"},
    "plot is lines, which needs columns": {"plot": "lines", "columns": None},
    "references are rows of a table": {"references": {"how": "plain"}, "results": None},
    "title must be text, got 3": {"title": 3},
}


@pytest.mark.parametrize("message, keys", WRONG.items())
def test_what_is_wrong_is_named(write_study, message, keys):
    with pytest.raises((ValueError, TypeError, FileNotFoundError), match=message):
        write_study(**keys)


def test_a_key_that_stands_twice_is_refused(tmp_path):
    path = tmp_path / "twice.yaml"
    path.write_text("seeds: [0]\nencodings: {}\nseeds: [1]\n")
    with pytest.raises(ValueError, match=r"twice.yaml: no YAML: 'seeds' stands twice \(line 3\)"):
        read_study(path)
    with pytest.raises(FileNotFoundError, match="there is no study file"):
        read_study(tmp_path / "nowhere.yaml")


def test_a_result_is_that_of_its_arguments_and_configs(write_study, tmp_path):
    def prints(**keys):
        return [cell.fingerprint for cell in write_study(**keys).cells[:2]]

    before = prints()
    assert len(set(before)) == 2
    assert prints(seeds=[0], metrics={"other": {}}, columns="how", rows=None, title="new") == before
    (tmp_path / "low.yaml").write_text("# a comment\nmodel: {name: low}\n")
    assert prints() == before
    (tmp_path / "low.yaml").write_text("model: {name: lower}\n")
    assert prints()[0] != before[0]
    assert prints()[1] == before[1]
    for keys in ({"arguments": {"starts": "elsewhere"}}, {"base": "high.yaml"}, {"results": "others.csv"}):
        assert not set(prints(**keys)) & {prints()[0], before[1]}


@pytest.mark.parametrize("path", STUDIES, ids=[path.stem for path in STUDIES])
def test_the_studies_of_the_repository_can_be_trained(path):
    from mmpos.compare.check import check_cells

    study = read_study(path)
    assert study.output is not None
    assert study.output.resolve() == ROOT / "benchmarks" / "results"
    check_cells([cell for cell in study.cells if cell.seed == study.seeds[0]])


def test_the_file_of_the_page_can_be_read(tmp_path):
    page = (ROOT / "docs" / "compare.md").read_text(encoding="utf-8")
    (tmp_path / "compare").mkdir()
    (tmp_path / "image").symlink_to(ROOT / "configs" / "image")
    (tmp_path / "base.yaml").symlink_to(ROOT / "configs" / "base.yaml")
    (tmp_path / "compare" / "page.yaml").write_text(page.partition("```yaml\n")[2].partition("```")[0])
    study = read_study(tmp_path / "compare" / "page.yaml")
    assert len(study.cells) == 9
    for key in KEYS:
        assert f"`{key}`" in page, key


def test_the_image_study_is_as_large_as_it_should_be():
    study = read_study(ROOT / "configs" / "compare" / "image.yaml")
    assert len({cell.encoding for cell in study.cells}) >= 8
    assert study.seeds == [0, 1, 2]
