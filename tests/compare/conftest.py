"""Studies whose cells take no time."""

import functools
from pathlib import Path

import pytest
import yaml

FAKE = Path(__file__).parent / "fake.py"


@pytest.fixture
def fake_runs(monkeypatch):
    monkeypatch.setattr("mmpos.compare.cell.sys.executable", str(FAKE))
    monkeypatch.setattr("mmpos.compare.check.check_cells", lambda cells: None)


def study_in(folder, **keys):
    """Writes a study of two encodings and two seeds to a folder, with other keys than usual where they are given."""
    from mmpos.compare import read_study  # not before the shapes of mmpos are checked

    for name in ("low", "high"):
        path = folder / f"{name}.yaml"
        if not path.exists():
            path.write_text(f"model: {{name: {name}}}\n")
    usual = {
        "encodings": {
            "low": {"config": "low.yaml", "arguments": {"level": 1}},
            "high": {"config": "high.yaml", "arguments": {"level": 10}},
        },
        "seeds": [0, 4],
        "arguments": {"starts": str(folder / "starts.txt")},
        "output": "out",
        "results": "sizes.csv",
        "columns": "size",
        "rows": "how",
        "metrics": {"score": {"digits": 2, "better": "higher"}},
    }
    found = {key: value for key, value in (usual | keys).items() if value is not None}
    (folder / "study.yaml").write_text(yaml.safe_dump(found, sort_keys=False))
    return read_study(folder / "study.yaml")


@pytest.fixture
def write_study(tmp_path):
    return functools.partial(study_in, tmp_path)


@pytest.fixture
def starts(tmp_path):
    """The runs that were started: level, seed, process and threads of each."""

    def read():
        path = tmp_path / "starts.txt"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    return read
