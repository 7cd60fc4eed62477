"""Trees beside networks in one comparison: scores, bytes, the verdict, the report, and the baselines of both kinds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import fedarena as fa
from fedarena.cli.main import app
from fedarena.config.errors import DataMissing
from fedarena.results.comparison import Comparison

CONTESTANTS = ["fedavg", "histboost:depth=3,bins=16", "treebag:depth=3,bins=16"]


def compared(data: str, folder: Path) -> dict[str, Any]:
    """Run the command of docs/trees.md for few rounds and two splits; return what it prints."""
    try:
        fa.run(data, rounds=1, out=False)
    except DataMissing as error:
        pytest.skip(str(error))
    (folder / "table.toml").write_text(f'data = "{data}"\nrounds = 3\n')
    chosen = [word for name in CONTESTANTS for word in ("-a", name)]
    command = ["compare", str(folder / "table.toml"), *chosen, "--seeds", "2", "--metric", "auc", "--json", "--quiet"]
    result = CliRunner().invoke(app, [*command, "--out", str(folder / "c"), "--workers", "1"])
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("data", ["bank", "breast_cancer"])
def test_networks_and_trees_in_one_comparison(data: str, tmp_path: Path) -> None:
    found = compared(data, tmp_path)
    assert found["algorithms"] == CONTESTANTS
    assert found["metric"] == "auc"
    assert {(row["row"], row["column"]) for row in found["table"]} >= {(CONTESTANTS[0], CONTESTANTS[1])}
    assert all(row["verdict"] in "+=-?" for row in found["table"])
    loaded = Comparison.load(tmp_path / "c")
    for name in CONTESTANTS:
        for score, run in zip(found["scores"][name], loaded.runs[name], strict=True):
            assert 0.5 < score == run.metrics["auc"]
            assert run.final.bytes_up > 0
    sent = {name: loaded.runs[name][0].final.bytes_up for name in CONTESTANTS}
    assert sent[CONTESTANTS[1]] > 10 * sent[CONTESTANTS[2]]  # sums of every bin, and single trees
    splits = [[run.experiment.seed for run in loaded.runs[name]] for name in CONTESTANTS]
    assert splits[0] == splits[1] == splits[2]
    page = fa.report(tmp_path / "c", out=tmp_path / "report.html").read_text()
    assert "There is no verdict" not in page
    assert "The runs are no pairs" not in page
    assert "boosted trees for histboost:depth=3,bins=16 and treebag:depth=3,bins=16" in page


@pytest.mark.slow
def test_the_report_of_trees_has_their_own_budget_and_no_network(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"clients": 3, "partition": "iid", "rounds": 9}
    run = fa.run("wine", algorithm={"name": "histboost", "trees": 2}, out=tmp_path / "r", **settings)
    assert len(run.records) == 2
    page = fa.report(tmp_path / "r", out=tmp_path / "report.html").read_text()
    assert "trees · 2 rounds" in page
    assert "boosted trees" in page
    for text in ("9 rounds", "Local training", "logreg ("):
        assert text not in page.partition("Repeat it</h2>")[0]


@pytest.mark.slow
def test_the_bits_of_a_comparison_do_not_depend_on_workers(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"clients": 3, "partition": "iid", "rounds": 2, "out": False}
    contestants = ["histboost", "treebag", "treecyclic", "local_trees", "centralized_trees"]
    one, two = (fa.compare("wine", contestants, seeds=2, workers=workers, **settings) for workers in (1, 2))
    for name in contestants:
        bits = [[run.weights_sha256 for run in result.runs[name]] for result in (one, two)]
        assert bits[0] == bits[1]
