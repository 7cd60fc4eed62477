"""Every run computes all metrics of its task over all test samples at once, the same on any number of workers."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from sklearn import metrics as sk
from tests.support.federations import Quadratic, quadratics
from typer.testing import CliRunner

import fedarena as fa
from fedarena.cli.main import app
from fedarena.config.errors import BadValue, UnknownName
from fedarena.config.experiment import Experiment
from fedarena.engine.checkpoint import CheckpointStore
from fedarena.engine.evaluation_tasks import EvaluationTask
from fedarena.engine.loop import TrainingLoop
from fedarena.engine.setup import open_context
from fedarena.experiments.run import finish_run
from fedarena.runtimes.serial import SerialRuntime
from fedarena.statistics import metric_registry

BINARY: dict[str, Any] = {"data": "breast_cancer", "clients": 4, "partition": "iid", "rounds": 3}
DIGITS: dict[str, Any] = {"data": "digits", "clients": 4, "partition": "iid", "rounds": 2}
QUIET: dict[str, Any] = {"runtime": "serial", "out": False}


@pytest.fixture
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Metrics that a test registers are gone after it."""
    monkeypatch.setattr(metric_registry, "_known", dict(metric_registry._known))


def outputs(run: fa.Run, rows: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Labels and probabilities, from the trained module itself."""
    context = open_context(run.experiment)
    x, y = context.test_rows(context.owners.test if rows is None else rows)
    with torch.no_grad():
        p = torch.softmax(getattr(run.model(), "module", run.model())(x).double(), 1)  # before its probabilities
    return y.numpy(), p.numpy()


def same(a: Any, b: Any) -> None:
    np.testing.assert_equal(a, b)


def all_of(run: fa.Run) -> list[Any]:
    return [run.metrics, run.own_metrics, run.client_metrics, run.metric_curve, run.measured.undefined]


def test_metrics_of_two_classes_are_those_of_scikit_learn_on_all_test_samples() -> None:
    run = fa.run(BINARY, **QUIET)
    y, p = outputs(run)
    predicted = p.argmax(1)
    expected = {
        "accuracy": sk.accuracy_score(y, predicted),
        "balanced_accuracy": sk.balanced_accuracy_score(y, predicted),
        "auc": sk.roc_auc_score(y, p[:, 1]),
        "f1": sk.f1_score(y, predicted),
        "precision": sk.precision_score(y, predicted),
        "recall": sk.recall_score(y, predicted),
        "log_loss": sk.log_loss(y, p),
        "brier": sk.brier_score_loss(y, p[:, 1]),
        "average_precision": sk.average_precision_score(y, p[:, 1]),
    }
    for name, value in expected.items():
        assert run.metrics[name] == pytest.approx(value, abs=1e-6), name
    assert run.metrics["accuracy"] == run.final.accuracy
    assert run.metrics["loss"] == run.final.loss
    assert set(run.metrics) == {*expected, "ece", "loss"}
    same(run.confusion(), sk.confusion_matrix(y, predicted))


def test_metrics_of_many_classes_are_means_over_classes() -> None:
    run = fa.run({**DIGITS, "rounds": 4}, **QUIET)
    y, p = outputs(run)
    assert run.metrics["auc"] == pytest.approx(sk.roc_auc_score(y, p, multi_class="ovr"), abs=1e-5)
    assert run.metrics["f1"] == pytest.approx(sk.f1_score(y, p.argmax(1), average="macro", zero_division=0), abs=1e-9)
    assert run.metrics["brier"] == pytest.approx(sk.brier_score_loss(y, p), abs=1e-5)


def test_the_calibration_curve_holds_every_sample_and_gives_the_calibration_error() -> None:
    run = fa.run(BINARY, **QUIET)
    bins = run.calibration()
    samples = sum(one["samples"] for one in bins)
    assert samples == len(open_context(run.experiment).owners.test)
    gap = sum(one["samples"] * abs(one["confidence"] - one["accuracy"]) for one in bins) / samples
    assert gap == pytest.approx(run.metrics["ece"], abs=1e-12)


def test_a_client_without_samples_of_both_classes_has_no_auc_and_is_counted() -> None:
    exp = {**BINARY, "partition": {"name": "classes_per_client", "c": 1}, "clients": 4}
    run = fa.run(exp, **QUIET)
    auc, recall = run.client_metrics["auc"], run.client_metrics["recall"]
    assert np.isnan(auc).all()
    assert run.measured.undefined["auc"] == 4
    assert math.isnan(run.own_metrics["auc"])
    assert 0 < np.isnan(recall).sum() < 4  # defined where the samples are of the positive class
    assert run.measured.undefined["recall"] == np.isnan(recall).sum()
    same(run.client_metrics["accuracy"], run.client_accuracy)


def test_the_mean_over_clients_is_weighted_by_their_own_test_samples() -> None:
    run = fa.run({**DIGITS, "partition": {"name": "label_dirichlet", "beta": 0.5}}, **QUIET)
    owners = open_context(run.experiment).owners
    for name in ("accuracy", "f1", "log_loss"):
        expected = np.average(run.client_metrics[name], weights=owners.test_sizes)
        assert run.own_metrics[name] == pytest.approx(expected, abs=1e-12)
    y, p = outputs(run, owners.client_tests[2])
    assert run.client_metrics["log_loss"][2] == pytest.approx(sk.log_loss(y, p, labels=range(10)), abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["fedavg", "local"])
def test_the_same_metrics_on_any_number_of_workers_and_after_a_resume(algorithm: str, tmp_path: Path) -> None:
    exp = {**BINARY, "algorithm": algorithm, "evaluate": {"metric": "auc"}}
    whole = fa.run(exp, **QUIET)
    for workers in (1, 2):
        same(all_of(fa.run(exp, out=False, runtime="processes", workers=workers)), all_of(whole))
    fa.run({**exp, "rounds": 1}, out=tmp_path / "run", runtime="serial")
    resumed = fa.run(resume=tmp_path / "run", overrides=["rounds=3"], runtime="serial")
    same(all_of(resumed), all_of(whole))
    again = fa.run(resume=tmp_path / "run", runtime="serial")  # nothing is left to do
    same(all_of(again), all_of(whole))
    same(all_of(fa.load(tmp_path / "run")), all_of(whole))


def test_a_run_that_is_stopped_early_has_the_metrics_of_the_round_it_stopped_at() -> None:
    stopped = fa.run(BINARY, on_round=lambda record: record.round == 2, **QUIET)
    same(stopped.metrics, fa.run({**BINARY, "rounds": 2}, **QUIET).metrics)


class Counting(SerialRuntime):
    """Counts the rows that are evaluated."""

    rows = 0

    def map(self, jobs: Iterable[Any], common: Any) -> Iterator[tuple[int, Any]]:
        listed = list(jobs)
        self.rows += sum(len(job.rows) for job in listed if isinstance(job, EvaluationTask))
        return super().map(listed, common)


def test_no_sample_is_evaluated_twice_in_a_round(tmp_path: Path) -> None:
    exp = Experiment.make({**BINARY, "evaluate": {"metric": "auc"}})
    context = open_context(exp)
    runtime, store = Counting(context), CheckpointStore(tmp_path, context.algorithm)
    loop = TrainingLoop(context, runtime, store)
    records = list(loop.rounds())
    run = finish_run(loop, records, None)
    store.close()
    assert run.metrics
    assert runtime.rows == 3 * len(np.unique(np.concatenate([context.owners.test, *context.owners.client_tests])))


def test_accuracy_is_the_default_metric() -> None:
    run = fa.run(DIGITS, **QUIET)
    assert [r.metric for r in run.records] == [None, None]  # the accuracy is there already
    assert run.metric_curve == run.curve
    summary = run.summary()
    assert (summary["metric"], summary["direction"]) == ("accuracy", "maximize")
    assert summary["best_metric"] == summary["best_accuracy"] == max(a for _, a in run.curve)


def test_the_best_round_is_the_one_with_the_smallest_loss_where_that_is_the_metric() -> None:
    run = fa.run({**DIGITS, "rounds": 5, "local": {"lr": 2.0}, "evaluate": {"metric": "log_loss"}}, **QUIET)
    values = dict(run.metric_curve)
    assert run.best.round == min(values, key=lambda t: values[t]) != max(values, key=lambda t: values[t])
    assert run.records[-1].best_accuracy == run.best.accuracy
    assert values[5] == run.metrics["log_loss"]


def test_a_target_is_reached_from_above_where_smaller_is_better() -> None:
    loss = dict(fa.run({**BINARY, "evaluate": {"metric": "log_loss"}}, **QUIET).metric_curve)
    assert loss[1] > loss[2]
    evaluate = {"metric": "log_loss", "target": (loss[1] + loss[2]) / 2, "stop_at_target": True}
    run = fa.run({**BINARY, "evaluate": evaluate}, **QUIET)
    assert run.records[-1].round == 2
    assert run.summary()["rounds_to_target"] == 2


def test_patience_counts_evaluations_without_a_better_value_of_the_metric() -> None:
    exp = {**DIGITS, "rounds": 12, "local": {"lr": 2.0}, "evaluate": {"metric": "log_loss", "patience": 1}}
    run = fa.run(exp, **QUIET)
    values = [value for _, value in run.metric_curve]
    assert len(values) < 12
    assert values[-1] >= values[-2]
    assert all(a > b for a, b in pairwise(values[:-1]))


def test_the_threshold_moves_every_metric_of_predicted_classes() -> None:
    plain = fa.run(BINARY, **QUIET)
    y, p = outputs(plain)
    run = fa.run({**BINARY, "evaluate": {"positive": "malignant", "threshold": 0.05}}, **QUIET)
    predicted = np.where(p[:, 0] >= 0.05, 0, 1)  # malignant is the first class
    assert run.metrics["recall"] == pytest.approx(sk.recall_score(y, predicted, pos_label=0))
    assert run.metrics["accuracy"] == run.final.accuracy == pytest.approx((predicted == y).mean())
    same(run.confusion(), sk.confusion_matrix(y, predicted))
    assert run.metrics["recall"] > plain.metrics["recall"]
    assert run.metrics["auc"] == pytest.approx(plain.metrics["auc"], abs=1e-12)
    assert run.weights_sha256 == plain.weights_sha256


def test_personal_models_have_the_mean_of_their_metrics_weighted_by_training_rows() -> None:
    run = fa.run({**BINARY, "algorithm": "local"}, **QUIET)
    assert run.metrics["accuracy"] == run.final.accuracy
    assert run.metrics["loss"] == run.final.loss
    assert run.metrics["log_loss"] == pytest.approx(run.final.loss, rel=1e-6)
    assert run.measured.confusion is None


def test_clients_with_noise_are_measured_on_their_noisy_samples() -> None:
    noisy = fa.run({**DIGITS, "partition": {"name": "feature_noise", "sigma": 1.0}}, **QUIET)
    same(noisy.client_metrics["accuracy"], noisy.client_accuracy)
    assert noisy.client_metrics["log_loss"][3] > noisy.client_metrics["log_loss"][0]


def test_a_model_that_diverged_has_auc_one_half_and_no_log_loss() -> None:
    exp = {**BINARY, "local": {"lr": 1e30}, "on_nan": "keep", "rounds": 2, "model": "mlp_2nn"}
    run = fa.run(exp, **QUIET)
    assert run.diverged
    assert run.metrics["auc"] == 0.5
    assert math.isnan(run.metrics["log_loss"])
    assert run.metrics["accuracy"] == run.final.accuracy
    assert "log_loss ?" in str(run)
    json.dumps(run.summary()["metrics"])


@pytest.mark.slow
def test_text_has_the_metrics_of_predicted_symbols(tmp_path: Path) -> None:
    path = tmp_path / "play.txt"
    path.write_text("".join(f"ROLE{k}: to be or not to be {i}\n" for i in range(10) for k in range(3)))
    data = {"name": "lines", "path": str(path), "length": 12}
    exp: dict[str, Any] = {
        "data": data,
        "model": "char_lstm",
        "partition": "natural",
        "rounds": 2,
        "local": {"lr": 0.5},
    }
    run = fa.run({**exp, "evaluate": {"metric": "f1"}}, **QUIET)
    assert set(run.metrics) == {"accuracy", "balanced_accuracy", "f1", "precision", "recall", "log_loss", "loss"}
    assert run.metrics["log_loss"] == run.metrics["loss"] == run.final.loss
    counts = run.confusion()
    assert np.trace(counts) / counts.sum() == run.final.accuracy
    with pytest.raises(BadValue, match="'auc' does not exist for the task 'next_symbol'"):
        fa.run({**exp, "evaluate": {"metric": "auc"}}, **QUIET)


def custom(**evaluate: Any) -> dict[str, Any]:
    data = quadratics(np.array([[1.0, 0.0], [0.0, 2.0]]), np.ones((2, 2)), [5, 5])
    return {"data": data, "model": lambda: Quadratic(2), "partition": "natural", "rounds": 4, "evaluate": evaluate}


def test_a_model_with_its_own_loss_has_no_accuracy_and_is_followed_by_its_loss() -> None:
    run = fa.run(custom(), **QUIET)
    summary = run.summary()
    assert summary["final_accuracy"] is summary["best_accuracy"] is summary["mean_accuracy"] is None
    assert summary["metrics"] == {"loss": run.final.loss}
    losses = {r.round: r.loss for r in run.records}
    assert run.best.round == min(losses, key=lambda t: losses[t] or 0.0)
    assert "loss" in str(run)
    for name in ("accuracy", "auc"):
        with pytest.raises(BadValue, match=f"'{name}' does not exist for a model with its own loss"):
            fa.run(custom(metric=name), **QUIET)


@pytest.mark.parametrize(
    ("evaluate", "message"),
    [
        ({"metric": "acuracy"}, "did you mean 'accuracy'"),
        ({"metric": "rmse"}, "does not exist for the task 'classification'"),
        ({"positive": "benignant"}, "did you mean 'benign'"),
        ({"metric": "auc", "target": 1.5}, "lies between 0 and 1"),
        ({"target": 1.5}, "at most 1"),
    ],
)
def test_a_wrong_metric_is_refused_before_the_run(evaluate: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises((BadValue, UnknownName), match=message):
        fa.run({**BINARY, "evaluate": evaluate}, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("evaluate", [{"positive": "3"}, {"threshold": 0.3}])
def test_positive_and_threshold_are_for_two_classes(evaluate: dict[str, Any]) -> None:
    with pytest.raises(BadValue, match="for classification into two classes, not for 10 classes"):
        fa.run({**DIGITS, "evaluate": evaluate}, **QUIET)


def test_a_run_folder_keeps_all_metrics(tmp_path: Path) -> None:
    run = fa.run(BINARY, out=tmp_path / "run", runtime="serial")
    again = fa.load(tmp_path / "run")
    same(all_of(again), all_of(run))
    same(again.confusion(), run.confusion())
    assert again.calibration() == run.calibration()
    table = pq.read_table(tmp_path / "run" / "clients.parquet").to_pydict()
    same(table["auc"], run.client_metrics["auc"].tolist())
    assert json.loads((tmp_path / "run" / "result.json").read_text())["metrics"] == run.metrics


@pytest.mark.slow
def test_verify_finds_a_metric_that_was_changed(tmp_path: Path) -> None:
    fa.run(BINARY, out=tmp_path / "run", runtime="serial")
    file = tmp_path / "run" / "result.json"
    assert fa.verify(tmp_path / "run", runtime="serial").same
    result = json.loads(file.read_text())
    result["metrics"]["auc"] += 1e-9
    file.write_text(json.dumps({key: value for key, value in result.items() if key != "sha256"}))  # else it is damaged
    found = fa.verify(tmp_path / "run", runtime="serial")
    assert len(found.differences) == 1
    assert found.differences[0].startswith("auc: ")


def test_a_folder_from_before_there_were_metrics_loads_and_verifies(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    fa.run(BINARY, out=folder, runtime="serial")
    known = json.loads((folder / "result.json").read_text())
    new = {"metric", "direction", "final_metric", "best_metric", "metrics", "own_metrics", "own_undefined", "task"}
    new |= {"sha256", "files"}  # hashes came later still
    (folder / "result.json").write_text(json.dumps({k: v for k, v in known.items() if k not in {*new, "evaluation"}}))
    log = folder / "checkpoint" / "rounds.jsonl"
    records = [json.loads(line) for line in log.read_text().splitlines()]
    log.write_text("".join(json.dumps({k: v for k, v in r.items() if k != "metric"}) + "\n" for r in records))
    for name, dropped in (("rounds", {"metric"}), ("clients", set(known["metrics"]) - {"accuracy"})):
        table = pq.read_table(folder / f"{name}.parquet")
        pq.write_table(table.select([c for c in table.column_names if c not in dropped]), folder / f"{name}.parquet")
    old = fa.load(folder)
    assert (old.metrics, old.own_metrics, old.client_metrics) == ({}, {}, {})
    assert old.best.accuracy == max(a for _, a in old.curve)
    assert old.confusion().sum() > 0
    assert fa.verify(folder, runtime="serial").differences == []
    assert isinstance(pq.read_table(folder / "rounds.parquet"), pa.Table)


@pytest.mark.usefixtures("own_registry")
def test_a_metric_of_the_user_is_computed_and_may_be_followed() -> None:
    @fa.metric(direction="minimize", rope=0.02)
    def missed(y_true: np.ndarray, y_pred: np.ndarray) -> float:
        return float((y_pred[y_true == 0] != 0).mean())

    @fa.metric(needs="probabilities")
    def sharpness(y_true: np.ndarray, p: np.ndarray) -> float:
        return float(p.max(axis=1).mean())

    @fa.metric()
    def broken(y_true: np.ndarray, y_pred: np.ndarray) -> float:
        raise ValueError("no such thing")

    run = fa.run({**BINARY, "evaluate": {"metric": "missed"}}, **QUIET)
    counts = run.confusion()
    assert run.metrics["missed"] == counts[0, 1] / counts[0].sum() == run.final.metric
    assert 0.5 < run.metrics["sharpness"] < 1
    assert math.isnan(run.metrics["broken"])
    assert any("the metric 'broken' failed" in note and "no such thing" in note for note in run.notes)
    with pytest.raises(BadValue, match="the metric 'broken' failed"):
        fa.run({**BINARY, "evaluate": {"metric": "broken"}}, **QUIET)


@pytest.mark.usefixtures("own_registry")
def test_a_metric_of_a_file_is_known_to_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(
        "import fedarena as fa\n\n\n@fa.metric(direction='minimize')\ndef errors(y_true, y_pred):\n"
        "    return float((y_true != y_pred).sum())\n"
    )
    exp = ["breast_cancer", "--set", "clients=4", "--set", "rounds=2", "--runtime", "serial", "--json", "-q"]
    found = CliRunner().invoke(app, ["run", *exp, "--file", "mine.py", "--set", "evaluate.metric=errors"])
    assert found.exit_code == 0, found.output
    result = json.loads(found.stdout)
    assert result["metric"] == "errors"
    assert result["metrics"]["errors"] == round((1 - result["final_accuracy"]) * 114)
    listed = CliRunner().invoke(app, ["list", "metrics", "--json"])
    assert {"accuracy", "auc", "c_index", "errors"} <= {one["name"] for one in json.loads(listed.stdout)}
