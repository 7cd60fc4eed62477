"""FedAvgM: the velocity of the server, and its limit FedAvg."""

from __future__ import annotations

import numpy as np
from tests.algorithms.test_fedavg import on_blobs

import fedarena as fa
from fedarena.algorithms import FedAvgM


def test_fedavgm_without_momentum_is_fedavg_at_that_server_rate() -> None:
    a, b = on_blobs(FedAvgM(beta=0.0, server_lr=0.3)), on_blobs(fa.FedAvg(server_lr=0.3))
    assert a.weights_sha256 == b.weights_sha256


def test_fedavgm_velocity_of_a_constant_step() -> None:
    """v_t = G (1 - beta^{t+1}) / (1 - beta), by the server alone."""
    server, g = FedAvgM(beta=0.8), np.array([1.0, -2.0])
    state = server.init(np.zeros(2))
    for t in range(6):
        state = server.server(state, fa.Step(g), None)
        np.testing.assert_allclose(state.v, g * (1 - 0.8 ** (t + 1)) / (1 - 0.8))


def test_fedavgm_nesterov_looks_ahead() -> None:
    """From rest: the plain step is G, Nesterov's G + beta G."""
    plain = FedAvgM(beta=0.5).server(FedAvgM().init(np.zeros(1)), fa.Step(np.ones(1)), None)
    ahead = FedAvgM(beta=0.5, nesterov=True).server(FedAvgM().init(np.zeros(1)), fa.Step(np.ones(1)), None)
    assert (plain.w[0], ahead.w[0]) == (-1.0, -1.5)


def test_without_answers_the_velocity_stays() -> None:
    """dropouts ~ 1 for all rounds but that of a first one: the contract test covers the weights, this the state."""
    algorithm = FedAvgM()
    state = algorithm.server(algorithm.init(np.zeros(2)), fa.Step(np.ones(2)), None)
    assert algorithm.round(state, lambda message: None) is state
