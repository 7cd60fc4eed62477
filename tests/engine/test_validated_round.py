"""The validated round is the best one on samples that no client trains on, and its test metrics are those of its model."""

from __future__ import annotations

import json
import math
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support import forked_processes

import fedarena as fa
from fedarena.config.errors import BadValue
from fedarena.config.experiment import Experiment
from fedarena.data.dataset import Dataset, Partition
from fedarena.engine import setup
from fedarena.engine.record import RoundRecord
from fedarena.engine.setup import open_context
from fedarena.engine.stopping import StopRule
from fedarena.federation.consent import check_experiment
from fedarena.statistics.metric_registry import all_metrics

SHARE = 0.15
DIGITS: dict[str, Any] = {
    "data": "digits", "clients": 6, "model": "logreg", "rounds": 9, "share": 0.5, "seed": 2,
    "partition": {"name": "label_dirichlet", "beta": 0.2}, "local": {"lr": 1.0, "epochs": 3},
}  # fmt: skip
QUIET: dict[str, Any] = {"runtime": "serial", "out": False}
ALGORITHMS = ["fedavg", "scaffold", "local", "centralized", "fedasync", "coop"]


def run(share: float | None = SHARE, *, evaluate: dict[str, Any] | None = None, **settings: Any) -> fa.Run:
    chosen = {**(evaluate or {}), **({} if share is None else {"validation": share})}
    return fa.run(**{**DIGITS, **QUIET, **settings}, **({"evaluate": chosen} if chosen else {}))


def bits(run: fa.Run) -> str:
    """All that a run found, to the last bit, without times and places."""
    plain = {k: v for k, v in run.summary().items() if k not in ("run_dir", "wall_seconds", "samples_per_second")}
    clients = {name: values.tolist() for name, values in run.validated_client_metrics.items()}
    confusion = None if run.chosen is None or run.chosen.measured.confusion is None else run.chosen.measured.confusion
    return repr(
        (plain, run.validation_curve, run.metric_curve, clients, None if confusion is None else confusion.tolist())
    )


# What is trained on


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_no_weight_depends_on_validation_samples(algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clean = run(algorithm=algorithm, rounds=3)
    deal = setup.partition_data

    def poisoned(experiment: Experiment) -> tuple[Dataset, Partition]:
        data, partition = deal(experiment)
        held = np.concatenate(list(partition.validation))
        x, y = data.x.copy(), data.y.copy()
        x[held], y[held] = 1e6, (y[held] + 1) % data.classes
        return replace(data, x=x, y=y), partition

    monkeypatch.setattr(setup, "partition_data", poisoned)
    dirty = run(algorithm=algorithm, rounds=3)
    assert dirty.weights_sha256 == clean.weights_sha256
    assert dirty.metric_curve == clean.metric_curve
    assert dirty.metrics == clean.metrics
    assert dirty.validation_curve != clean.validation_curve


def test_training_samples_bear_on_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above can fail: the same change of samples that are trained on is seen."""
    clean = run(rounds=2)
    deal = setup.partition_data

    def poisoned(experiment: Experiment) -> tuple[Dataset, Partition]:
        data, partition = deal(experiment)
        y = data.y.copy()
        y[partition.train_rows] = (y[partition.train_rows] + 1) % data.classes
        return replace(data, y=y), partition

    monkeypatch.setattr(setup, "partition_data", poisoned)
    assert run(rounds=2).weights_sha256 != clean.weights_sha256


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_share_of_zero_is_a_run_without_the_key(algorithm: str, tmp_path: Path) -> None:
    plain = run(None, algorithm=algorithm, rounds=2, out=tmp_path / "plain")
    zero = run(0.0, algorithm=algorithm, rounds=2, out=tmp_path / "zero")
    assert plain.weights_sha256 == zero.weights_sha256
    assert plain.validated is None is zero.validated
    for name in ("partition.npz", "clients.parquet", "model.safetensors"):
        assert (tmp_path / "plain" / name).read_bytes() == (tmp_path / "zero" / name).read_bytes()
    for folder in ("plain", "zero"):
        text = (tmp_path / folder / "result.json").read_text() + (
            tmp_path / folder / "checkpoint" / "rounds.jsonl"
        ).read_text()
        assert "valid" not in text
    assert "validation" not in (tmp_path / "plain" / "experiment.toml").read_text()


# Which round is chosen, and what is said of it


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["accuracy", "log_loss", "loss", "auc"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_first_best_round_on_validation_samples_is_chosen(algorithm: str, metric: str) -> None:
    done = run(algorithm=algorithm, evaluate={"metric": metric})
    values = [value for _, value in done.validation_curve]
    best = max(values) if all_metrics()[metric].maximize else min(values)
    assert done.validated is not None
    assert done.chosen is not None
    assert len(values) == 9
    assert done.validated.round == 1 + values.index(best)
    assert done.chosen.value == done.validated.validation == best


@pytest.mark.slow
def test_the_choice_is_not_that_of_the_test_samples() -> None:
    """Of some seeds the rounds differ: else the tests of this file could not distinguish the two."""
    runs = [run(seed=seed, partition={"name": "label_dirichlet", "beta": 0.05}) for seed in range(6)]
    assert any(one.validated != one.best for one in runs)
    assert any(one.validated != one.final for one in runs)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["fedavg", "fedasync"])
def test_all_metrics_are_those_of_the_model_of_that_round(algorithm: str) -> None:
    done = next(
        one
        for seed in range(20)
        if (one := run(algorithm=algorithm, seed=seed)).validated not in (one.final, one.best, None)
    )
    assert done.validated is not None
    assert done.chosen is not None
    again = run(algorithm=algorithm, seed=done.experiment.seed, rounds=done.validated.round)
    assert again.records[-1].accuracy == done.validated.accuracy
    np.testing.assert_equal(done.validated_metrics, again.metrics)
    np.testing.assert_equal(done.validated_own_metrics, again.own_metrics)
    np.testing.assert_equal(done.validated_client_metrics, again.client_metrics)
    np.testing.assert_array_equal(done.chosen.measured.confusion, again.confusion())
    context = open_context(done.experiment)
    rows = np.concatenate(list(context.owners.validation))
    x, y = context.test_rows(rows)
    with torch.no_grad():
        predicted = again.model()(x).argmax(1).numpy()
    assert done.chosen.value == (predicted == y.numpy()).sum() / len(rows)


def test_of_local_models_every_client_validates_its_own(tmp_path: Path) -> None:
    done = run(algorithm="local", out=tmp_path / "run", rounds=2)
    context, right, count = open_context(done.experiment), 0, 0
    for client, rows in enumerate(context.owners.validation):
        if len(rows):
            x, y = context.test_rows(rows)
            with torch.no_grad():
                right += int((done.model(client)(x).argmax(1) == y).sum())
            count += len(rows)
    assert done.records[-1].validation == right / count


def test_test_metrics_are_those_of_the_same_weights_without_validation_in_sight() -> None:
    """Holding the same samples out of training by hand gives the same weights and the same test metrics."""
    done = run(rounds=2)
    deal, context = setup.partition_data, open_context(done.experiment)
    with pytest.MonkeyPatch.context() as patch:
        hidden = replace(context.owners, validation=[])
        patch.setattr(setup, "partition_data", lambda experiment: (deal(experiment)[0], hidden))
        by_hand = run(None, rounds=2)
    assert by_hand.weights_sha256 == done.weights_sha256
    np.testing.assert_equal(by_hand.metrics, done.metrics)
    np.testing.assert_equal(by_hand.own_metrics, done.own_metrics)


def test_where_no_round_has_a_value_the_last_one_counts() -> None:
    """An AUC, one class against the rest, is undefined on four samples of ten classes."""
    done = run(0.003, clients=2, partition="iid", rounds=3, evaluate={"metric": "auc"})
    assert sum(map(len, open_context(done.experiment).owners.validation)) == 4
    assert len(done.validation_curve) == 3
    assert all(math.isnan(value) for _, value in done.validation_curve)
    assert done.validated is not None
    assert done.validated.round == done.final.round
    assert done.validated_metrics == done.metrics
    assert any("no round has a defined value" in n for n in done.notes)


def test_noise_of_clients_is_in_their_validation_samples() -> None:
    done = run(partition={"name": "feature_noise", "sigma": 0.5}, rounds=2)
    context, right, count = open_context(done.experiment), 0, 0
    for client, rows in enumerate(context.owners.validation):
        x, y = context.test_rows(
            rows, context.feature_noise.of(client, len(rows), 0, 2)
        )  # a stream that neither training nor tests use
        with torch.no_grad():
            right += int((done.model()(x).argmax(1) == y).sum())
        count += len(rows)
    assert done.records[-1].validation == right / count


# Stopping


def records(*pairs: tuple[float, float]) -> list[RoundRecord]:
    return [RoundRecord(t, accuracy=test, validation=held) for t, (test, held) in enumerate(pairs, 1)]


def test_patience_follows_validation_samples() -> None:
    experiment = Experiment.make("digits", rounds=99, evaluate={"patience": 2, "validation": 0.1})
    rule = StopRule(experiment, experiment.algorithm.made, 1)
    over = []
    for record in records((0.1, 0.5), (0.2, 0.4), (0.3, 0.5), (0.4, 0.6)):
        rule.update(record)
        over.append(rule.is_finished(record.round, 0))
    assert over == [False, False, True, False]  # the test accuracy rose all the time
    assert rule.best(RoundRecord(5)) == 0.4  # the best accuracy is still that of the test samples


def test_a_run_stops_by_its_validation_curve() -> None:
    done = run(rounds=60, evaluate={"patience": 3}, local={"lr": 2.0})
    assert done.validated is not None
    assert done.records[-1].round == done.validated.round + 3 < 60


# The same bits


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["fedavg", "local", "fedasync"])
def test_the_same_on_any_number_of_workers(algorithm: str) -> None:
    one = run(algorithm=algorithm, rounds=4, evaluate={"metric": "auc"})
    two = run(algorithm=algorithm, rounds=4, evaluate={"metric": "auc"}, runtime="processes", workers=2)
    assert bits(one) == bits(two)


KILLED = """
import os, signal, sys
import fedarena as fa
from fedarena.engine.checkpoint import CheckpointStore
save = CheckpointStore.save
def dying(self, snapshot, record):
    save(self, snapshot, record)
    if record["round"] == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
CheckpointStore.save = dying
fa.run(sys.argv[1], out=sys.argv[3], runtime="serial")
"""


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["fedavg", "local", "fedasync"])
def test_the_same_after_kill_and_resume(algorithm: str, tmp_path: Path) -> None:
    whole = run(algorithm=algorithm, evaluate={"metric": "auc", "every": 2})
    file, folder = tmp_path / "exp.toml", tmp_path / "run"
    file.write_text(whole.experiment.to_toml())
    ended = forked_processes.run([sys.executable, "-c", KILLED, str(file), "7", str(folder)])
    assert ended.returncode == -signal.SIGKILL
    resumed = fa.run(resume=folder, runtime="serial")
    assert bits(resumed) == bits(whole) == bits(fa.load(folder))
    assert fa.verify(folder, runtime="serial").differences == []


@pytest.mark.slow
def test_a_larger_budget_forgets_the_evaluation_of_the_old_last_round(tmp_path: Path) -> None:
    """Round 7 is evaluated only because it is the last of 7; in a run of 12 it is no candidate."""
    how: dict[str, Any] = {"evaluate": {"every": 4, "metric": "log_loss"}, "local": {"lr": 0.01}}
    short = run(rounds=7, out=tmp_path / "run", **how)
    assert short.validated is not None
    assert short.validated.round == 7
    longer = fa.run(resume=tmp_path / "run", rounds=12, runtime="serial")
    assert [t for t, _ in longer.validation_curve] == [4, 8, 12]
    assert bits(longer) == bits(run(rounds=12, **how))
    again = run(rounds=7, out=tmp_path / "stopped", **how)
    assert bits(again) == bits(short)


def test_the_folder_of_a_run_has_it_all(tmp_path: Path) -> None:
    done = run(out=tmp_path / "run")
    loaded = fa.load(tmp_path / "run")
    assert bits(loaded) == bits(done)
    assert loaded.validated == done.validated
    with np.load(tmp_path / "run" / "partition.npz") as stored:
        sizes = [len(rows) for rows in open_context(done.experiment).owners.validation]
        assert stored["validation_sizes"].tolist() == sizes
        assert len(stored["validation_rows"]) == sum(sizes)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert done.validated is not None
    assert result["validated_round"] == done.validated.round
    assert f"in round {done.validated.round}" in str(done)
    assert "validation samples" in str(done)


# Where it does not exist


def test_a_real_federation_refuses_it_by_name() -> None:
    experiment = Experiment.make(
        {"data": {"name": "csv", "path": "/nowhere.csv", "label": "y", "client": "participant"}},
        partition="natural",
        evaluate={"validation": 0.1},
    )
    with pytest.raises(BadValue, match=r"evaluate\.validation is for simulations"):
        check_experiment(experiment)
    check_experiment(experiment.with_(evaluate={"validation": 0.0}))


def test_no_metric_of_a_user_takes_the_columns_of_the_validated_round() -> None:
    with pytest.raises(BadValue, match="validated_accuracy"):
        fa.metric(name="validated_accuracy")(lambda y_true, y_pred: 0.0)
