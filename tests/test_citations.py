"""Citations lead somewhere: paths and anchors of documentation pages exist, and marks such as A-14 are explained."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_docs import anchors

ROOT = Path(__file__).parent.parent
REFERENCE = ROOT / "docs" / "reference"
FOLDERS = ("src", "tests", "docs", "papers", "examples", "benchmarks")
SUFFIXES = {".py", ".md", ".toml", ".cpp", ".h"}
PAGES_OF_MARKS = {"A": "algorithms", "P": "partitions", "M": "models", "T": "metrics", "E": "experiments"}

PATH = re.compile(r"\bdocs/[\w./-]+\.md(?:#(?P<anchor>[\w-]+))?")
MARK = re.compile(r"(?<![\w#/.-])(?P<letter>[AEMPT])-(?P<number>\d{1,2})\b(?![,.]\d|[-\w])")
SECTION = re.compile(r"\b(?:algorithms|partitions|models|metrics|experiments|verdict)(?:\.md)? \d+(?:\.\d+)*\b(?! [a-z])")
NOT_CITATIONS = {Path("tests/test_citations.py"), Path("src/fedarena/reports/charts/svg.py")}  # paths of an SVG: M-4,0


def files() -> Iterator[Path]:
    for folder in FOLDERS:
        found = (path for path in sorted((ROOT / folder).rglob("*")) if path.suffix in SUFFIXES)
        yield from (path for path in found if path.relative_to(ROOT) not in NOT_CITATIONS)
    yield from (ROOT / name for name in ("README.md", "CONTRIBUTING.md"))


TEXTS = {path.relative_to(ROOT): path.read_text(encoding="utf-8") for path in files()}


def test_cited_pages_and_anchors_exist() -> None:
    dangling = []
    for file, text in TEXTS.items():
        for cited in PATH.finditer(text):
            page = ROOT / cited[0].partition("#")[0]
            if not page.exists() or (cited["anchor"] and cited["anchor"] not in anchors(page)):
                dangling.append(f"{file}: {cited[0]}")
    assert not dangling


@pytest.mark.parametrize("file", TEXTS, ids=str)
def test_marks_are_explained_and_linked(file: Path) -> None:
    """Code names the page, pages link to it; recipes may name the mark alone, because result files repeat their notes."""
    text, may_be_bare = TEXTS[file], file.suffix == ".toml" or REFERENCE in (ROOT / file).parents
    for mark in MARK.finditer(text):
        page, anchor = REFERENCE / f"{PAGES_OF_MARKS[mark['letter']]}.md", mark[0].lower()
        assert anchor in anchors(page), f"{mark[0]} is not explained on {page.relative_to(ROOT)}"
        is_link = text[: mark.start()].endswith("[") and text[mark.end() :].startswith("](")
        assert may_be_bare or is_link, f"{file}: cite docs/reference/{page.name}#{anchor} in place of {mark[0]}"


@pytest.mark.parametrize("file", [file for file in TEXTS if file.suffix in (".py", ".md")], ids=str)
def test_no_citation_by_section_number(file: Path) -> None:
    """Numbers of sections do not say which page they belong to; a link may show one."""
    text = re.sub(r"\[[^\]]*\]\([^)]*\)", "", TEXTS[file])
    assert not SECTION.findall(text)
