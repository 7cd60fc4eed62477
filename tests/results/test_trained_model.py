"""A model in use: predictions from tables, intervals, files for other programs, without the data it was trained on."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.support.made_tasks import MadeTask
from typer.testing import CliRunner

import fedarena as fa
from fedarena.cli.main import app
from fedarena.config.errors import FedarenaError
from fedarena.results.model_file import MOST_ERRORS, ModelFacts, _thinned, read_model_facts
from fedarena.results.trained_model import TrainedModel, trained_model

COLUMNS = ("age", "sex", "pressure", "stay", "outcome")


def write_hospital(path: Path, seed: int, rows: int = 80) -> Path:
    """Write the table of a hospital, with missing values; the outcome and the length of stay depend on age and sex."""
    rng = np.random.default_rng(seed)
    age, sex, pressure = rng.normal(60, 10, rows), rng.choice(["f", "m"], rows), rng.normal(120, 15, rows)
    stay = 2 + 0.1 * (age - 50) + 1.5 * (sex == "m") + rng.normal(0, 0.5, rows)
    outcome = np.where(age + rng.normal(0, 5, rows) > 60, "sick", "well")
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for i in range(rows):
            known = "" if rng.random() < 0.05 else f"{age[i]:.1f}"
            writer.writerow([known, sex[i], f"{pressure[i]:.1f}", f"{stay[i]:.2f}", outcome[i]])
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Three hospitals, and a run of each task on them."""
    path = tmp_path_factory.mktemp("hospitals")
    files = [write_hospital(path / f"{name}.csv", seed) for seed, name in enumerate(("basel", "bern", "chur"))]
    keys = {"rounds": 8, "runtime": "serial"}
    fa.run(files, label="outcome", drop=("stay",), out=path / "class", **keys)
    fa.run(files, label="stay", drop=("outcome",), out=path / "stay", **keys)
    fa.run(files, label="outcome", drop=("stay",), algorithm="local", out=path / "own", **keys)
    write_hospital(path / "new.csv", 9, rows=40)
    return path


NEW = {"age": [40.0, 80.0, None], "sex": ["f", "m", "x"], "pressure": [120.0, 130.0, 110.0]}


@pytest.mark.slow
def test_a_class_and_its_probabilities(folder):
    found = fa.load(folder / "class").predict(NEW)
    assert list(found) == ["prediction", "p_sick", "p_well"]
    assert found["prediction"][:2].tolist() == ["well", "sick"]
    assert found["p_sick"] + found["p_well"] == pytest.approx(1)


def test_predictions_are_those_of_the_evaluation(folder):
    """The model in the folder, on the test samples of the run, has the metrics that the run recorded."""
    run = fa.load(folder / "stay")
    context = run.context()
    x = context.data.x[context.owners.test]
    found = run.predict(x)["prediction"]
    labels = context.data.y[context.owners.test]
    assert np.sqrt(np.mean((found - labels) ** 2)) == pytest.approx(run.metrics["rmse"], rel=1e-6)
    again = run.model()(torch.from_numpy(x)).detach().numpy()[:, 0]
    assert again == pytest.approx(found, rel=1e-5)


def test_no_data_is_needed(folder, tmp_path):
    shutil.copytree(folder / "class", tmp_path / "run")
    (folder / "basel.csv").rename(folder / "away.csv")
    try:
        run = fa.load(tmp_path / "run")
        assert isinstance(run.model(), TrainedModel)
        assert len(run.predict(NEW)["prediction"]) == 3
    finally:
        (folder / "away.csv").rename(folder / "basel.csv")


def test_levels_and_columns_are_handled_as_in_training(folder):
    model = trained_model(fa.load(folder / "class"))
    model.predict({**NEW, "colour": ["red"] * 3})
    assert any("colour" in note for note in model.notes)
    assert any("'x'" in note or "x" in note for note in model.notes)
    without = model.predict({"age": [40.0, 80.0]})
    assert any("sex" in note and "pressure" in note for note in model.notes)
    assert without["p_sick"][0] < without["p_sick"][1]


def test_a_model_of_its_own_for_each_client(folder):
    run = fa.load(folder / "own")
    each = [fa.predict(run, NEW, client=name)["p_sick"] for name in ("basel", "bern", "chur")]
    assert not np.allclose(each[0], each[1])
    assert each[1] == pytest.approx(run.predict(NEW, client=1)["p_sick"])
    with pytest.raises(FedarenaError, match="each client has its own"):
        run.predict(NEW)
    with pytest.raises(FedarenaError, match=r"no client of this run is called 'bsel'[\s\S]*did you mean 'basel'"):
        fa.predict(run, NEW, client="bsel")


def test_the_margin_is_an_order_statistic():
    """Of n errors the one in place ceil((n + 1) level): for n = 19 and 90 % the 18th, for 95 % the 19th."""
    facts = ModelFacts("regression", (1,), 1, errors=tuple(map(float, range(1, 20))), samples=19)
    assert (facts.margin(0.9), facts.margin(0.95), facts.margin(0.96)) == (18.0, 19.0, np.inf)
    many = np.arange(1.0, 25_001.0)
    thin = ModelFacts("regression", (1,), 1, errors=tuple(_thinned(many)), samples=len(many))
    assert len(thin.errors) == MOST_ERRORS
    assert 22_501 <= thin.margin(0.9) <= 22_501 + 25  # never below the exact one, which is the 22,501st


@pytest.mark.slow
def test_intervals_cover_new_labels_as_often_as_they_say(tmp_path):
    """Split-conformal coverage: 1,000 test samples calibrate, 4,000 others are covered in 90 % (sd 1.1 points)."""
    made = MadeTask("regression", rows=1200, test=1000)
    run = fa.run(made, rounds=3, clients=4, model="logreg", out=tmp_path / "run", runtime="serial")
    rng = np.random.default_rng(11)
    x = rng.standard_normal((4000, 4)).astype(np.float32)
    y = 50 + 10 * (x @ np.array([1.0, -2.0, 0.5, 0.0]) + 0.3 * rng.standard_normal(4000))
    for level in (0.5, 0.9):
        found = run.predict(x, level=level)
        covered = np.mean((found["lower"] <= y) & (y <= found["upper"]))
        assert abs(covered - level) < 4 * np.sqrt(level * (1 - level) * (1 / 1000 + 1 / 4000))


@pytest.mark.slow
@pytest.mark.parametrize("task", ["class", "stay"])
def test_exported_files_predict_the_same(folder, tmp_path, task):
    onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    run = fa.load(folder / task)
    x = trained_model(run).encode(NEW)
    expected = run.model()(torch.from_numpy(x)).detach().numpy()
    session = onnxruntime.InferenceSession(run.export(tmp_path / "model.onnx"))
    assert session.run(None, {"x": x})[0] == pytest.approx(expected, abs=1e-6)
    program = torch.export.load(run.export(tmp_path / "model.pt2")).module()
    assert program(torch.from_numpy(x)).detach().numpy() == pytest.approx(expected, abs=1e-6)
    with pytest.raises(FedarenaError, match=r"\.onnx or \.pt2"):
        run.export(tmp_path / "model.pickle")


def test_the_command_line_writes_the_predictions(folder, tmp_path):
    cli = CliRunner()
    out = tmp_path / "scores.csv"
    done = cli.invoke(app, ["predict", str(folder / "stay"), str(folder / "new.csv"), "-o", str(out)])
    assert done.exit_code == 0, done.output
    rows = list(csv.DictReader(out.open()))
    expected = fa.predict(folder / "stay", folder / "new.csv")
    assert [float(row["prediction"]) for row in rows] == pytest.approx(expected["prediction"])
    assert all(float(row["lower"]) < float(row["prediction"]) < float(row["upper"]) for row in rows)
    done = cli.invoke(app, ["predict", str(folder / "class"), str(folder / "new.csv"), "--json", "--quiet"])
    assert json.loads(done.stdout)["rows"] == 40
    assert len(json.loads(done.stdout)["predictions"]["p_sick"]) == 40


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["class", "nothing.csv"], "nothing.csv"),
        (["class", "new.csv", "--level", "1.5"], "level = 1.5"),
        (["nowhere", "new.csv"], "nowhere"),
        (["class", "new.csv", "--client", "genf"], "no client of this run is called 'genf'"),
    ],
)
def test_mistakes_get_one_message(folder, arguments, message):
    run, table, *options = arguments
    done = CliRunner().invoke(app, ["predict", str(folder / run), str(folder / table), *options])
    assert done.exit_code == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_damaged_file_is_named(folder, tmp_path):
    shutil.copytree(folder / "class", tmp_path / "run")
    (tmp_path / "run" / "model.json").write_text('{"colour": 1}')
    with pytest.raises(FedarenaError, match=r"model\.json"):
        read_model_facts(tmp_path / "run")
