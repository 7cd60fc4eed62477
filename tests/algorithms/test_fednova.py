"""FedNova: the bias of unequal work, and what clients send."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.algorithms.test_fedavg import CENTRES, CURVATURES, on_blobs, on_quadratics, weights
from tests.support.federations import optimum
from tests.support.quadratic_federations import ROWS

from fedarena.algorithms import FedNova


def test_fednova_with_one_client_is_fedavg() -> None:
    nova = on_blobs("fednova", clients=1, dtype="float64")
    np.testing.assert_allclose(weights(nova), weights(on_blobs(clients=1, dtype="float64")), atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_fednova_removes_the_bias_of_unequal_work(momentum: float) -> None:
    """Ten rows a batch: 10, 30 and 60 rows make 1, 3 and 6 steps an epoch. At a small rate FedNova settles at the optimum
    of the mean by rows, FedAvg at one biased towards those who step more often."""
    target = optimum(CENTRES, CURVATURES, np.array(ROWS))
    local = {"lr": 0.01 * (1 - momentum), "epochs": 2, "batch": 10, "momentum": momentum}
    rounds = 150
    nova = on_quadratics(ROWS, algorithm="fednova", rounds=rounds, local=local, evaluate={"every": rounds})
    avg = on_quadratics(ROWS, algorithm="fedavg", rounds=rounds, local=local, evaluate={"every": rounds})
    assert np.abs(nova - target).max() < 0.1
    assert np.abs(avg - target).max() > 0.5


def test_fednova_pace_does_not_know_how_many_steps_there_were() -> None:
    """Twice the steps: sum p_k Delta_k / ||a_k||_1 changes in the second order of eta only. Ten times less eta, ten times
    less of a relative change; with gradients of about 1 and curvatures up to 2 that is of the order of eta tau."""

    def pace(lr: float, epochs: int) -> np.ndarray:
        paces: list[np.ndarray] = []

        class Spy(FedNova):
            def server(self, state: Any, mean: Any, cohort: Any) -> Any:
                paces.append(mean.d / lr)
                return super().server(state, mean, cohort)

        on_quadratics(ROWS, algorithm=Spy(), rounds=1, local={"lr": lr, "epochs": epochs, "batch": 10})
        return paces[0]

    changes = [np.linalg.norm(pace(lr, 4) - pace(lr, 2)) / np.linalg.norm(pace(lr, 2)) for lr in (1e-3, 1e-4, 1e-5)]
    assert changes[0] < 0.02
    assert changes[0] / changes[1] == pytest.approx(10, rel=0.05)
    assert changes[1] / changes[2] == pytest.approx(10, rel=0.05)


def test_fednova_sends_one_model_and_two_numbers() -> None:
    run = on_blobs("fednova", rounds=1)
    model = 4 * sum(v.numel() for v in run.state.values())
    assert run.records[-1].bytes_up == 4 * (model + 16)


def test_fednova_with_steps_as_pace() -> None:
    """Plain SGD: ||a||_1 is the number of steps, both paces are one; with momentum they are not."""
    plain = {"lr": 0.1, "epochs": 2, "batch": 8}
    np.testing.assert_allclose(
        weights(on_blobs(FedNova(tau_eff="steps"), local=plain, dtype="float64")),
        weights(on_blobs(FedNova(), local=plain, dtype="float64")),
        atol=1e-12,
    )
    heavy = {"lr": 0.01, "epochs": 2, "batch": 8, "momentum": 0.9}
    steps, norm = (weights(on_blobs(FedNova(tau_eff=t), local=heavy, dtype="float64")) for t in ("steps", "norm"))
    assert np.abs(steps - norm).max() > 1e-3
