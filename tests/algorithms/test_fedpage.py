"""FedPAGE: gradient estimates that are exact in known cases, and its bytes."""

from __future__ import annotations

import math

import numpy as np
from tests.algorithms.test_fedavg import on_blobs, on_quadratics
from tests.support.quadratic_federations import ROWS, at_optimum

from fedarena.algorithms import FedPAGE


def test_fedpage_telescopes_to_the_exact_gradient() -> None:
    """Q = 1, full batches, all clients: g_t = grad f(w_t), so that any p gives gradient descent."""
    full = {"lr": 0.1, "batch": math.inf}
    lazy = on_quadratics(ROWS, algorithm=FedPAGE(p=1e-9, q=1, server_lr=0.2), rounds=12, local=full)
    exact = on_quadratics(ROWS, algorithm="fedsgd", rounds=12, local={"lr": 0.2})
    np.testing.assert_allclose(lazy, exact, rtol=1e-10)


def test_fedpage_stays_at_the_optimum() -> None:
    got, target = at_optimum(FedPAGE(p=0.3, q=1), rounds=6, local={"lr": 0.1, "batch": math.inf})
    np.testing.assert_allclose(got, target, atol=1e-12)


def test_fedpage_costs_two_models_down_when_it_carries_on() -> None:
    run = on_blobs(FedPAGE(p=1e-9), share=0.5, rounds=2)
    model = 4 * sum(v.numel() for v in run.state.values())
    first, second = run.records
    assert first.bytes_down == 4 * model  # round 0: all clients compute the gradient
    assert second.bytes_down - first.bytes_down == 2 * (2 * model + 8)
    assert second.bytes_up - first.bytes_up == 2 * (model + 8)
