"""IFCA: exact statements (docs/reference/algorithms.md#ifca); that one cluster is FedAvg is in test_limits.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.federations import Given, Quadratic, quadratics
from tests.support.trainings import same_bits, trained

from fedarena.algorithms import IFCA
from fedarena.algorithms.ifca import ClusterModels, ClusterUpdate
from fedarena.data.dataset import Dataset

LOCAL = {"lr": 0.5, "epochs": 2, "batch": 10}


def two_rules(clients: int = 8, rows: int = 20, size: int = 5) -> Given:
    """Labels by a linear rule in the first half of the clients, and by its opposite in the others."""
    rng = np.random.default_rng(0)
    rule, x = rng.standard_normal(size), rng.standard_normal((clients * rows + 2, size)).astype(np.float32)
    owner = np.append(np.repeat(np.arange(clients), rows), [-1, -1])
    y = ((x @ rule > 0) ^ (owner >= clients // 2)).astype(np.int64)
    y[-2:] = 0, 1
    return Given(Dataset("rules", x, y, clients * rows, 2, owner=owner, owner_names=tuple(map(str, range(clients)))))


@pytest.mark.slow
def test_two_planted_clusters_are_found_in_nine_of_ten_restarts(tmp_path: Path) -> None:
    """The clients of each rule predict with one model, those of the other rule with another one."""
    found = 0
    for seed in range(10):
        end = trained(
            two_rules(), "ifca", tmp_path, model="logreg", partition="natural", rounds=4, local=LOCAL, seed=seed,
            evaluate={"every": 4},
        )  # fmt: skip
        first, second = end.own[:4], end.own[4:]
        split = same_bits(first, first[:1] * 4) and same_bits(second, second[:1] * 4)
        found += split and not same_bits(first[0], second[0])
    assert found >= 9


def test_each_model_reaches_the_optimum_of_its_cluster(tmp_path: Path) -> None:
    """Equal curvatures: the mean of the centres of the clients that choose it, weighted by rows."""
    centres = np.array([[5.0, 5.0], [5.2, 5.0], [-5.0, -5.0], [-5.0, -5.4]])
    rows = [10, 30, 20, 20]
    settings: dict[str, Any] = {"model": lambda: Quadratic(2), "partition": "natural", "dtype": "float64"}
    end = trained(
        quadratics(centres, np.ones_like(centres), rows), IFCA(), tmp_path, rounds=20,
        local={"lr": 0.5, "batch": float("inf")}, evaluate={"every": 20}, **settings,
    )  # fmt: skip
    expected = [(10 * centres[0] + 30 * centres[1]) / 40, (centres[2] + centres[3]) / 2]
    np.testing.assert_allclose(np.stack(end.own), np.repeat(expected, 2, axis=0), atol=1e-4)


def test_a_cluster_that_no_client_chooses_keeps_its_model() -> None:
    state = ClusterModels(np.zeros(2), (np.ones(2), np.full(2, 2.0)))
    update = ClusterUpdate([np.array([1.0, 0.0]), np.array([4.0, 0.0])], [1, 1], [1, 2])  # type: ignore[arg-type]
    after = IFCA(clusters=3).server(state, update, None)  # type: ignore[arg-type]
    assert [w.tolist() for w in after.each] == [[0.0, 0.0], [-2.0, 1.0], [2.0, 2.0]]


@pytest.mark.parametrize("clusters", [1, 3])
def test_clients_receive_all_models_and_send_one_step(clusters: int, tmp_path: Path) -> None:
    """Up: P weights, the number of the cluster, the rows, and n_k as in every answer."""
    end = trained(
        two_rules(), IFCA(clusters=clusters), tmp_path, model="logreg", partition="natural", rounds=1, local=LOCAL
    )
    parameters = 5 * 2 + 2
    assert end.records[0].bytes_down == 8 * clusters * 4 * parameters
    assert end.records[0].bytes_up == 8 * (4 * parameters + 24)
