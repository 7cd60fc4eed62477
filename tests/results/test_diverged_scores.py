"""A model that diverged keeps its accuracy, has an AUC of 0.5, and leaves metrics without a bound undecided."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fedarena as fa
from fedarena.engine.task_metrics import mean_over_clients
from fedarena.results.comparison import Comparison
from fedarena.results.scoring import Scoring

WILD = "wild=fedavg:local.lr=1e38"
SETTINGS: dict[str, Any] = {"data": "breast_cancer", "clients": 3, "rounds": 2, "model": "logreg", "on_nan": "keep"}


@pytest.fixture(scope="module")
def compared() -> Comparison:
    table = {key: value for key, value in SETTINGS.items() if key != "data"}
    return fa.compare("breast_cancer", ["fedavg", WILD], seeds=3, out=False, workers=1, baseline=False, **table)


def scored(compared: Comparison, metric: str) -> Comparison:
    return replace(compared, plan=replace(compared.plan, metric=metric))


@pytest.mark.slow
def test_the_example_diverges(compared: Comparison) -> None:
    assert compared.diverged("wild") == 3
    assert compared.diverged("fedavg") == 0


def test_its_accuracy_is_as_recorded(compared: Comparison) -> None:
    assert compared.scores()["wild"] == [run.final.accuracy for run in compared.runs["wild"]]


def test_its_auc_is_one_half(compared: Comparison) -> None:
    assert scored(compared, "auc").scores()["wild"] == [0.5] * 3
    assert scored(compared, "auc").dropped_splits == 0


@pytest.mark.parametrize("metric", ["log_loss", "loss"])
def test_metrics_without_a_bound_give_no_sign_and_drop_no_split(compared: Comparison, metric: str) -> None:
    found = scored(compared, metric)
    assert found.duel("fedavg", "wild").verdict == found.duel("wild", "fedavg").verdict == "?"
    assert found.dropped_splits == 0
    assert [len(s) for s in found.scores().values()] == [3, 3]
    assert np.isfinite(found.scores()["fedavg"]).all()
    assert not np.isfinite(found.scores()["wild"]).any()


def test_a_mean_over_clients_is_undefined_if_the_model_of_one_of_them_diverged() -> None:
    samples = np.array([5, 5, 5, 0])
    nan = math.nan
    values = {
        "loss": np.array([0.1, nan, 0.3, nan]),
        "log_loss": np.array([0.1, nan, 0.3, nan]),
        "accuracy": np.array([0.9, 0.1, 0.8, nan]),
        "auc": np.array([nan, 0.5, 1.0, nan]),  # the first client has one class
    }
    means, undefined = mean_over_clients(values, samples)
    assert math.isnan(means["log_loss"])
    assert math.isnan(means["loss"])
    assert means["accuracy"] == pytest.approx(0.6)
    assert means["auc"] == 0.75
    assert undefined == {"loss": 1, "log_loss": 1, "accuracy": 0, "auc": 1}


@pytest.mark.parametrize("view", ["own", "own:uniform"])
def test_local_models_of_which_one_diverged_have_no_log_loss_on_own_samples(view: Any) -> None:
    """Without the client that diverged, the others would look better than they are."""
    rng = np.random.default_rng(0)
    x, y, owner = rng.normal(size=(300, 2)).astype(np.float32), rng.integers(0, 2, 300), np.repeat(np.arange(3), 100)
    x[owner == 2] *= np.float32(1e30)
    how: dict[str, Any] = {
        "partition": "natural",
        "rounds": 2,
        "model": "logreg",
        "on_nan": "keep",
        "algorithm": "local",
    }
    run = fa.run((x, y, owner), out=False, runtime="serial", **how)
    finite = np.isfinite(run.client_metrics["log_loss"])
    assert finite[:2].all()
    assert not finite[2]
    assert run.diverged
    assert math.isnan(Scoring("final", "log_loss", view).value(run))
    assert 0 < Scoring("final", "accuracy", view).value(run) < 1
