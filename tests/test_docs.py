"""Every page of the documentation does what it says, in an empty folder, with the embedded data sets only.

How a page is read. Blocks run in order, Python blocks of a page in one namespace:

    ```python     is executed; a ```text block right after it is what it prints
    ```console    every line `$ fedarena ...` is run, what follows is what it prints; other commands are for the reader
                  `# exit code 2` at the end of a line says that it fails so; 0 is expected otherwise

An HTML comment on the line above a block changes that:

    <!-- file: mine.py -->     the block, of any kind, is written to that file instead
    <!-- not run: why -->      the block is skipped
    <!-- own process -->       each of its commands runs in a process of its own, as a user would run it (slower)

Of printed lines the words must be right, line by line and in order; lines may be left out, `...` stands for anything
within a line, and numbers may differ, because another processor rounds differently.
"""

from __future__ import annotations

import contextlib
import doctest
import importlib
import io
import os
import re
import runpy
import shlex
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from typer.testing import CliRunner

import fedarena as fa
from fedarena.cli.main import app
from fedarena.config import registry
from fedarena.config.experiment import Experiment
from fedarena.config.settings_tables import Devices, Evaluate, Local, Uplink
from fedarena.models.building import build
from fedarena.models.compiled import library
from fedarena.runtimes.serial import SerialRuntime
from tests.support import forked_processes
from tests.test_imports import LAYERS

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
SOURCES = ROOT / "src"
PAGES = [*sorted(DOCS.rglob("*.md")), *(p for p in [ROOT / "README.md"] if p.exists())]

BLOCK = re.compile(r"^(?:<!-- *(?P<mark>.*?) *-->\n)?```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\((?P<file>[^)#\s]*)(?:#(?P<heading>[^)\s]*))?\)")
EXIT_CODE = re.compile(r"# exit code (\d+)\s*$")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


# Reading a page


@dataclass(frozen=True)
class Block:
    """A fenced block: its first line, its kind, and the comment above it."""

    line: int
    kind: str
    text: str
    mark: str
    follows: bool  # nothing but empty lines between it and the block before


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    end = -1
    for match in BLOCK.finditer(text):
        follows = end >= 0 and not text[end : match.start()].strip()
        first = text.count("\n", 0, match.start("text")) + 1
        yield Block(first, match["kind"], match["text"], match["mark"] or "", follows)
        end = match.end()


@dataclass(frozen=True)
class Command:
    """A line `$ fedarena ...` and the output shown below it."""

    line: int
    words: list[str]
    code: int
    shown: str


def commands(block: Block) -> Iterator[Command]:
    text = re.sub(r"\\\n\s*", " ", block.text)
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        typed, _, shown = part.partition("\n")
        words = shlex.split(typed, comments=True)
        if words[:1] == ["fedarena"]:
            code = EXIT_CODE.search(typed)
            yield Command(block.line, words[1:], int(code[1]) if code else 0, shown)


# Running a page


class Reader:
    """Runs everything a page shows, in one folder and one Python session."""

    def __init__(self, page: Path, session: types.ModuleType) -> None:
        self.page, self.session, self.printed = page, session, ""

    def read(self) -> None:
        for block in blocks(self.page):
            place = f"{name_of(self.page)}, line {block.line}"
            if block.mark.startswith("not run"):
                continue
            if block.mark.startswith("file:"):
                Path(block.mark.removeprefix("file:").strip()).write_text(block.text, encoding="utf-8")
            elif block.kind == "python":
                self.printed = self.execute(block)
            elif block.kind == "text" and block.follows:
                compare(block.text, self.printed, place)
            elif block.kind == "console":
                for command in commands(block):
                    run = as_a_user if block.mark == "own process" else in_this_process
                    code, printed = run(command.words)
                    typed = shlex.join(["fedarena", *command.words])
                    assert code == command.code, f"{place}: `{typed}` ends with exit code {code}\n{printed}"
                    compare(command.shown, printed, f"{place}: `{typed}`")

    def execute(self, block: Block) -> str:
        code = compile("\n" * (block.line - 1) + block.text, name_of(self.page), "exec")
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(code, vars(self.session))
        return printed.getvalue()


def in_this_process(words: list[str]) -> tuple[int, str]:
    result = CliRunner().invoke(app, words)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stderr + result.stdout  # messages come before results, as on a terminal


def as_a_user(words: list[str]) -> tuple[int, str]:
    command = [sys.executable, "-m", "fedarena", *words]
    done = forked_processes.run(command, timeout=120)
    return done.returncode, done.stderr + done.stdout


def plain(line: str) -> str:
    """Return a line without what may differ: hashes, numbers, and the width of spaces and rules."""
    line = re.sub(r"\b(?=[0-9a-f]*\d)[0-9a-f]{8,}\b", "#", line)
    line = re.sub(r"compiled avx\w+|\btape\b", "fast", line)  # which path is fast depends on the machine
    line = re.sub(r"[-+]?\d+(?:[.,:]\d+)*(?:e[-+]?\d+)?", "#", line)
    line = re.sub(r"[─━╸]+", "─", line)
    return " ".join(line.split())


def compare(shown: str, printed: str, place: str) -> None:
    """Fail unless every line that the page shows was printed, in this order."""
    lines = iter([plain(line) for line in printed.splitlines()])
    for line in filter(None, map(plain, shown.splitlines())):
        pattern = ".*".join(map(re.escape, line.split("...")))
        if not any(re.fullmatch(pattern, other) for other in lines):
            pytest.fail(f"{place} shows\n    {line}\nbut there was printed\n{printed}", pytrace=False)


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    """Provide an empty folder and a new `__main__`, with clients in this process; remove components registered meanwhile."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDARENA_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(SOURCES), *filter(None, [os.environ.get("PYTHONPATH")])]))
    monkeypatch.setattr(
        "fedarena.experiments.run.ProcessRuntime", lambda site, workers: SerialRuntime(site)
    )  # the same bits, in less time
    main = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    for kind in registry._BUILT_IN:
        registry.components(kind)  # type: ignore[arg-type]
    before = {kind: dict(entries) for kind, entries in registry._entries.items()}
    yield main
    for kind, entries in before.items():
        registry._entries[kind].clear()
        registry._entries[kind].update(entries)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_page_does_what_it_says(page: Path, session: types.ModuleType) -> None:
    Reader(page, session).read()


@pytest.mark.parametrize("page", sorted([*DOCS.glob("*.md"), *DOCS.glob("reference/*.md")]), ids=name_of)
def test_page_begins_with_what_it_is_for(page: Path) -> None:
    """A page has a title, then a short first paragraph."""
    title, _, rest = page.read_text(encoding="utf-8").partition("\n\n")
    assert title.startswith("# ")
    first = rest.partition("\n\n")[0]
    assert re.match(r"[A-Z`*]", first)
    assert 40 < len(first) < 500


def test_pages_begin_with_different_words() -> None:
    """A formula that all pages share says nothing about the page."""
    starts = [" ".join(page.read_text(encoding="utf-8").partition("\n\n")[2].split()[:6]) for page in DOCS.glob("*.md")]
    assert len(set(starts)) == len(starts)


# Examples in the code

MODULES = [
    str(path.relative_to(SOURCES).with_suffix("")).replace("/", ".").removesuffix(".__init__")
    for path in sorted(SOURCES.rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]


@pytest.mark.slow
@pytest.mark.parametrize("module", MODULES)
def test_examples_in(module: str, session: types.ModuleType) -> None:
    result = doctest.testmod(importlib.import_module(module), optionflags=doctest.ELLIPSIS)
    assert result.attempted > 0
    assert result.failed == 0


# Pages that must be complete


def rows_of_table(page: str) -> Iterator[list[str]]:
    """Yield the cells of every table row whose first cell is a name in backquotes."""
    for line in (DOCS / page).read_text(encoding="utf-8").splitlines():
        cells = [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if cells and re.fullmatch(r"`[\w.]+`", cells[0]):
            yield [cells[0].strip("`"), *cells[1:]]


@pytest.mark.parametrize(
    ("table", "prefix"),
    [(Experiment, ""), (Local, "local."), (Evaluate, "evaluate."), (Devices, "devices."), (Uplink, "uplink.")],
)
def test_every_key_is_explained_with_its_default(table: type[BaseModel], prefix: str) -> None:
    explained = {name: (default, meaning) for name, _, default, meaning in rows_of_table("experiment.md")}
    for key, field in table.model_fields.items():
        assert prefix + key in explained, f"docs/experiment.md does not explain {prefix}{key}"
        default, meaning = explained[prefix + key]
        assert len(meaning) > 10
        if isinstance(field.default, str | bool | int | float):
            assert default.strip("`").lower() == str(field.default).lower(), f"the default of {prefix}{key}"
        elif field.default is None:
            assert "none" in default, f"the default of {prefix}{key}"


def test_keys_that_are_explained_exist() -> None:
    known = [
        *Experiment.model_fields,
        *(f"local.{key}" for key in Local.model_fields),
        *(f"evaluate.{key}" for key in Evaluate.model_fields),
        *(f"devices.{key}" for key in Devices.model_fields),
        *(f"uplink.{key}" for key in Uplink.model_fields),
    ]
    assert {name for name, *_ in rows_of_table("experiment.md")} <= set(known)


@pytest.mark.parametrize(
    ("kind", "page"),
    [
        ("partition", "partitions.md"),
        ("model", "models.md"),
        ("dataset", "your-data.md"),
        ("attack", "attacks.md"),
    ],
)
def test_every_component_has_its_place(kind: registry.Kind, page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    ours = {n: e for n, e in registry.components(kind).items() if e.make.__module__.startswith("fedarena.")}
    missing = [name for name in ours if f"`{name}`" not in text]
    for name in ours.keys() - set(missing):
        for setting in ours[name].parameters:
            assert re.search(rf"`{setting}\b[^`]*`", text), f"docs/{page} does not explain {name}.{setting}"
    assert not missing, f"docs/{page} does not mention {', '.join(missing)}"


@pytest.mark.parametrize("row", list(rows_of_table("models.md")), ids=lambda row: f"{row[0]} {row[1]} on {row[2]}")
def test_counts_of_parameters_are_right(row: list[str]) -> None:
    name, settings, shape, classes, count, path = row
    given: dict[str, Any] = {}
    if settings:
        given = Experiment.make("digits", [f"model.name={name}", f"model.{settings.strip('`')}"]).model.settings
    numbers = tuple(int(n) for n in shape.split(" x "))
    make = registry.find("model", name).build(given)
    task = build(make, numbers, int(classes.replace(",", "")), seed=0, is_text=name.endswith("_lstm"))
    assert f"{task.size:,}" == count
    ours = task.path.partition(" ")[0]
    assert ours == path or (ours, path, library()) == ("tape", "compiled", None)


def slug(heading: str) -> str:
    """Return the anchor of a heading, as GitHub forms it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def headings(page: Path) -> set[str]:
    text = BLOCK.sub("", page.read_text(encoding="utf-8"))
    return {slug(match[1]) for match in re.finditer(r"^#+ (.*)$", text, re.MULTILINE)}


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page: its headings, and those that are set explicitly."""
    return headings(page) | set(re.findall(r'<a id="([^"]+)">', page.read_text(encoding="utf-8")))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for link in LINK.finditer(BLOCK.sub("", page.read_text(encoding="utf-8"))):
        if re.match(r"\w+:", link["file"]):
            continue  # another site's
        target = page.parent / link["file"] if link["file"] else page
        assert target.exists(), f"{name_of(page)} links to {link['file']}"
        if link["heading"] and target.suffix == ".md":
            assert link["heading"] in anchors(target), f"{name_of(page)} links to {link[0]}"


def test_the_index_leads_to_every_page() -> None:
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    linked = {link["file"] for link in LINK.finditer(index)}
    assert {page.name for page in DOCS.glob("*.md")} - {"index.md"} <= linked


def test_engine_by_hand_gives_the_bits_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "examples")
    example = importlib.import_module("engine_by_hand")
    by_hand = example.main(rounds=2)
    skewed = {"name": "label_dirichlet", "beta": 0.3}
    settings: dict[str, Any] = {"partition": skewed, "model": "mlp_2nn", "clients": 10, "share": 0.5, "rounds": 2}
    run = fa.run("digits", algorithm=fa.FedProx(mu=0.1), **settings, out=False, runtime="serial")
    assert by_hand == run.weights_sha256


# The page on the architecture

FIGURES = sorted((DOCS / "images").glob("life-of-*.svg"))


@pytest.mark.parametrize("page", [DOCS / "architecture.md", *FIGURES], ids=name_of)
def test_files_of_the_architecture_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    package = SOURCES / "fedarena"
    named = set(re.findall(r"[`>]((?:\w+/)+(?:\w+\.py)?)[`<]", text))
    assert len(named) > 5
    missing = {name for name in named if not (package / name).exists() and not (ROOT / name).exists()}
    assert not {name for name in missing if "NAME" not in name}


def test_the_architecture_names_every_folder() -> None:
    folders = {path.parent.name for path in (SOURCES / "fedarena").glob("*/__init__.py")}
    assert folders == set(re.findall(r"^\| `(\w+)/`", (DOCS / "architecture.md").read_text("utf-8"), re.MULTILINE))


def test_figures_are_those_that_the_script_draws() -> None:
    script = runpy.run_path(str(DOCS / "images" / "draw_architecture.py"))
    assert {f"life-of-{name}.svg": drawn for name, drawn in script["FIGURES"].items()} == {
        path.name: path.read_text(encoding="utf-8") for path in FIGURES
    }


def test_contributing_has_the_import_order() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    order = re.search(r"in this order:(.*?)\.\n", text, re.DOTALL)
    assert order
    assert re.findall(r"`(\w+)`", order[1]) == [layer for layer in LAYERS if layer != "__main__"]


@pytest.mark.slow
@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=name_of)
def test_tests_that_a_page_names_exist(page: Path) -> None:
    known = {path.name for path in (ROOT / "tests").rglob("test_*.py")}
    assert set(re.findall(r"\btest_\w+\.py\b", page.read_text(encoding="utf-8"))) <= known


def test_pictures_are_small() -> None:
    for picture in DOCS.rglob("*.png"):
        assert picture.stat().st_size < 150_000, picture
