"""Ditto: exact statements (docs/reference/algorithms.md#ditto)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.algorithms.test_fedavg import CENTRES, small_net
from tests.support.federations import Quadratic, blobs, optimum, quadratics
from tests.support.trainings import same_bits, trained
from torch import nn

from fedarena.algorithms import Ditto
from fedarena.config.errors import BadValue

BLOBS: dict[str, Any] = {
    "model": small_net, "clients": 4, "partition": {"name": "quantity_dirichlet", "beta": 2.0}, "rounds": 3,
    "local": {"lr": 0.1, "epochs": 2, "batch": 8},
}  # fmt: skip
ROWS = [5, 8, 12]
CURVATURES = np.array([[1.0, 2.0], [1.5, 1.2], [2.0, 1.0]])  # alike, so that few rounds reach the optimum
QUADRATICS: dict[str, Any] = {
    "model": lambda: Quadratic(2), "partition": "natural", "dtype": "float64", "evaluate": {"every": 1000},
}  # fmt: skip


def with_batch_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))


@pytest.mark.slow
@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("model", [small_net, with_batch_norm])
def test_without_a_proximal_term_own_models_are_local_training(model: Any, fast: bool, tmp_path: Path) -> None:
    """Weights, dropout and BatchNorm statistics: the second training of a round begins as if it were the first."""
    settings = {**BLOBS, "model": model, "fast": fast}
    ditto, alone = (trained(blobs(), a, tmp_path, **settings) for a in (Ditto(lam=0.0), "local"))
    assert same_bits(ditto.own, alone.own)
    assert not same_bits(ditto.own[:1], ditto.own[1:2])
    if model is with_batch_norm:
        own = [s.own_model_buffers.values for s in ditto.clients if s.own_model_buffers is not None]
        assert same_bits(own, [state.buffers.values for state in alone.clients if state.buffers is not None])


@pytest.mark.parametrize("model", [small_net, with_batch_norm])
@pytest.mark.parametrize("local", [{}, {"momentum": 0.9, "decay": 0.01, "decay_counter": "per_client"}])
def test_the_shared_model_is_that_of_fedavg(model: Any, local: dict[str, Any], tmp_path: Path) -> None:
    settings = {**BLOBS, "model": model, "local": {**BLOBS["local"], **local}, "share": 0.5}
    ditto = trained(blobs(), Ditto(lam=0.3, own_epochs=0.5), tmp_path, **settings)
    average = trained(blobs(), "fedavg", tmp_path, **settings)
    assert same_bits(ditto.state.w, average.state.w)
    assert same_bits(ditto.buffers.values, average.buffers.values)
    assert [r.accuracy for r in ditto.records] == [r.accuracy for r in average.records]


def test_own_models_begin_every_round_with_a_fresh_optimizer(tmp_path: Path) -> None:
    """Momentum that is kept between rounds is that of the shared model."""
    kept, reset = ({**BLOBS, "local": {**BLOBS["local"], "momentum": 0.9, "reset_momentum": r}} for r in (False, True))
    apart = {"lam": 0.0, "own_epochs": 1.0}  # the own model does not see the shared one
    a, b = (trained(blobs(), Ditto(**apart), tmp_path, **settings) for settings in (kept, reset))
    assert same_bits(a.own, b.own)
    assert not same_bits(a.state.w, b.state.w)


@pytest.mark.slow
def test_own_models_reach_the_mean_of_own_and_shared_optimum(tmp_path: Path) -> None:
    """v_k -> (H_k + lambda)^-1 (H_k v*_k + lambda w*), with one step a round, where FedAvg has no drift."""
    lam, local = 0.7, {"lr": 0.6, "epochs": 1, "batch": float("inf")}
    data = quadratics(CENTRES, CURVATURES, ROWS)
    end = trained(data, Ditto(lam=lam, own_epochs=2), tmp_path, rounds=30, local=local, **QUADRATICS)
    w = optimum(CENTRES, CURVATURES, np.array(ROWS))
    np.testing.assert_allclose(end.state.w, w, atol=1e-10)
    expected = (CURVATURES * CENTRES + lam * w) / (CURVATURES + lam)
    np.testing.assert_allclose(np.stack(end.own), expected, atol=1e-10)


def test_a_loop_in_numpy_gives_the_same(tmp_path: Path) -> None:
    """Least squares on batches of one order, against the algorithm as it is printed."""
    rng = np.random.default_rng(3)
    lam, lr, epochs, own_epochs, rounds, batch = 0.5, 0.1, 2, 3, 4, 4
    x = rng.standard_normal((3, 8, 3))
    y = (x @ rng.standard_normal((3, 3, 1)))[:, :, 0]
    w, own, p = np.zeros(3), np.zeros((3, 3)), np.full(3, 1 / 3)

    def slope(k: int, at: np.ndarray, rows: slice) -> np.ndarray:
        return x[k, rows].T @ (x[k, rows] @ at - y[k, rows]) / batch

    for _ in range(rounds):
        ends = np.tile(w, (3, 1))
        for k in range(3):
            for start in [0, 4] * epochs:
                ends[k] -= lr * slope(k, ends[k], slice(start, start + batch))
            for start in [0, 4] * own_epochs:
                own[k] -= lr * (slope(k, own[k], slice(start, start + batch)) + lam * (own[k] - w))
        w = p @ ends

    end = trained(
        least_squares(x, y), Ditto(lam=lam, own_epochs=own_epochs), tmp_path, rounds=rounds, model="least_squares",
        local={"lr": lr, "epochs": epochs, "batch": batch, "shuffle": False}, partition="natural", dtype="float64",
    )  # fmt: skip
    np.testing.assert_allclose(end.state.w, w, atol=1e-10)
    np.testing.assert_allclose(np.stack(end.own), own, atol=1e-10)


def least_squares(x: np.ndarray, y: np.ndarray) -> Any:
    """Return a federation whose client k has the rows x[k], with the number to predict as the last column."""
    from tests.support.federations import Given

    from fedarena.data.dataset import Dataset

    clients, rows, _ = x.shape
    table = np.concatenate([np.concatenate([x, y[:, :, None]], axis=2).reshape(clients * rows, -1), np.zeros((2, 4))])
    owner = np.append(np.repeat(np.arange(clients), rows), [-1, -1])
    labels = np.append(np.zeros(clients * rows, np.int64), [0, 1])
    names = tuple(map(str, range(clients)))
    return Given(Dataset("rows", table, labels, clients * rows, 2, owner=owner, owner_names=names))


def test_a_weight_that_diverges_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadValue, match=r"ditto diverges: local.lr x lam = 3"):
        trained(blobs(), Ditto(lam=30.0), tmp_path, **BLOBS)
