"""Suites on the first page of the ui: their sentences, and their federations among the comparisons."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import fedarena as fa
from fedarena.ui import comparison_page, overview
from fedarena.ui.catalogue import Catalogue


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    tables = [{"name": f"n{n}", "data": "digits", "model": "logreg", "rounds": 1, "clients": n} for n in (3, 4, 5)]
    fa.compare(tables, ["fedavg", "scaffold"], seeds=2, baseline=False, out=folder / "s", workers=2)
    return folder


@pytest.mark.slow
def test_the_sentences_and_the_federations_are_shown(runs: Path) -> None:
    catalogue = Catalogue(runs)
    page = overview.page(catalogue)
    for text in fa.load(runs / "s").words:
        assert f"<p>{text}</p>" in page
    listing = catalogue.scan()
    assert {match.name for match in listing.comparisons} == {f"s/federations/n{n}" for n in (3, 4, 5)}
    assert [match.state for match in listing.comparisons] == ["finished"] * 3
    (suite,) = listing.suites
    assert suite.state == "finished"
    assert suite.federations == ("n3", "n4", "n5")
    report = comparison_page.report(catalogue, suite.id)
    assert report is not None
    assert "Which algorithm for federations like these?" in report


def test_an_unfinished_or_damaged_suite_stops_no_page(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "s", tmp_path / "half")
    (tmp_path / "half" / "verdict.json").unlink()
    for name, text in (("broken", "{"), ("empty", "{}"), ("list", "[]")):
        shutil.copytree(runs / "s", tmp_path / name)
        (tmp_path / name / "suite.json").write_text(text)
    shutil.copytree(runs / "s", tmp_path / "odd")
    (tmp_path / "odd" / "verdict.json").write_text(json.dumps({"verdict": ["<script>alert(1)</script>"]}))
    catalogue = Catalogue(tmp_path)
    states = {suite.name: suite.state for suite in catalogue.scan().suites}
    assert states == {
        "half": "interrupted",
        "broken": "damaged",
        "empty": "damaged",
        "list": "damaged",
        "odd": "finished",
    }
    page = overview.page(catalogue)
    assert "<script>alert" not in page
    assert len(catalogue.scan().comparisons) == 15
