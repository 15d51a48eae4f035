"""What the site needs besides its pages: the plots of the studies, and docstrings in the words that griffe knows."""

import posixpath
import re
from pathlib import Path

from griffe import Extension, Object
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"
LINK = re.compile(r"(?<!!)\[(?P<words>[^]]+)\]\((?P<target>[^)\s]+)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the plots, which lie beside their numbers, to the site, in a folder of their own."""
    for plot in sorted(RESULTS.glob("*.png")):
        files.append(File.generated(config, f"results/{plot.name}", abs_src_path=str(plot)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Pages show plots where they lie in the repository; other links out of the folder of pages become words."""
    folder = posixpath.dirname(page.file.src_uri)

    def inside(link: re.Match[str]) -> str:
        leads_out = posixpath.normpath(posixpath.join(folder, link["target"])).startswith("..")
        return link["words"] if leads_out and "://" not in link["target"] else link[0]

    return LINK.sub(inside, markdown.replace("](../benchmarks/results/", "](results/"))


class Docstrings(Extension):
    """Reads "Example:" as griffe's "Examples:", and the two colons before an indented block as one."""

    def on_object(self, *, obj: Object, **kwargs: object) -> None:
        """Changes the docstring before it is parsed."""
        if obj.docstring is not None:
            text = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)
            obj.docstring.value = re.sub(r"::$", ":", text, flags=re.MULTILINE)
