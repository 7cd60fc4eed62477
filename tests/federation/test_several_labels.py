"""Several labels in a federation: the weights of a simulation, and metrics of each label from masked sums."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.federation_clients import Federation, differences, write

import fedarena as fa
from fedarena.config.errors import BadValue
from fedarena.engine.task_metrics import Predictions
from fedarena.federation import messages
from fedarena.federation.client_data import ClientFile
from fedarena.federation.consent import federated_experiment
from fedarena.federation.evaluation_sums import own_values
from fedarena.federation.multilabel_sums import MultilabelLayout, MultilabelSums
from fedarena.federation.what_leaves import label_lines, what_leaves
from fedarena.models.task import Scores
from fedarena.statistics.metric_registry import measure_labels, metrics_of

SIZES = {"alfa": 61, "bravo": 75, "charlie": 53, "delta": 24}  # 10 test rows or more, but for the last
LABELS = ["infection", "fall", "delirium"]
HEAD = ["site", "a", "b", "c", "d", *LABELS]
METRICS = ("accuracy", "balanced_accuracy", "f1", "precision", "recall", "log_loss", "brier", "ece")


class Wards(Federation):
    """A federation whose samples have three labels of 0 and 1."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, SIZES)
        rng = np.random.default_rng(1)
        slopes = rng.standard_normal((4, 3))
        for name, rows in self.rows.items():
            for row in rows:
                chances = 1 / (1 + np.exp(-2 * (np.array(row[1:5], float) - 1) @ slopes))
                row[5:] = (rng.random(3) < chances).astype(int).astype(str).tolist()
            self.files[name] = write(folder / f"{name}.csv", rows, HEAD)
        write(self.pooled, [row for rows in self.rows.values() for row in rows], HEAD)

    def experiment(self, **settings: Any) -> Any:
        return super().experiment(data={"label": LABELS, **settings.pop("data", {})}, **settings)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        ("fedavg", {"data": {"standardise": True}}),
        ("scaffold", {"evaluate": {"metric": "f1"}}),
        ("fedprox", {"uplink": {"secure": True}}),
    ],
)
def test_a_federation_has_the_weights_and_the_metrics_of_a_simulation(
    algorithm: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    federation = Wards(tmp_path)
    run, serial = federation.both(algorithm=algorithm, **settings)
    assert differences(run, serial, but=("metric", "bytes_up")) == []
    assert {name: run.metrics[name] for name in METRICS} == pytest.approx(
        {name: serial.metrics[name] for name in METRICS}, rel=1e-6
    )
    assert run.measured.task == "multilabel"
    assert run.measured.class_names == tuple(LABELS)
    assert "auc" not in run.metrics  # it compares samples of different clients
    mine, theirs = run.client_metrics["auc"], serial.client_metrics["auc"]
    np.testing.assert_allclose(mine[:3], theirs[:3], rtol=1e-9)
    assert np.isnan(mine[3])  # fewer than 10 test rows
    followed = settings.get("evaluate", {}).get("metric", "accuracy")
    curves = ([record.value_of(followed) for record in one.records] for one in (run, serial))
    assert next(curves) == pytest.approx(next(curves), rel=1e-6)


@pytest.mark.slow
def test_histograms_of_each_label_bound_the_mean_auc(tmp_path: Path) -> None:
    run, serial = Wards(tmp_path).both(evaluate={"histograms": 50, "metric": "auc"}, rounds=2)
    low, high = run.metric_bounds["auc"]
    assert low <= serial.metrics["auc"] <= high < low + 0.1
    assert run.metrics["auc"] == pytest.approx(serial.metrics["auc"], abs=0.05)


@pytest.mark.slow
def test_every_party_predicts_each_label_with_the_final_model(tmp_path: Path) -> None:
    federation = Wards(tmp_path)
    own = [name.upper() for name in LABELS]  # how one client calls them
    write(federation.files["alfa"], federation.rows["alfa"], [*HEAD[:5], *own])
    federation.start("alfa", file=ClientFile(federation.files["alfa"], label=tuple(own)))
    federation.start(*[name for name in federation.rows if name != "alfa"])
    run = federation.serve(federation.experiment())
    assert fa.verify(tmp_path / "run").same
    assert fa.report(tmp_path / "run", out=tmp_path / "report.html").exists()
    table = {name: np.array([float(r[i]) for r in federation.rows["bravo"]]) for i, name in enumerate("abcd", start=1)}
    expected = fa.load(tmp_path / "run").predict(table)
    assert [*expected] == [*LABELS, *(f"p_{name}" for name in LABELS)]
    for name in federation.rows:
        folder = next((tmp_path / "clients" / name).glob("*/model"))
        model = fa.load(folder)
        assert model.weights_sha256 == run.weights_sha256
        assert {"accuracy", "auc"} <= set(model.metrics)
        for column, values in model.predict(table).items():
            np.testing.assert_array_equal(values, expected[column])
    tuned = fa.finetune(folder, federation.files[name], epochs=1)
    assert set(tuned.after) == set(tuned.before) >= {"accuracy", "auc"}
    log = "\n".join(path.read_text() for path in (tmp_path / "clients").glob("*/releases.jsonl"))
    assert "bins of confidence of each label over test samples, masked among 4 clients" in log
    assert "AUC and average precision of this client, means over labels, readable by the server" in log


def predictions(y: np.ndarray, p: np.ndarray) -> Predictions:
    predicted = np.where(np.isnan(p), -1, p > 0.5).astype(np.int64)
    return Predictions(y.astype(np.float32), predicted, p, Scores.of_nothing())


def test_sums_of_parts_give_the_metrics_of_the_whole() -> None:
    """With 40 labels and samples of every size of a part; the second label is 0 for all, so that recall has no value."""
    rng, layout = np.random.default_rng(0), MultilabelLayout(3, bins=20)
    y, p = rng.integers(0, 2, (40, 3)), rng.random((40, 3))
    y[:, 1] = 0
    whole, chosen = predictions(y, p), [metrics_of("multilabel")[name] for name in METRICS]
    expected = measure_labels(chosen, y, whole.predicted, p)
    for at in (0, 1, 17, 40):
        parts = [MultilabelSums.of(predictions(y[part], p[part]), layout) for part in (slice(at), slice(at, None))]
        total = MultilabelSums.from_integers(
            [sum(two) for two in zip(*(s.integers for s in parts), strict=True)], layout
        )
        assert total.integers == MultilabelSums.of(whole, layout).integers
        assert total.implausible(40) == ""
        found = total.values()
        assert {name: found[name] for name in METRICS[1:]} == pytest.approx(
            {name: expected[name] for name in METRICS[1:]}, rel=1e-12
        )
    exact = measure_labels([metrics_of("multilabel")["auc"]], y, whole.predicted, p)["auc"]
    assert total.intervals()["auc"].low <= exact <= total.intervals()["auc"].high


def test_sums_that_cannot_be_right_name_the_label() -> None:
    layout = MultilabelLayout(2)
    honest = MultilabelSums.of(predictions(np.array([[0, 1]]), np.array([[0.2, 0.7]])), layout)
    assert "label 1, the confusion matrix is not that of the test samples" in honest.implausible(2)
    integers = [*honest.integers]
    integers[layout.each.size] += 1
    assert "label 2" in MultilabelSums.from_integers(integers, layout).implausible(1)


def test_outputs_that_are_not_finite_are_counted_alone() -> None:
    y, p = np.array([[0, 1], [1, 0]]), np.array([[0.1, np.nan], [0.9, 0.2]])
    found = MultilabelSums.of(predictions(y, p), MultilabelLayout(2)).values()
    assert found["recall"] == 0.5  # of the two labels 1 and 0
    assert math.isclose(
        found["log_loss"], -(math.log(0.9) + math.log(0.9)) / 2
    )  # of the label whose outputs are finite


def test_values_of_one_client_need_enough_samples() -> None:
    y = np.array([[0, 1], [1, 1], [1, 0]])
    one = predictions(y, np.array([[0.1, 0.8], [0.7, 0.9], [0.6, 0.3]]))
    assert own_values(one, "multilabel", None, least=3) == {"auc": 1.0, "average_precision": 1.0}
    assert own_values(one, "multilabel", None, least=4) == {"auc": None, "average_precision": None}


def test_consent_names_the_counts_of_each_label(tmp_path: Path) -> None:
    federation = Wards(tmp_path)
    experiment = federation.experiment()
    announced = " ".join(what_leaves(experiment, False, 4))
    assert "how many labels of its test rows the model gets right" in announced
    assert "of each label: how many with each label the model takes for each label" in announced
    assert "the labels that occur" not in announced
    table = ClientFile(federation.files["alfa"]).read_table(experiment.data.made)
    (line,) = label_lines(experiment, table.class_counts())
    ones = [sum(row[5 + k] == "1" for row in federation.rows["alfa"]) for k in range(3)]
    assert line.endswith(", ".join(f"{n} of '{name}'" for n, name in zip(ones, LABELS, strict=True)))


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ({"label": ["a", "b"], "task": "regression"}, "the label of the task 'regression' is one column"),
        ({"label": ["a", "b"], "task": "classification"}, "the label of the task 'classification' is one column"),
        ({"label": "a", "task": "survival"}, "the label of the task 'survival' is two columns: the time and the event"),
    ],
)
def test_label_columns_that_do_not_fit_the_task_are_refused(data: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadValue, match=problem):
        federated_experiment({"data": {"name": "csv", **data}, "rounds": 1}, [])


def test_a_client_refuses_labels_that_do_not_fit_its_table(tmp_path: Path) -> None:
    federation = Wards(tmp_path)
    source = federation.experiment().data.made
    with pytest.raises(BadValue, match="3 label columns, and 1 are named here"):
        ClientFile(federation.files["alfa"], label="infection").read_table(source)
    odd = write(tmp_path / "odd.csv", [[*row[:5], "2", *row[6:]] for row in federation.rows["alfa"]], HEAD)
    with pytest.raises(BadValue, match="is '2' in row 1, and this label is 0 or 1"):
        ClientFile(odd).read_table(source).describe("")
    table = ClientFile(federation.files["alfa"]).read_table(source)
    columns = table.describe("").columns
    agreed = messages.Agreement(client=0, clients=4, rows_before=0, rows=213, classes=("one",), columns=columns)
    with pytest.raises(BadValue, match="1 labels, and the experiment has 3"):
        table.to_samples(agreed)
