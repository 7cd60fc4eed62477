"""Fine-tuning continues the model of a run on a table of one's own, with its encoding, and compares before and after."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from tests.support.federation_clients import Federation
from typer.testing import CliRunner

import fedarena as fa
from fedarena.cli.main import app
from fedarena.config.errors import BadValue, UnknownName
from fedarena.data.dataset import strata_of
from fedarena.data.sources.class_codes import split_rows
from fedarena.data.table_reader import read_table
from fedarena.engine.setup import open_context
from fedarena.results.built_model import trained_task
from fedarena.results.json_files import write_table
from fedarena.results.own_samples import known_division
from fedarena.results.samples_elsewhere import read_encoding
from fedarena.statistics import metrics


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    made = Federation(tmp_path)
    made.start()
    made.serve(made.experiment(rounds=2, data={"standardise": True}))
    return made


def model_folder(federation: Federation, name: str) -> Path:
    (folder,) = (federation.folder / "clients" / name).glob("*/model")
    return folder


@pytest.mark.slow
def test_one_full_batch_is_one_step_of_gradient_descent_from_the_federation_s_model(federation: Federation) -> None:
    """w - lr * gradient of the mean cross-entropy over the client's training samples, by autograd."""
    folder, file, lr = model_folder(federation, "bravo"), federation.files["bravo"], 0.5
    found = fa.finetune(folder, file, epochs=1, lr=lr, batch=1000, out=False)
    table, encoding = read_table(file), read_encoding(folder)
    train, test = known_division(folder, file) or ((), ())
    x = torch.from_numpy(encoding.encode(table)[0])[train]
    y = torch.tensor([encoding.classes.index(label) for label in table["label"].to_pylist()])[train]
    module = trained_task(fa.load(folder)).module.train()
    loss = torch.nn.functional.cross_entropy(module(x), y)
    gradients = torch.autograd.grad(loss, list(module.parameters()))
    for (name, before), gradient in zip(module.named_parameters(), gradients, strict=True):
        assert torch.allclose(found.run.state[name], before.detach() - lr * gradient, atol=1e-6)
    assert found.samples == (len(train), len(test)) == (44, 11)


@pytest.mark.slow
def test_held_out_samples_are_those_that_the_federation_did_not_train_on(federation: Federation) -> None:
    """Hence the metrics before fine-tuning are those that the client computed at the end of the run."""
    folder = model_folder(federation, "bravo")
    found = fa.finetune(folder, federation.files["bravo"], out=federation.folder / "own")
    assert found.before == fa.load(folder).metrics
    assert found.after == found.run.metrics != found.before
    assert [record.round for record in found.run.records] == [1, 2]
    assert "held-out samples, before and after" in str(found)
    own = fa.load(federation.folder / "own")
    assert own.weights_sha256 == found.run.weights_sha256 != fa.load(folder).weights_sha256
    assert fa.verify(federation.folder / "own").same
    again = fa.finetune(folder, federation.files["bravo"], out=False)
    assert again.run.weights_sha256 == found.run.weights_sha256


@pytest.mark.slow
def test_any_table_with_the_columns_and_classes_can_be_used(federation: Federation) -> None:
    """The model of the server, and a file that took no part: a share of it is held out."""
    rows = read_table(federation.files["alfa"]).to_pylist()[:20]
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    found = fa.finetune(federation.folder / "run", columns, test=0.25, out=False)
    assert found.samples == (15, 5)
    assert any(
        "may be among those that are held out" in note
        for note in fa.finetune(model_folder(federation, "alfa"), columns, out=False).run.notes
    )
    with pytest.raises(BadValue, match="column 'label' holds z, which the model does not know"):
        fa.finetune(federation.folder / "run", {**columns, "label": ["z"] * 20}, out=False)
    with pytest.raises(UnknownName, match="the table has no column 'label'"):
        fa.finetune(federation.folder / "run", {"a": [1.0]}, out=False)
    with pytest.raises(BadValue, match="lr = 0"):
        fa.finetune(federation.folder / "run", columns, lr=0, out=False)


@pytest.mark.slow
def test_the_command_prints_both(federation: Federation) -> None:
    folder, out = model_folder(federation, "charlie"), federation.folder / "own"
    arguments = ["finetune", str(folder), str(federation.files["charlie"]), "--epochs", "1", "-o", str(out), "--json"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    table = json.loads(done.stdout)
    assert table["before"]["accuracy"] == fa.load(folder).metrics["accuracy"]
    assert table["after"] == pytest.approx(fa.load(out).metrics)
    assert table["run_dir"] == str(out)


@pytest.mark.slow
def test_a_regression_continues_with_the_scale_of_its_labels(tmp_path: Path) -> None:
    """The error before is that of the model's output times the deviation of the training labels, plus their mean."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal(60)
    table = pd.DataFrame({"x": x, "y": 100 + 5 * x + rng.standard_normal(60), "site": ["a", "b"] * 30})
    run = fa.run(table, label="y", client="site", rounds=3, out=tmp_path / "run", runtime="serial")
    mean, deviation = open_context(run.experiment).label_scale
    if not (facts := tmp_path / "run" / "model.json").exists():
        with pytest.raises(BadValue, match=r"no model\.json"):
            fa.finetune(run, table, out=False)
        write_table(facts, {"label_scale": [mean, deviation]})
    found = fa.finetune(run, table, epochs=20, lr=0.05, out=tmp_path / "own")
    y = table["y"].to_numpy().astype(np.float32)
    _, held_out = split_rows(strata_of("regression", y), None, 0.2, 0)
    weights, bias = (value.numpy() for value in run.state.values())
    encoded, _ = read_encoding(tmp_path / "run").encode(table)
    predicted = (encoded @ weights.T + bias)[:, 0] * deviation + mean
    assert found.before["rmse"] == pytest.approx(metrics.rmse(y[held_out], predicted[held_out]), rel=1e-5)
    assert found.after["rmse"] < found.before["rmse"]


@pytest.mark.slow
def test_a_run_without_a_table_is_refused(tmp_path: Path) -> None:
    run = fa.run("digits", rounds=1, clients=3, partition="iid", out=tmp_path / "run", runtime="serial")
    with pytest.raises(BadValue, match="its data set is not a table"):
        fa.finetune(run, {"a": np.ones(3)}, out=False)


def test_a_forest_is_refused(tmp_path: Path) -> None:
    table = pd.DataFrame({"a": np.arange(60.0), "y": np.tile(["no", "yes"], 30)})
    run = fa.run(table, label="y", algorithm="histboost", rounds=1, clients=2, out=tmp_path / "run")
    with pytest.raises(BadValue, match="a forest cannot be fine-tuned"):
        fa.finetune(run, table, out=False)
