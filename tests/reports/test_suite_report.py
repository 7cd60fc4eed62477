"""The page of a suite, as text and in a browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.browser import asked_for, browser, complaints, overflow, prefer, resize
from typer.testing import CliRunner

import fedarena as fa
from fedarena.cli.main import app

SUITE = """
data = "digits"
model = "logreg"
clients = 4
rounds = 1
partition = "label_dirichlet"

[grid]
"partition.beta" = [0.1, 1.0, 10.0, 100.0]
"""
SECTIONS = ["verdict", "federations-forest", "settings", "ranks", "federations", "notes", "repeat"]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("suite")
    (folder / "suite.toml").write_text(SUITE)
    algorithms = ["fedavg", "scaffold", "fedprox:mu=0.5"]
    fa.compare(folder / "suite.toml", algorithms, seeds=2, baseline=False, out=folder / "s", workers=2)
    return folder / "s"


@pytest.mark.slow
def test_it_begins_with_the_answer_and_has_every_part(root: Path) -> None:
    found = fa.load(root)
    path = fa.report(root)
    assert path == root / "report.html"
    page = path.read_text()
    assert re.findall(r'<section id="([\w-]+)"', page) == SECTIONS
    assert page.index(found.words[0].replace("&", "&amp;")) < page.index("<svg")
    assert page.count("<h3>") == 3 + 2  # three pairs; the leader against two others along partition.beta
    for name, one in found.federations.items():
        assert f"<dt>{name}<br>" in page
        assert one.words[0] in page
    assert "--seeds 2" in page
    assert "[[federation]]" in page


@pytest.mark.slow
def test_the_command_writes_the_same_page(root: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["report", str(root), "-o", str(tmp_path / "r.html")])
    assert done.exit_code == 0
    assert done.stdout.strip() == str(tmp_path / "r.html")
    assert (tmp_path / "r.html").read_bytes() == fa.report(fa.load(root), tmp_path / "again.html").read_bytes()
    done = CliRunner().invoke(app, ["report", str(root), "--table", "latex"])
    assert done.exit_code == 2


@pytest.fixture(scope="module")
def sight(root: Path) -> Iterator[Any]:
    with browser() as page:
        page.get(fa.report(root).as_uri())
        yield page


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_the_screen(sight: Any, root: Path, width: int, scheme: str) -> None:
    resize(sight, width)
    prefer(sight, scheme)
    sight.get((root / "report.html").as_uri())
    assert complaints(sight) == []
    assert set(asked_for(sight)) == {(root / "report.html").as_uri()}
    sight.execute_script("document.querySelectorAll('details').forEach(d => { d.open = true })")
    assert overflow(sight) == 0
    charts = [c for c in sight.find_elements("css selector", "svg.chart") if c.is_displayed()]
    assert len(charts) == 5
    for chart in charts:
        assert chart.rect["x"] >= 0
        assert chart.rect["x"] + chart.rect["width"] <= width


@pytest.mark.slow
def test_on_a_telephone_the_table_scrolls_and_shows_that_it_does(sight: Any, root: Path) -> None:
    resize(sight, 390)
    sight.get((root / "report.html").as_uri())
    inner, outer, shade = sight.execute_script(
        "const t = document.querySelector('#ranks .scroll');"
        "return [t.scrollWidth, t.clientWidth, getComputedStyle(t).backgroundImage]"
    )
    assert inner > outer  # four federations and the ranks have no room
    assert shade.count("linear-gradient") == 4  # a shadow at the edge behind which more follows
    resize(sight, 1280)
    inner, outer = sight.execute_script(
        "const t = document.querySelector('#ranks .scroll'); return [t.scrollWidth, t.clientWidth]"
    )
    assert inner == outer
