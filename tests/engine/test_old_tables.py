"""A run on a table that was recorded before encodings were fitted on each split is verified and resumed in that form.

tests/old_tables holds the table, and the run that version 0.2 made on a fold of it. Data recorded then have the hash of the
standardised columns, which `resume` compares.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import fedarena as fa
from fedarena.config.errors import ResumeMismatch
from fedarena.results.run_folder import read_experiment, versions

OLD = Path(__file__).parents[1] / "old_tables"
SAME = ("torch", "numpy", "processor", "kernels")  # on which bits depend


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a copy of the old run, which names the copy of its table."""
    copy, table = Path(shutil.copytree(OLD / "run", tmp_path / "run")), shutil.copy(OLD / "patients.csv", tmp_path)
    (copy / "checkpoint" / "clients").mkdir(exist_ok=True)
    text = (copy / "experiment.toml").read_text()
    (copy / "experiment.toml").write_text(text.replace('"patients.csv"', json.dumps(str(table))))
    return copy


def test_an_old_run_is_read_in_its_form(folder: Path) -> None:
    assert read_experiment(folder).data.settings["fitted_on"] == "file"
    assert fa.Experiment.make(folder / "experiment.toml").data.settings["fitted_on"] == "split"


@pytest.mark.slow
def test_an_old_run_is_verified_and_resumed_in_its_form(folder: Path) -> None:
    made_by = json.loads((folder / "versions.json").read_text())
    verdict = fa.verify(folder)
    if all(versions()[key] == made_by[key] for key in SAME):
        assert verdict.differences == []
    longer = fa.run(resume=folder, rounds=4, runtime="serial")  # raises if the data are not those of the record
    assert len(longer.records) == 4
    settings = {"label": "ill", "client": "site", "missing": "mean"}
    again = {"rounds": 5, "folds": 3, "fold": 1, "fold_seed": 4, "runtime": "serial"}
    table = folder.parent / "patients.csv"
    assert len(fa.run(table, resume=folder, **settings, **again).records) == 5
    assert not (folder / "preprocessing.json").exists()


@pytest.mark.slow
def test_a_changed_table_is_noticed(folder: Path) -> None:
    table = folder.parent / "patients.csv"
    table.write_text(table.read_text().replace("north", "nord", 1))
    with pytest.raises(ResumeMismatch, match="the data"):
        fa.run(resume=folder, rounds=4, runtime="serial")


@pytest.mark.slow
def test_a_run_saves_its_preprocessing_and_notices_changes(tmp_path: Path) -> None:
    settings = {"label": "ill", "client": "site", "rounds": 2, "runtime": "serial", "folds": 3, "fold": 0}
    run = fa.run(OLD / "patients.csv", out=tmp_path / "r", **settings)
    file = tmp_path / "r" / "preprocessing.json"
    table = json.loads(file.read_text())
    assert [column["name"] for column in table["columns"]] == ["age", "pressure", "ward"]
    assert (table["task"], table["label"], table["classes"]) == ("classification", ["ill"], ["no", "yes"])
    assert fa.verify(tmp_path / "r").same
    parallel = fa.run(OLD / "patients.csv", out=False, **{**settings, "runtime": "processes", "workers": 2})
    assert parallel.weights_sha256 == run.weights_sha256
    assert fa.run(resume=tmp_path / "r", rounds=3, runtime="serial").records[:2] == run.records
    file.write_text(file.read_text().replace("pressure", "blood"))
    assert any("preprocessing.json" in line for line in fa.verify(tmp_path / "r").differences)
