"""A run on a table that was recorded before encodings were fitted on each split is verified and resumed in that form.

tests/old_tables holds the table, and the run that version 0.2 made on a fold of it. Data recorded then have the hash of the
standardised columns, which `resume` compares.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import fedarena as fa
from fedarena.config.errors import ResumeMismatch
from fedarena.engine.setup import partition_data
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


PUBLISHED = {  # the hashes of data that version 0.2 recorded
    "breast_cancer": "6211735a3fa2a07b141323fa47d59527fea7f746ed4a5572a104bddebfd0aff6",
    "heart_disease": "d8bd2051dd041467f36b091f76e3dc8075e7aec6efb623cfe2576eaa520cbee7",
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_an_old_run_on_a_published_table_has_its_data(name: str, tmp_path: Path) -> None:
    (tmp_path / "experiment.toml").write_text(f'data = {{ name = "{name}" }}\nrounds = 2\n')
    old, new = read_experiment(tmp_path), fa.Experiment.make(name)
    assert (old.data.settings["fitted_on"], new.data.settings["fitted_on"]) == ("file", "split")
    try:
        assert old.data.made.load(0).fingerprint() == PUBLISHED[name]
    except fa.DataMissing as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("fold", [0, 1])
def test_a_published_table_is_encoded_for_each_split(fold: int) -> None:
    settings = {"folds": 2, "fold": fold, "fold_seed": 3, "partition": "iid"}
    data, partition = partition_data(fa.Experiment.make("breast_cancer", **settings))
    x = data.x[partition.train_rows].astype(np.float64)
    assert np.allclose(x.mean(axis=0), 0, atol=1e-6)
    assert np.allclose(x.std(axis=0), 1, atol=1e-6)
    once, _ = partition_data(fa.Experiment.make({"data": {"name": "breast_cancer", "fitted_on": "file"}}, **settings))
    assert abs(once.x[partition.train_rows].mean(axis=0)).max() > 0.01


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
