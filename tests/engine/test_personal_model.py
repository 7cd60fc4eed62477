"""Models with which clients predict: `personal_model`, and what it may do (docs/extend.md)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.algorithms.test_fedavg import on_blobs, small_net
from tests.support.federations import blobs
from tests.support.trainings import records

import fedarena as fa
from fedarena.algorithms.base import Vector, Work


@dataclass(frozen=True)
class Adapted(fa.FedAvg):
    """FedAvg whose clients train for some steps before they predict."""

    steps: int = 0

    personal = True
    common_score = "shared"
    learns_own_models = False  # type: ignore[assignment]

    def personal_model(self, message: Any, client_state: Any, work: Work) -> Vector:
        return work.train(message.w, steps=self.steps).w


class Alone(Adapted):
    common_score = "none"


def test_a_hook_that_trains_leaves_no_trace_in_the_run() -> None:
    plain, adapted = on_blobs("fedavg", rounds=3), on_blobs(Adapted(steps=20), rounds=3)
    own = ("weighted_accuracy", "client_std", "client_worst")
    assert plain.weights_sha256 == adapted.weights_sha256
    assert records(plain, *own) == records(adapted, *own)
    assert plain.own_metrics["log_loss"] > 1.1 * adapted.own_metrics["log_loss"]


def test_without_steps_every_number_is_that_of_the_shared_model() -> None:
    plain, adapted = on_blobs("fedavg", rounds=2), on_blobs(Adapted(), rounds=2)
    assert records(plain) == records(adapted)
    assert plain.metrics == adapted.metrics
    for name, values in plain.client_metrics.items():
        np.testing.assert_array_equal(values, adapted.client_metrics[name])


def test_without_a_complete_model_the_score_is_that_on_own_samples() -> None:
    run = on_blobs(Alone(steps=3), rounds=2, evaluate={"metric": "log_loss", "every": 1})
    assert run.metrics == {}
    assert run.final.accuracy == pytest.approx(run.own_metrics["accuracy"], abs=1e-12)
    assert run.final.metric == run.own_metrics["log_loss"]


def test_the_model_of_a_client_is_saved_and_predicts_as_it_was_judged(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"model": small_net, "clients": 4, "rounds": 2, "out": tmp_path / "run"}
    run = fa.run(blobs(), algorithm=Adapted(steps=5), runtime="serial", **settings)
    for client in range(4):
        context = run.context(client)
        scores = context.evaluate(context.owners.client_tests[client])
        assert scores.right.mean() == run.client_metrics["accuracy"][client]


def test_an_algorithm_may_predict_by_other_outputs_than_the_model() -> None:
    class Opposite(Adapted):
        def predictor(self, message: Any, client_state: Any) -> Any:
            return lambda module, x: -module(x)

    run, other = on_blobs(Adapted(), rounds=8), on_blobs(Opposite(), rounds=8)
    assert run.own_metrics["accuracy"] > 0.5 > other.own_metrics["accuracy"]
    assert run.metrics == other.metrics  # the common model predicts as always


def test_a_comparison_on_common_samples_refuses_it_by_name(tmp_path: Path) -> None:
    options: dict[str, Any] = {"model": small_net, "clients": 4, "rounds": 1, "repeats": 2, "baseline": False}
    with pytest.raises(fa.FedarenaError, match="has no complete common model"):
        fa.compare(blobs(), [Alone(), "fedavg"], evaluate_on="common", out=tmp_path / "c", **options)
