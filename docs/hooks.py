"""What the documentation site does with the pages: files of the repository that they link to are published with them.

Pages are written for readers of the repository too, so they link to examples, notebooks and source files by relative paths
that leave docs/. The site copies these files into its folder files/, and CONTRIBUTING.md and CHANGELOG.md become pages of it.
"""

from __future__ import annotations

import re
from pathlib import Path
from posixpath import dirname, normpath, relpath
from typing import Any

from griffe import Attribute, Class, Extension, Function
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changes.md"}
LINK = re.compile(r"(?<=\]\()(?!\w+:|#)(?P<file>[^)#\s]+)(?P<heading>#[^)\s]*)?(?=\))")


def place_in_site(path: str) -> str:
    """Return the path below docs/ at which a file of the repository is published.

    >>> place_in_site("docs/choose.md"), place_in_site("CHANGELOG.md"), place_in_site("examples/demo.py")
    ('choose.md', 'changes.md', 'files/examples/demo.py')
    """
    return path.removeprefix("docs/") if path.startswith("docs/") else PAGES.get(path, f"files/{path}")


def rewrite_links(text: str, source: str) -> str:
    """Return the text of a file of the repository with every relative link as it is in the site.

    >>> rewrite_links("[a](../examples/demo.py) [b](choose.md#gains)", "docs/report.md")
    '[a](files/examples/demo.py) [b](choose.md#gains)'
    >>> rewrite_links("[c](docs/choose.md)", "CONTRIBUTING.md")
    '[c](choose.md)'
    """
    here = place_in_site(source)

    def rewritten(link: re.Match[str]) -> str:
        target = place_in_site(normpath(f"{dirname(source)}/{link['file']}".lstrip("/")))
        return relpath(target, dirname(here) or ".") + (link["heading"] or "")

    return LINK.sub(rewritten, text)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and files that lie outside docs/ to the site."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=rewrite_links((ROOT / source).read_text("utf-8"), source)))
    linked = set()
    for path in sorted((ROOT / "docs").rglob("*.md")):
        for link in LINK.finditer(path.read_text("utf-8")):
            target = (path.parent / link["file"]).resolve()
            if target.is_file() and not target.is_relative_to(ROOT / "docs"):
                linked.add(target.relative_to(ROOT).as_posix())
    for name in sorted(linked - set(PAGES)):
        files.append(File.generated(config, f"files/{name}", abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Any, config: MkDocsConfig, files: Files) -> str:
    """Return the text of a page with its links as they are in the site; the pages of `PAGES` have theirs already."""
    source = page.file.src_uri
    if source == "index.md":
        page.meta["hide"] = ["navigation"]  # beside the first page there is nothing to choose
    return markdown if source in PAGES.values() else rewrite_links(markdown, f"docs/{source}")


class ExamplesAsCode(Extension):  # type: ignore[misc]
    """An extension of griffe that shows the examples of docstrings as highlighted code."""

    def on_function(self, *, func: Function, **_: Any) -> None:
        """Fence the examples of a function."""
        fence(func)

    def on_class(self, *, cls: Class, **_: Any) -> None:
        """Fence the examples of a class."""
        fence(cls)

    def on_attribute(self, *, attr: Attribute, **_: Any) -> None:
        """Fence the examples of a property."""
        fence(attr)


def fence(documented: Attribute | Class | Function) -> None:
    """Put every example of a docstring, from `>>>` to the next empty line, into a block of its own."""
    if documented.docstring:
        found = re.compile(r"^(?:>>> .*)(?:\n.+)*(?:\n\n(?:>>> .*)(?:\n.+)*)*", re.MULTILINE)
        documented.docstring.value = found.sub(r"\n```pycon\n\g<0>\n```\n", documented.docstring.value)
