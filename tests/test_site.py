"""The documentation site is built without a warning, loads nothing from other sites, and shows every public name in use."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import json
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from html.parser import HTMLParser
from pathlib import Path

import pytest

import fedarena as fa
from fedarena.config import registry
from tests.support import forked_processes

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "use": "href", "image": "href"}


def build(config: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Build a site strictly; not with --quiet, with which warnings are not counted."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(config), "-d", str(folder)]
    return forked_processes.run(command, timeout=300)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site as `make docs` does."""
    pytest.importorskip("mkdocs")
    pytest.importorskip("mkdocstrings")
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT / "mkdocs.yml", folder)
    assert done.returncode == 0, done.stderr + done.stdout
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [
        "[a page](nowhere.md)",
        "[a heading](index.md#nowhere)",
        "[a file](../nowhere.toml)",
        "::: fedarena.nowhere",
        None,
    ],
)
def test_a_broken_page_stops_the_build(page: str | None, tmp_path: Path) -> None:
    """`None` is a page that is missing in the navigation."""
    pytest.importorskip("mkdocs")
    pytest.importorskip("mkdocstrings")
    (tmp_path / "docs").mkdir()
    for name in ("hooks.py", "site.css"):
        shutil.copy(DOCS / name, tmp_path / "docs")
    for name in ("CONTRIBUTING.md", "CHANGELOG.md"):
        (tmp_path / name).write_text("# A page\n", encoding="utf-8")
    shutil.copytree(ROOT / "src" / "fedarena" / "config", tmp_path / "src" / "fedarena")
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[0]
    nav = "\nnav:\n  - index.md\n  - contributing.md\n  - changes.md\n"
    (tmp_path / "mkdocs.yml").write_text(settings + nav, encoding="utf-8")
    (tmp_path / "docs" / "index.md").write_text("# A page\n", encoding="utf-8")
    good = build(tmp_path / "mkdocs.yml", tmp_path / "good")
    assert good.returncode == 0, good.stderr + good.stdout
    where = "other.md" if page is None else "index.md"
    (tmp_path / "docs" / where).write_text(f"# A page\n\n{page}\n", encoding="utf-8")
    assert build(tmp_path / "mkdocs.yml", tmp_path / "bad").returncode == 1


class Loaded(HTMLParser):
    """Collects the addresses that a browser loads with a page, without those that a reader may follow."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "link" and given.get("rel") not in ("canonical", "next", "prev"):
            self.addresses.append(given.get("href") or "")
        if tag in LOADED:
            self.addresses.append(given.get(LOADED[tag]) or "")


@pytest.mark.slow
def test_pages_load_nothing_from_another_site(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > len(list(DOCS.rglob("*.md")))
    for page in pages:
        text = page.read_text(encoding="utf-8")
        reader = Loaded()
        reader.feed(text)
        assert len(reader.addresses) > 3
        assert not [address for address in reader.addresses if re.match(r"(\w+:)?//", address)], page
        assert not re.search(r"@import|url\(['\"]?(https?:)?//", text), page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(@import\s+|url\()['\"]?(https?:)?//", sheet.read_text(encoding="utf-8")), sheet


@pytest.mark.slow
def test_the_site_has_every_public_name_with_an_example(site: Path) -> None:
    html = "".join(page.read_text(encoding="utf-8") for page in (site / "api").rglob("index.html"))
    for name in fa._MODULES:
        assert re.search(rf'<h[23] id="fedarena\.[\w.]*\b{name}"', html, re.IGNORECASE), name
    assert html.count("pycon") >= len(fa._MODULES)
    assert "&gt;&gt;&gt; " not in re.sub(r"<(pre|code).*?</\1>", "", html, flags=re.DOTALL)


@pytest.mark.slow
def test_every_page_can_be_found_by_the_search(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    found = {entry["location"].partition("#")[0] for entry in index["docs"]}
    for page in DOCS.rglob("*.md"):
        place = page.relative_to(DOCS).with_suffix("").as_posix().removesuffix("index").rstrip("/")
        assert (f"{place}/" if place else "") in found, page


@pytest.mark.slow
def test_files_that_pages_link_to_are_in_the_site(site: Path) -> None:
    for file in ("examples/own_loss.py", "notebooks/first_comparison.ipynb", "src/fedarena/algorithms/moon.py"):
        assert (site / "files" / file).read_bytes() == (ROOT / file).read_bytes()


def test_examples_of_the_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mkdocs")
    pytest.importorskip("griffe")
    spec = importlib.util.spec_from_file_location("site_hooks", DOCS / "hooks.py")
    assert spec is not None
    assert spec.loader is not None
    hooks = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "site_hooks", hooks)
    spec.loader.exec_module(hooks)
    result = doctest.testmod(hooks)
    assert (result.failed, result.attempted) == (0, 3)


@pytest.mark.parametrize("name", fa._MODULES)
def test_every_public_name_has_an_example(name: str) -> None:
    """`tests/test_docs.py` runs them."""
    assert ">>> " in (getattr(fa, name).__doc__ or "")


def test_every_public_name_is_documented_once() -> None:
    entry = re.compile(r"^::: ([\w.]+)\n(?:    options:\n      heading: (\w+)\n)?", re.MULTILINE)
    named = []
    for page in sorted((DOCS / "api").glob("*.md")):
        for path, heading in entry.findall(page.read_text(encoding="utf-8")):
            module, _, last = path.rpartition(".")
            named.append(heading or last)
            assert getattr(importlib.import_module(module), last) is getattr(fa, named[-1])
    assert sorted(named) == sorted(fa._MODULES)


# The first page of the repository


def test_badges_are_those_that_the_script_draws() -> None:
    drawn = runpy.run_path(str(DOCS / "images" / "draw_badges.py"))["BADGES"]
    assert drawn == {path.name: path.read_text(encoding="utf-8") for path in (DOCS / "images").glob("badge-*.svg")}


def test_counts_of_the_readme_are_right() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    ours = lambda kind: [e for e in registry.components(kind).values() if e.make.__module__.startswith("fedarena.")]
    robust = re.search(r"Robust:\n((?: +- .*\n)+?)          - ", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert robust
    words = {8: "eight", 9: "nine"}
    assert f"| {len(ours('algorithm'))} algorithms |" in text
    assert f"[{words[len(ours('attack'))]} attacks]" in text
    assert f"against {words[robust[1].count('- ')]} defences" in text


def test_the_citation_has_version_and_licence_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {project['version']}\n" in citation
    assert f"\nlicense: {project['license']}\n" in citation
