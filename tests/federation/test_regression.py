"""A regression in a federation: labels are standardised by sums of all clients, and metrics follow from sums of errors."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.federation.test_rows_stay import forms_of_row
from tests.support.federation_clients import Federation, write

import fedarena as fa
from fedarena.config.errors import BadValue
from fedarena.engine.task_metrics import Predictions
from fedarena.federation.client_data import ClientFile
from fedarena.federation.consent import federated_experiment
from fedarena.federation.regression_sums import BY_ERROR, RegressionSums
from fedarena.federation.statistics_release import StatisticsLayout, Totals
from fedarena.federation.what_leaves import what_leaves
from fedarena.models.task import Scores
from fedarena.statistics import metrics

SIZES = {"alfa": 41, "bravo": 55, "charlie": 33}
HEAD = ["site", "a", "b", "c", "d", "stay"]


class Quantities(Federation):
    """A federation whose label is a number with fractions."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, SIZES)
        rng = np.random.default_rng(1)
        for name, rows in self.rows.items():
            for row in rows:
                row[-1] = repr(3.0 + 2.0 * float(row[1]) - float(row[3]) + 0.1 * rng.standard_normal())
            self.files[name] = write(folder / f"{name}.csv", rows, HEAD)
        write(self.pooled, [row for rows in self.rows.values() for row in rows], HEAD)

    def experiment(self, **settings: Any) -> Any:
        data = {"label": "stay", "task": "regression", **settings.pop("data", {})}
        return super().experiment(data=data, **settings)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold"])
def test_metrics_are_those_of_a_table_of_all_test_samples(algorithm: str, tmp_path: Path) -> None:
    """Each client divides its own rows, so the reference is computed from the model and the clients' test samples."""
    federation = Quantities(tmp_path)
    experiment = federation.experiment(algorithm=algorithm, rounds=4, local={"lr": 0.05, "batch": 8}).with_(
        **{"data.path": "/participants"}
    )
    federation.start()
    run = federation.serve(experiment)
    contexts = [client._joined.worker.context for client in federation.clients.values()]  # type: ignore[union-attr]
    mean, deviation = contexts[0].label_scale
    trained = np.concatenate([c.data.y[: c.data.n_train] for c in contexts]).astype(np.float64)
    assert (mean, deviation) == pytest.approx((trained.mean(), trained.std()), rel=1e-12)
    y = np.concatenate([c.data.y[c.data.n_train :] for c in contexts]).astype(np.float64)
    weights, bias = (run.state[name].numpy() for name in run.state)
    x = np.concatenate([c.data.x[c.data.n_train :] for c in contexts])
    predicted = (x @ weights.T + bias)[:, 0].astype(np.float64) * deviation + mean
    for name in BY_ERROR:
        assert run.metrics[name] == pytest.approx(getattr(metrics, name)(y, predicted), rel=1e-5)
    assert run.final.metric == run.metrics["rmse"] < 0.9 * y.std()
    assert [record.metric for record in run.records] == sorted((r.metric for r in run.records), reverse=True)
    assert any("rmse" in text for text in federation.server_messages if text.startswith("round 4/4"))
    for context, name in zip(contexts, federation.rows, strict=True):
        sent = b"".join(content for sender, content in federation.link.up if sender == name)
        for labels in (context.data.y, context.labels):  # as they are, and standardised
            assert not any(form in sent for two in pairwise(labels) for form in forms_of_row(np.array(two)))
    own = fa.load(next((tmp_path / "clients" / "alfa").glob("*/model")))
    assert own.weights_sha256 == run.weights_sha256
    assert set(BY_ERROR) <= set(own.metrics)
    assert fa.verify(tmp_path / "run").same
    assert fa.report(tmp_path / "run", out=tmp_path / "report.html").exists()


@pytest.mark.slow
def test_with_files_of_test_samples_a_federation_has_the_weights_of_a_simulation(tmp_path: Path) -> None:
    """The mean of labels is rounded once here and in pairs there, to 15 digits; after it to single precision."""
    federation = Quantities(tmp_path)
    held = {name: rows[:8] for name, rows in federation.rows.items()}
    rest = {name: rows[8:] for name, rows in federation.rows.items()}
    write(federation.pooled, [row for rows in rest.values() for row in rows], HEAD)
    tests = write(tmp_path / "tests.csv", [row for rows in held.values() for row in rows], HEAD)
    for name in federation.rows:
        write(federation.files[name], rest[name], HEAD)
        file = ClientFile(federation.files[name], write(tmp_path / f"{name}-test.csv", held[name], HEAD))
        federation.start(name, file=file)
    experiment = federation.experiment(data={"test_path": str(tests)}, rounds=2)
    serial = fa.run(experiment, out=False, runtime="serial")
    run = federation.serve(experiment)
    assert run.weights_sha256 == serial.weights_sha256
    assert {name: run.metrics[name] for name in BY_ERROR} == pytest.approx(
        {name: serial.metrics[name] for name in BY_ERROR}, rel=1e-9
    )


def sums(labels: np.ndarray, predicted: np.ndarray) -> RegressionSums:
    return RegressionSums.of(Predictions(labels, predicted, None, Scores.of_nothing()))


numbers = st.lists(st.tuples(*[st.floats(-1e6, 1e6, width=32)] * 2), min_size=1, max_size=30)


@pytest.mark.slow
@given(numbers, st.integers(0, 30))
def test_sums_of_parts_give_the_metrics_of_the_whole(pairs: list[tuple[float, float]], at: int) -> None:
    labels, predicted = (np.array(column) for column in zip(*pairs, strict=True))
    parts = [sums(labels[:at], predicted[:at]), sums(labels[at:], predicted[at:])]
    total = RegressionSums.from_integers([sum(pair) for pair in zip(*(p.integers for p in parts), strict=True)])
    assert total == sums(labels, predicted)
    assert total.implausible(len(labels)) == ""
    found = total.values()
    for name in ("rmse", "mae"):
        assert found[name] == pytest.approx(getattr(metrics, name)(labels, predicted), rel=1e-9, abs=1e-30)
    if labels.std() > 1e-3:
        assert found["r2"] == pytest.approx(metrics.r2(labels, predicted), rel=1e-6, abs=1e-6)


def test_outputs_that_are_not_finite_leave_no_metric() -> None:
    found = sums(np.array([1.0, 2.0]), np.array([1.0, np.nan]))
    assert found.lost == 1
    assert np.isnan(list(found.values().values())).all()
    assert np.isnan(sums(np.array([2.0, 2.0]), np.array([1.0, 3.0])).values()["r2"])  # labels are all equal


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"samples": 3}, "not over the test samples"),
        ({"lost": 5}, "not over the test samples"),
        ({"squared": 0}, "squared errors is too small"),
        ({"absolute": -1}, "squared errors is too small"),
        ({"label_squares": 0}, "squared labels is too small"),
    ],
)
def test_sums_that_cannot_be_right_are_refused(changes: dict[str, int], problem: str) -> None:
    honest = sums(np.array([1.0, 2.0]), np.array([3.0, 1.0]))
    assert problem in replace(honest, **changes).implausible(2)


def test_statistics_of_labels_are_those_of_one_more_column() -> None:
    label = Totals.of_values(np.array([1.0, 2.0, 6.0]))
    layout = StatisticsLayout(1, False, 2, label=True)
    whole = Totals((3,), (0,), (), (1, 2), label)
    assert Totals.of(whole.integers, layout) == whole
    assert len(whole.integers) == layout.size == 7
    assert whole.implausible(3) == ""
    assert label.means() == (3.0,)
    assert label.variances(3) == (14 / 3,)
    assert "labels are not those" in Totals((4,), (0,), (), (2, 2), label).implausible(4)
    small = replace(label, squares=(0,))
    assert "sum of squares is too small" in replace(whole, label=small).implausible(3)


def test_consent_names_the_sums_of_labels_and_no_classes(tmp_path: Path) -> None:
    announced = " ".join(what_leaves(Quantities(tmp_path).experiment(), False, 3))
    assert "the sum of its labels and of their squares over its training rows" in announced
    assert "sums of absolute and squared errors, of labels and of squared labels" in announced
    assert "labels that occur" not in announced
    assert "AUC" not in announced


def test_a_metric_of_another_task_is_refused() -> None:
    with pytest.raises(BadValue, match="'accuracy' does not exist for the task 'regression'"):
        federated_experiment(
            {"data": {"name": "csv", "label": "y", "task": "regression"}, "evaluate": {"metric": "accuracy"}}, []
        )
