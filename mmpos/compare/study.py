"""The file of a study: which encodings, seeds and tasks, and what the table of their results shows."""

import difflib
import hashlib
import json
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..values import read_yaml

KEYS = (
    "title", "output", "base", "encodings", "seeds", "arguments", "tasks", "results", "metrics", "columns", "rows",
    "references", "labels", "plot",
)  # fmt: skip
PLOTS = ("dots", "lines")
BETTER = ("higher", "lower")
OWN = ("config", "run", "ckpt_path", "seed_everything", "trainer.default_root_dir", "trainer.enable_progress_bar")
"""Arguments that every cell is given by the study."""


@dataclass(frozen=True)
class Metric:
    """A column of the results that the table shows.

    Args:
        name: Its name there.
        unit: Unit for headings; ``"%"`` shows a share in percent.
        better: ``"higher"`` or ``"lower"``; empty where neither is.
        digits: Digits after the point.
    """

    name: str
    unit: str = ""
    better: str = ""
    digits: int = 3

    @property
    def scale(self) -> float:
        """What a value is multiplied by to be in the unit."""
        return 100.0 if self.unit == "%" else 1.0


@dataclass(frozen=True)
class Cell:
    """One training run: its place in the study, and all that it is made from.

    Args:
        task: Name of the task; empty where there is one only.
        encoding: Name of the encoding.
        seed: Seed of weights and of the order of samples.
        config: Text of the training config.
        base: Text of the config that it overrides; empty for none.
        arguments: Arguments of the command line's ``fit`` by name, as texts.
        results: Name of the CSV table that the run leaves; empty for what its test logs.
    """

    task: str
    encoding: str
    seed: int
    config: str = field(repr=False)
    base: str = field(repr=False)
    arguments: Mapping[str, str]
    results: str

    @property
    def key(self) -> dict[str, str]:
        """The columns that tell the cell from others of the study."""
        task = {"task": self.task} if self.task else {}
        return {**task, "encoding": self.encoding, "seed": str(self.seed)}

    @property
    def name(self) -> str:
        """The cell in words."""
        return f"{', '.join(filter(None, (self.task, self.encoding)))}, seed {self.seed}"

    @property
    def fingerprint(self) -> str:
        """What the result depends on, in 12 hexadecimal digits: contents of the configs, and the arguments.

        Comments and the order of keys in a config do not matter; the order of arguments does.
        """
        configs = [read_yaml(text) if text else None for text in (self.base, self.config)]
        told = json.dumps([sorted_keys(configs), list(self.arguments.items()), self.results], default=str)
        return hashlib.sha256(told.encode()).hexdigest()[:12]

    def command(self) -> list[str]:
        """Arguments of ``fit``, without those that say where the run's files lie."""
        return [f"--seed_everything={self.seed}", *(f"--{key}={value}" for key, value in self.arguments.items())]


@dataclass(frozen=True)
class Study:
    """What a study file says, checked.

    Args:
        path: The file.
        title: One line for the plot.
        output: Folder of the results; None for ``runs/compare``.
        cells: Cells in the order in which they run: all encodings with the first seed, then with the next.
        metrics: What the table shows.
        columns: Column of the results whose values are columns of the table; empty for none.
        rows: Column of the results whose values make rows beside the encodings; empty for none.
        references: A column, and its value in rows of the model; its other values need no training.
        labels: Text to show in place of a name.
        plot: ``"dots"``, or ``"lines"`` over columns that have an order.
    """

    path: Path
    title: str
    output: Path | None
    cells: tuple[Cell, ...]
    metrics: tuple[Metric, ...]
    columns: str
    rows: str
    references: tuple[str, str] | None
    labels: Mapping[str, str]
    plot: str

    def label(self, name: str) -> str:
        """What is shown for a name."""
        return self.labels.get(name, name)

    @property
    def seeds(self) -> list[int]:
        """The seeds, in order."""
        return list(dict.fromkeys(cell.seed for cell in self.cells))


def read_study(path: str | Path) -> Study:
    """Reads a study file. Paths in it are seen from the folder that it is in.

    Raises:
        ValueError: If a key or a value is wrong; the message starts with the file and the key.
        OSError: If the file or a config is missing.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no study file {path}")
    try:
        return _study(path, load_yaml(path))
    except (ValueError, TypeError) as error:
        raise type(error)(f"{path}: {error}") from error


def load_yaml(path: Path) -> dict[str, Any]:
    """A mapping from a YAML file."""
    try:
        found = read_yaml(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"no YAML: {error}") from error
    return mapping("the file", found)


def _study(path: Path, found: dict[str, Any]) -> Study:
    known("the file", found, KEYS)
    for key in ("encodings", "metrics"):
        if not found.get(key) and not (key == "encodings" and "tasks" in found):
            raise ValueError(f"{key} is missing")
    columns, rows = (text(key, found.get(key, "")) for key in ("columns", "rows"))
    if "tasks" in found and "task" not in (columns, rows):
        if columns:
            raise ValueError(f"with tasks, columns ({columns!r}) or rows ({rows!r}) must be task")
        columns = "task"
    for key, name in (("columns", columns), ("rows", rows)):
        if name == "task" and "tasks" not in found:
            raise ValueError(f"{key} is task, but there are no tasks")
    if columns and columns == rows:
        raise ValueError(f"columns and rows are both {columns!r}")
    plot = found.get("plot", PLOTS[0])
    if plot not in PLOTS:
        raise ValueError(f"plot must be one of {', '.join(PLOTS)}, got {plot!r}")
    if plot == "lines" and not columns:
        raise ValueError("plot is lines, which needs columns to go over")
    references = mapping("references", found.get("references", {}))
    if len(references) > 1:
        raise ValueError(f"references must be one column and the model's value in it, got {references}")
    if references and "results" not in found:
        raise ValueError("references are rows of a table that runs leave; name it as results")
    return Study(
        path=path,
        title=text("title", found.get("title", path.stem)),
        output=Path(os.path.normpath(path.parent / text("output", found["output"]))) if found.get("output") else None,
        cells=tuple(_cells(path.parent, found)),
        metrics=tuple(_metric(name, value) for name, value in mapping("metrics", found["metrics"]).items()),
        columns=columns,
        rows=rows,
        references=next(((key, str(value)) for key, value in references.items()), None),
        labels={
            key: text(f"labels[{key}]", value) for key, value in mapping("labels", found.get("labels", {})).items()
        },
        plot=plot,
    )


def _cells(folder: Path, found: dict[str, Any]) -> list[Cell]:
    seeds = found.get("seeds", [0])
    if not isinstance(seeds, list) or not seeds or not all(type(seed) is int and seed >= 0 for seed in seeds):
        raise ValueError(f"seeds must be a list of whole numbers, not negative, got {seeds!r}")
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds has a number twice: {seeds}")
    results = text("results", found.get("results", ""))
    if results and not results.endswith(".csv"):
        raise ValueError(f"results must be a CSV file that runs leave, such as resolution.csv, got {results!r}")
    base = _read(folder, "base", found["base"]) if found.get("base") else ""
    common, encodings = found.get("arguments", {}), mapping("encodings", found.get("encodings", {}))
    tasks = mapping("tasks", found.get("tasks", {"": {}}))
    if not tasks:
        raise ValueError("tasks is empty")
    cells = []
    for task, settings in tasks.items():
        where = f"tasks[{task}]" if task else ""
        own = known(where or "the task", mapping(where, settings or {}), ("arguments", "encodings"))
        arguments = _arguments("arguments", common) | _arguments(f"{where}.arguments", own.get("arguments", {}))
        for name, value in _chosen(where, own.get("encodings", list(encodings)), encodings).items():
            place = f"{where}.encodings[{name}]" if "encodings" in own else f"encodings[{name}]"
            config, more = _encoding(folder, place, value)
            cells += [Cell(task, name, seed, config, base, arguments | more, results) for seed in seeds]
    if not cells:
        raise ValueError("encodings is empty")
    return sorted(cells, key=lambda cell: seeds.index(cell.seed))  # stopped early, it compares all with one seed


def _chosen(where: str, chosen: Any, encodings: dict[str, Any]) -> dict[str, Any]:
    """The encodings of a task: names among those of the study, or a mapping of its own."""
    if not isinstance(chosen, list):
        return mapping(f"{where}.encodings", chosen)
    for name in chosen:
        known(f"{where}.encodings", [name], encodings)
    return {name: encodings[name] for name in chosen}


def _encoding(folder: Path, place: str, value: Any) -> tuple[str, dict[str, str]]:
    """Text of an encoding's config and the arguments of its own."""
    if isinstance(value, str):
        return _read(folder, place, value), {}
    settings = mapping(place, value)
    if "config" not in settings:
        raise ValueError(f"{place} must be the path of a config, or have one as config, got {value!r}")
    known(place, settings, ("config", "arguments"))
    arguments = _arguments(f"{place}.arguments", settings.get("arguments", {}))
    return _read(folder, f"{place}.config", settings["config"]), arguments


def _arguments(place: str, value: Any) -> dict[str, str]:
    """Arguments by name, as texts for a command line."""
    found = mapping(place, value)
    if taken := [key for key in found if key.removeprefix("--") in OWN]:
        raise ValueError(f"{place} has {taken[0]!r}, which the study sets itself")
    if dashed := [key for key in found if key.startswith("-")]:
        raise ValueError(f"{place} has {dashed[0]!r}; write it without dashes")
    return {key: value if isinstance(value, str) else json.dumps(value) for key, value in found.items()}


def _metric(name: str, value: Any) -> Metric:
    settings = mapping(f"metrics[{name}]", value or {})
    known(f"metrics[{name}]", settings, ("unit", "better", "digits"))
    unit, better = (text(f"metrics[{name}].{key}", settings.get(key, "")) for key in ("unit", "better"))
    digits = settings.get("digits", 1 if unit == "%" else 3)
    if better and better not in BETTER:
        raise ValueError(f"metrics[{name}].better must be one of {', '.join(BETTER)}, got {better!r}")
    if type(digits) is not int or digits < 0:
        raise ValueError(f"metrics[{name}].digits must be a whole number, not negative, got {digits!r}")
    return Metric(name, unit, better, digits)


def _read(folder: Path, place: str, name: Any) -> str:
    path = folder / text(place, name)
    if not path.is_file():
        raise FileNotFoundError(f"{place}: there is no config {path}")
    content = path.read_text(encoding="utf-8")
    try:
        read_yaml(content)
    except ValueError as error:
        raise ValueError(f"{place}: {path} is no YAML: {error}") from error
    return content


def known(place: str, found: Any, names: Collection[str]) -> Any:
    """What was found, if each name in it is known."""
    for name in found:
        if name not in names:
            close = difflib.get_close_matches(str(name), names, n=1)
            hint = f"; did you mean {close[0]!r}? Known" if close else "; known"
            raise ValueError(f"{place} has {name!r}{hint}: {', '.join(names)}")
    return found


def mapping(place: str, value: Any) -> dict[str, Any]:
    """The value, if it is a mapping; its keys are texts, as ``28`` is one."""
    if not isinstance(value, dict):
        raise TypeError(f"{place} must be a mapping, got {value!r}")
    return {str(key): item for key, item in value.items()}


def text(place: str, value: Any) -> str:
    """The value, if it is one text."""
    if not isinstance(value, str):
        raise TypeError(f"{place} must be text, got {value!r}")
    return value


def sorted_keys(value: Any) -> Any:
    """The same with mappings in the order of their keys."""
    if isinstance(value, dict):
        return {str(key): sorted_keys(value[key]) for key in sorted(value, key=str)}
    return [sorted_keys(item) for item in value] if isinstance(value, list) else value
