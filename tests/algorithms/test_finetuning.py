"""Fine-tuning: exact statements (docs/reference/algorithms.md#fine-tuning)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.algorithms.test_ditto import BLOBS, least_squares, with_batch_norm
from tests.algorithms.test_fedavg import on_blobs
from tests.support.federations import blobs
from tests.support.trainings import records, same_bits, trained

from fedarena.algorithms import FedAvg, FedAvgM, FineTune, Scaffold
from fedarena.config.experiment import Experiment
from fedarena.engine.client import ClientState, ClientWork
from fedarena.engine.personal_model import EvaluationWork
from fedarena.engine.setup import open_context
from fedarena.models.pytree import leaves

OWN = ("weighted_accuracy", "client_std", "client_worst")


@pytest.mark.parametrize("none", [{"steps": 0}, {"epochs": 0.0}])
@pytest.mark.parametrize("inside", [FedAvg(), FedAvgM(beta=0.9), Scaffold()])
def test_without_steps_every_number_is_that_of_the_algorithm_inside(inside: Any, none: dict[str, Any]) -> None:
    settings: dict[str, Any] = {"rounds": 2, "share": 0.5, "evaluate": {"every": 1}}
    plain, tuned = on_blobs(inside, **settings), on_blobs(FineTune(base=inside, **none), **settings)
    assert records(plain) == records(tuned)
    assert plain.weights_sha256 == tuned.weights_sha256
    assert plain.metrics == tuned.metrics
    assert plain.own_metrics == tuned.own_metrics


def test_without_steps_clients_predict_by_the_servers_model(tmp_path: Path) -> None:
    end = trained(blobs(), FineTune(steps=0), tmp_path, **{**BLOBS, "model": with_batch_norm})
    assert same_bits(end.own, [end.state.w] * len(end.own))


def test_the_state_of_the_training_does_not_change(tmp_path: Path) -> None:
    """Server, clients and BatchNorm statistics, with an evaluation in every round."""
    settings = {
        **BLOBS,
        "model": with_batch_norm,
        "local": {**BLOBS["local"], "momentum": 0.9, "reset_momentum": False},
    }
    settings |= {"evaluate": {"every": 1}, "share": 0.5}
    ends = [trained(blobs(), a, tmp_path, **settings) for a in (FedAvgM(), FineTune(base=FedAvgM(), epochs=3.0))]
    plain, tuned = ([*leaves(end.state), *leaves(end.clients), *leaves(end.buffers)] for end in ends)
    assert len(plain) == len(tuned) > 3
    assert all(np.array_equal(a, b) for a, b in zip(plain, tuned, strict=True))
    assert records(ends[0], *OWN) == records(ends[1], *OWN)
    assert not same_bits(ends[1].own[0], ends[1].state.w)


@pytest.mark.parametrize("amount", [{"steps": 3}, {"epochs": 1.5}])
def test_each_client_takes_its_steps_from_the_servers_model(amount: dict[str, Any], tmp_path: Path) -> None:
    """Least squares on 8 rows in batches of 4, in one order: 1.5 epochs are 3 steps, at the rate of the fine-tuning."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal((3, 8, 3))
    y = (x @ rng.standard_normal((3, 3, 1)))[:, :, 0]
    end = trained(
        least_squares(x, y), FineTune(lr=0.05, **amount), tmp_path, rounds=2, model="least_squares",
        local={"lr": 0.1, "epochs": 2, "batch": 4, "shuffle": False}, partition="natural", dtype="float64",
    )  # fmt: skip
    for k, own in enumerate(end.own):
        v = end.state.w.copy()
        for start in (0, 4, 0):
            rows, labels = x[k, start : start + 4], y[k, start : start + 4]
            v -= 0.05 * rows.T @ (rows @ v - labels) / 4
        np.testing.assert_allclose(own, v, rtol=0, atol=1e-10)


def test_its_random_streams_are_those_of_no_round() -> None:
    context = open_context(Experiment.make(blobs(), algorithm=FineTune(), **BLOBS))
    tuning = EvaluationWork(context, 1, ClientState(), context.initial)
    drawn = tuning.stream_of_pass("shuffle", 0).random()
    assert drawn == EvaluationWork(context, 1, ClientState(), context.initial).stream_of_pass("shuffle", 0).random()
    works = [ClientWork(context, 1, round, ClientState()) for round in range(3)]
    assert drawn not in [work.stream_of_pass("shuffle", 0).random() for work in works]


def test_own_samples_are_judged_by_own_models_and_common_ones_by_the_servers() -> None:
    settings: dict[str, Any] = {"rounds": 2, "partition": {"name": "label_dirichlet", "beta": 0.1}}
    plain, tuned = on_blobs(FedAvg(), **settings), on_blobs(FineTune(epochs=5.0), **settings)
    assert plain.metrics == tuned.metrics
    assert tuned.own_metrics["log_loss"] < plain.own_metrics["log_loss"]
