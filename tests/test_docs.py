"""The documents: links lead somewhere, every page is in the site, and the API pages have every public name."""

import importlib
import re
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
import yaml

import mmpos

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]
IDS = [page.relative_to(ROOT).as_posix() for page in PAGES]
MODULES = [
    "mmpos", "mmpos.adapters.timm", "mmpos.adapters.transformers", "mmpos.attend", "mmpos.calendar", "mmpos.compare",
    "mmpos.data", "mmpos.diagnostics", "mmpos.diagnostics.plots", "mmpos.encodings", "mmpos.masks", "mmpos.models",
    "mmpos.multimodal", "mmpos.resample", "mmpos.scaling", "mmpos.testing", "mmpos.training",
]  # fmt: skip


def prose(page):
    """The text of a page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def links(page):
    """Targets of links and pictures, without those in code."""
    return re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", prose(page)))


def anchors(page):
    """Headings of a page as GitHub and MkDocs link to them."""
    titles = re.findall(r"^#+ (.*)", prose(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_links_lead_somewhere(page):
    for link in links(page):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.is_file(), f"{link} is no file"
        assert not anchor or anchor in anchors(target), f"{link}: no such heading"


def test_links_are_found():
    assert sum(len([link for link in links(page) if "://" not in link]) for page in PAGES) > 60
    assert "past-the-trained-length" in anchors(DOCS / "text.md")


def test_the_site_has_every_page():
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))

    def leaves(entry):
        if isinstance(entry, str):
            return [entry]
        return [page for part in (entry if isinstance(entry, list) else entry.values()) for page in leaves(part)]

    listed = leaves(site["nav"])
    assert len(set(listed)) == len(listed)
    assert set(listed) == {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}


def documented():
    """What the API pages show, by its path."""
    text = "".join(page.read_text(encoding="utf-8") for page in sorted((DOCS / "api").glob("*.md")))
    return re.findall(r"^::: (\S+)$", text, flags=re.MULTILINE)


def resolve(path):
    """The object at a path, through modules and their names."""
    parts = path.split(".")
    found = importlib.import_module(parts[0])
    for depth, part in enumerate(parts[1:], 2):
        try:
            found = getattr(found, part)
        except AttributeError:
            found = importlib.import_module(".".join(parts[:depth]))
    return found


@pytest.mark.parametrize("module", MODULES)
def test_the_api_pages_have_every_public_name(module):
    shown = {id(resolve(path)) for path in documented()}
    public = {name: getattr(importlib.import_module(module), name) for name in importlib.import_module(module).__all__}
    assert not [name for name, value in public.items() if not isinstance(value, ModuleType) and id(value) not in shown]


def test_the_api_pages_show_a_thing_once():
    paths = documented()
    assert len({id(resolve(path)) for path in paths}) == len(paths)


def test_all_parts_with_public_names_are_looked_at():
    """Parts that only hold parts of encodings say in their own files what they have."""
    inner = {"mmpos.frequencies", "mmpos.encodings.additive", "mmpos.encodings.bias", "mmpos.presets",
             "mmpos.diagnostics.metrics"}  # fmt: skip
    root = Path(mmpos.__file__).parent
    files = [file for file in root.rglob("__init__.py") if "__all__ =" in file.read_text(encoding="utf-8")]
    assert {".".join(file.parent.relative_to(root.parent).parts) for file in files} <= {*MODULES, *inner}


def test_the_readme_is_short_and_shows_a_picture():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) < 200
    assert re.search(r"^!\[[^]]+\]\(docs/images/\w+\.png\)", text, flags=re.MULTILINE)


def test_versions_agree():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == mmpos.__version__
    assert citation["license"] == "Apache-2.0"
    assert "Apache License" in (ROOT / "LICENSE").read_text(encoding="utf-8")


def test_the_oldest_versions_are_the_bounds():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = [f"Python{project['requires-python']}", *project["dependencies"]]
    lines += project["optional-dependencies"]["transformers"]
    bounds = dict(re.fullmatch(r"([\w-]+)(?:\[.*\])?>=([\d.]+)", line).groups() for line in lines)
    text = (DOCS / "support.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\w+) \| ([\d.]+) \|", text, flags=re.MULTILINE)
    assert len(rows) == 6
    assert {name: oldest.removesuffix(".0") for name, oldest in rows}.items() <= bounds.items()
