"""The walk of docs/hospitals.md: four files, a comparison, a real federation over TLS, and predictions everywhere."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import fedarena as fa
from fedarena.cli.main import app
from fedarena.data.table_reader import read_table
from fedarena.results.trained_model import trained_model
from fedarena.transport.certificates import make_federation_keys
from tests.federation.test_final_model import Party

PAGE = Path(__file__).parent.parent / "docs" / "hospitals.md"
HOSPITALS = ("basel", "bern", "chur", "zug")
FILES = [f"{name}.csv" for name in HOSPITALS]


def blocks(kind: str) -> list[str]:
    """Return the code blocks of the page that are of a kind."""
    return [part.split("```", 1)[0] for part in PAGE.read_text(encoding="utf-8").split(f"```{kind}\n")[1:]]


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """The four files of the page, and its experiment."""
    monkeypatch.chdir(tmp_path)
    exec(compile(blocks("python")[0], str(PAGE), "exec"), {})
    (tmp_path / "operation.toml").write_text(blocks("toml")[0])
    return tmp_path


@pytest.fixture
def started() -> Iterator[list[Party]]:
    """The processes of the test, which are killed if it fails."""
    every: list[Party] = []
    yield every
    for party in every:
        party.process.kill()


def ok(*words: str) -> str:
    done = CliRunner().invoke(app, [*words])
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.slow
def test_from_four_files_to_predictions_at_every_hospital(folder, started):
    pytest.importorskip("flwr")
    shown = ok("data", "show", *FILES, "--label", "outcome", "-q")
    assert "600 rows, classification" in shown
    assert all(name in shown for name in HOSPITALS)

    options = [
        "-a",
        "fedavg",
        "-a",
        "local",
        "--metric",
        "auc",
        "--evaluate-on",
        "own",
        "--folds",
        "3",
        "--missing",
        "mean",
    ]
    words = [
        "compare",
        *FILES,
        "--label",
        "outcome",
        *options,
        "--out",
        "trial",
        "--report",
        "verdict.html",
        "--json",
        "-q",
    ]
    result = json.loads(ok(*words, "--set", "rounds=5"))
    assert (result["metric"], result["evaluate_on"]) == ("auc", "own")
    assert all(score > 0.6 for scores in result["scores"].values() for score in scores)
    assert "auc" in Path("verdict.html").read_text(encoding="utf-8").lower()

    make_federation_keys(Path("keys"), list(HOSPITALS))
    def begin(*words: str) -> Party:
        started.append(Party(folder, *words, "--json"))
        return started[-1]

    server = begin("serve", "operation.toml", "--address", "127.0.0.1:0", "--out", "operation")
    address = server.until("listening on ").split("listening on ")[1].split()[0]
    for name in HOSPITALS:
        begin("join", "--data", f"{name}.csv", "--server", address, "--name", name, "--yes", "--out", f"{name}-model")
    assert all(party.result() for party in started)

    table = read_table("bern.csv").slice(0, 40).drop_columns(["outcome"])
    served = fa.load("operation")
    encoded = torch.from_numpy(trained_model(served).encode(table))
    expected = served.model()(encoded).detach().numpy()
    for name in HOSPITALS:
        ok("predict", f"{name}-model", "bern.csv", "-o", f"{name}-scores.csv", "-q")
        rows = list(csv.DictReader(Path(f"{name}-scores.csv").read_text().splitlines()))[:40]
        found = np.array([[float(row["p_ill"]), float(row["p_well"])] for row in rows])
        assert found == pytest.approx(expected, abs=1e-6)
        assert {row["prediction"] for row in rows} == {"ill", "well"}
