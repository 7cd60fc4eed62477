"""Every algorithm has a page with the right settings, defaults, papers and bytes.

That its examples run and print what it shows is tested with all other pages (test_docs.py).
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

import fedarena as fa
from fedarena.config import registry
from tests.support.algorithm_models import smallest_model
from tests.test_docs import DOCS, LINK, ROOT, blocks, commands, rows_of_table

ENTRIES = {
    name: entry
    for name, entry in registry.components("algorithm").items()
    if entry.make.__module__.startswith("fedarena.")
}
OWN_LAST = ("fedper", "fedrep")  # the last layer, the only one of a logistic regression, is the client's own
SECTIONS = ("Formula", "Settings", "What it is for", "When it fails", "Cost", "Example")
BYTES = re.compile(r"^- Bytes a (?:client and round|merged answer): ([\dP +]+?) down, ([\dP +]+?) up\b", re.MULTILINE)


def page_of(name: str) -> Path:
    return DOCS / "algorithms" / f"{name}.md"


def text_of(name: str) -> str:
    return page_of(name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ENTRIES)
def test_page_has_all_sections(name: str) -> None:
    title, idea, *_ = text_of(name).split("\n\n")
    assert title == f"# `{name}`"
    assert idea.endswith(".")
    assert len(idea) < 250
    assert re.findall(r"^## (.*)$", text_of(name), re.MULTILINE) == list(SECTIONS)


@pytest.mark.parametrize("name", ENTRIES)
def test_page_names_its_papers(name: str) -> None:
    text = text_of(name)
    for number in re.findall(r"arXiv:([\d.]+\d)", ENTRIES[name].paper):
        assert f"[arXiv:{number}](https://arxiv.org/abs/{number})" in text


@pytest.mark.parametrize("name", ENTRIES)
def test_page_explains_every_setting_with_its_range_and_default(name: str) -> None:
    shown = {row[0]: tuple(row[1:3]) for row in rows_of_table(f"algorithms/{name}.md")}
    expected = {p.name: (p.type, f"`{str(p.default).lower()}`") for p in ENTRIES[name].parameters.values()}
    assert shown == expected
    assert all(len(row[3]) > 10 for row in rows_of_table(f"algorithms/{name}.md"))


@pytest.mark.parametrize("name", ENTRIES)
def test_page_shows_an_example_and_what_it_prints(name: str) -> None:
    kinds = list(blocks(page_of(name)))
    assert not any(block.mark.startswith("not run") for block in kinds)
    assert any("algorithm=" in block.text for block in kinds if block.kind == "python")
    assert any(block.kind == "text" and block.follows and block.text.strip() for block in kinds)
    for block in kinds:
        assert all(command.shown.strip() for command in commands(block))


@pytest.mark.parametrize("name", ENTRIES)
def test_page_states_how_many_bytes_are_sent(name: str) -> None:
    """The bytes of the page are those of the first round of a run: 4 P for a vector and 8 for a number."""
    model = smallest_model(name)
    run = fa.run("digits", model=model, algorithm=name, share=0.3, rounds=1, out=False, runtime="serial")
    first, parameters = run.records[0], 0 if name in OWN_LAST else sum(v.numel() for v in run.state.values())
    if name == "fedproto":  # prototypes of classes, counted in tests/algorithms/test_fedproto.py
        return
    if "\n- Bytes: none." in text_of(name):
        assert (first.bytes_down, first.bytes_up) == (0, 0)
        return
    stated = BYTES.search(text_of(name))
    assert stated, f"docs/algorithms/{name}.md does not state `Bytes a client and round: ... down, ... up`"
    down, up = (_count(text, parameters) * first.selected for text in stated.groups())
    assert (first.bytes_down, first.bytes_up) == (down, up)


def _count(text: str, parameters: int) -> int:
    """Return the number of bytes of an expression such as `8 P + 16`."""
    vectors, _, numbers = text.partition(" P")
    return int(vectors) * parameters + int(numbers.strip(" +") or 0)


PERSONAL = sorted({n for n, entry in ENTRIES.items() if getattr(entry.make, "personal", False)} - {"local_trees"})


@pytest.mark.parametrize("name", [*PERSONAL, "moon"])
def test_page_of_a_personalised_algorithm_leads_to_the_comparison(name: str) -> None:
    assert "](../personalise.md)" in text_of(name)


def test_no_page_describes_an_unknown_algorithm() -> None:
    assert {page.stem for page in (DOCS / "algorithms").glob("*.md")} == set(ENTRIES)


# The table


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "examples")
    sys.modules.pop("algorithms_on_digits", None)
    return __import__("algorithms_on_digits")


def accuracies() -> dict[str, float]:
    """Return the mean accuracy in percent of each algorithm in the table of docs/algorithms.md."""
    rows = re.findall(
        r"^\| \[`(\w+)`\]\(algorithms/\1\.md\) \| ([\d.]+) ± ",
        (DOCS / "algorithms.md").read_text("utf-8"),
        re.MULTILINE,
    )
    return {name: float(mean) for name, mean in rows}


def test_every_algorithm_is_in_the_table_and_learns_with_its_defaults() -> None:
    """Chance is 10 % with ten digits; `local` is evaluated on digits that its clients have never seen."""
    table = accuracies()
    assert set(table) == set(ENTRIES)
    assert all(mean > 50 for name, mean in table.items() if name not in ("local", "local_trees")), table
    assert max(table["local"], table["fedavg"]) < table["centralized"]
    assert "diverged" not in (DOCS / "algorithms.md").read_text("utf-8")


def test_the_overview_links_every_algorithm() -> None:
    linked = {
        link["file"] for link in LINK.finditer((DOCS / "algorithms.md").read_text("utf-8").split("## On unlike")[0])
    }
    assert {f"algorithms/{name}.md" for name in ENTRIES} <= linked


@pytest.mark.slow
def test_the_command_writes_the_table_and_nothing_else(script: ModuleType, tmp_path: Path) -> None:
    page = tmp_path / "algorithms.md"
    before = (DOCS / "algorithms.md").read_text("utf-8")
    page.write_text(before, encoding="utf-8")
    lines = list(script.table(seeds=range(2), rounds=1))
    assert len(lines) == 2 + len(ENTRIES)
    assert re.fullmatch(
        r"\| \[`centralized`\]\(algorithms/centralized.md\) \| [\d.]+ ± [\d.]+ \| [\d.]+ \| never \| - \|", lines[2]
    )
    script.write(lines, page)
    after = page.read_text("utf-8")
    assert "\n".join(lines) in after
    outside = lambda text: (text.split(script.BEGIN)[0], text.split(script.END)[1])
    assert outside(after) == outside(before)


def test_the_table_of_tasks_has_every_algorithm() -> None:
    """And no other: the command `python benchmarks/tasks.py` writes it."""
    table = (DOCS / "tasks.md").read_text(encoding="utf-8").split("<!-- begin algorithms -->")[1]
    assert set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) == {*ENTRIES}
