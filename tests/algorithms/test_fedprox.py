"""FedProx: the objective with its proximal term, stragglers, and the adaptive mu."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.algorithms.test_fedavg import CENTRES, CURVATURES, on_blobs, on_quadratics
from tests.support.quadratic_federations import FULL

from fedarena.algorithms import FedProx
from fedarena.algorithms.base import Cohort
from fedarena.algorithms.fedprox_adaptive import FedProxUpdate
from fedarena.config.errors import BadValue


def test_fedprox_first_step_does_not_depend_on_mu() -> None:
    one = {"lr": 0.1, "epochs": 1, "batch": math.inf}
    runs = {on_blobs(FedProx(mu=mu), local=one, rounds=1).weights_sha256 for mu in (0.0, 0.5, 5.0)}
    assert len(runs) == 1


@pytest.mark.slow
def test_fedprox_ends_at_the_minimum_of_its_objective() -> None:
    """One client, many steps: argmin F + mu/2 |w - w_t|^2 = (h a + mu w_t) / (h + mu), w_t = 0."""
    got = on_quadratics([5], algorithm=FedProx(mu=0.7), rounds=1, local={**FULL, "epochs": 2000})
    np.testing.assert_allclose(got, CURVATURES[0] * CENTRES[0] / (CURVATURES[0] + 0.7), rtol=1e-10)


def test_fedprox_clients_move_less_with_a_larger_mu() -> None:
    steps = [np.linalg.norm(on_quadratics([5], algorithm=FedProx(mu=mu), rounds=1, local={**FULL, "epochs": 20}))
             for mu in (0.0, 0.01, 0.1, 1.0, 5.0)]  # fmt: skip
    assert len(set(steps)) == 5
    assert steps == sorted(steps, reverse=True)


def test_fedprox_refuses_a_mu_that_diverges() -> None:
    with pytest.raises(BadValue, match="fedprox diverges"):
        on_blobs(FedProx(mu=20.0), local={"lr": 0.1})


def test_fedprox_stragglers_stop_early_and_are_kept() -> None:
    usual = on_blobs(FedProx(), local={"lr": 0.1, "epochs": 8, "batch": 8}, rounds=4)
    slow = on_blobs(FedProx(straggler_fraction=0.9), local={"lr": 0.1, "epochs": 8, "batch": 8}, rounds=4)
    assert slow.records[-1].steps < usual.records[-1].steps
    assert slow.records[-1].answered == 4
    none = on_blobs(FedProx(straggler_fraction=1e-12), local={"lr": 0.1, "epochs": 8, "batch": 8}, rounds=4)
    assert none.weights_sha256 == usual.weights_sha256


def test_fedprox_adaptive_mu_follows_the_loss() -> None:
    """Section 5.3.2 of the paper, on a synthetic curve: +0.1 at every rise, -0.1 after five falls in a row, never below 0."""
    server = FedProx(mu=0.05, schedule="adaptive")
    state = server.init(np.zeros(1))
    cohort = Cohort((0,), (0,), 1, 1, 1, 0.1)
    seen = []
    for loss in (1.0, 0.9, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05):
        state = server.server(state, FedProxUpdate(np.zeros(1), loss), cohort)
        seen.append(round(state.mu, 10))
    assert seen == [0.05, 0.05, 0.15, 0.15, 0.15, 0.15, 0.15, 0.05, 0.05, 0.05, 0.05, 0.05, 0.0]


def test_fedprox_adaptive_runs_and_sends_its_loss() -> None:
    run = on_blobs(FedProx(mu=0.1, schedule="adaptive"), rounds=4)
    model = 4 * sum(v.numel() for v in run.state.values())
    assert run.records[-1].bytes_up == 4 * 4 * (model + 16)
    assert run.final.accuracy > 0.8
