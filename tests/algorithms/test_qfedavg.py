"""q-FedAvg: against a loop in numpy, its limit q = 0, and that a larger q helps the worst client."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from tests.algorithms.test_fedavg import on_blobs
from tests.support.federations import Quadratic, quadratics
from tests.support.quadratic_federations import federation, solve

import fedarena as fa
from fedarena.algorithms import FedAvg, QFedAvg
from fedarena.algorithms.base import Reply, Step

LR, EPOCHS, ROUNDS = 0.1, 5, 6
FULL = {"lr": LR, "epochs": EPOCHS, "batch": math.inf}


class UnweightedFedAvg(FedAvg):
    """FedAvg in which every client counts the same."""

    def client(self, message: Any, client_state: None, work: Any) -> Reply:
        return Reply(Step(message.w - work.train(message.w).w))


def trained(w: np.ndarray, centre: np.ndarray, curvature: np.ndarray) -> np.ndarray:
    """Return the weights after some epochs of gradient descent on one quadratic."""
    for _ in range(EPOCHS):
        w = w - LR * curvature * (w - centre)
    return w


def reference(centres: np.ndarray, curvatures: np.ndarray, q: float, scale: float) -> np.ndarray:
    """Algorithm 2 of the paper, with all clients in every round."""
    w = np.zeros(3)
    for _ in range(ROUNDS):
        numerator, denominator = np.zeros(3), 0.0
        for centre, curvature in zip(centres, curvatures, strict=True):
            loss = 0.5 * np.sum(curvature * (w - centre) ** 2)
            step = scale * (w - trained(w, centre, curvature))
            numerator += loss**q * step
            denominator += q * loss ** (q - 1) * np.dot(step, step) + scale * loss**q
        w = w - numerator / denominator
    return w


@pytest.mark.parametrize("q", [0.0, 0.5, 1.0, 5.0])
@pytest.mark.parametrize("lipschitz", [None, 3.0])
def test_it_is_the_loop_of_the_paper(q: float, lipschitz: float | None) -> None:
    data, centres, curvatures = federation(5)
    ours = solve(data, QFedAvg(q=q, lipschitz=lipschitz), ROUNDS, local=FULL)
    theirs = reference(centres, curvatures, q, lipschitz or 1 / LR)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-10)
    assert np.abs(ours).max() > 0.01


@pytest.mark.parametrize("lr", [0.125, 0.5])
def test_q_of_zero_is_the_unweighted_mean_to_the_bit(lr: float) -> None:
    """L = 1 / lr is a power of two: all products with it and quotients by it are exact."""
    settings = {"local": {"lr": lr, "epochs": 1, "batch": 8}, "partition": {"name": "quantity_dirichlet", "beta": 2.0}}
    fair, plain = on_blobs(QFedAvg(q=0.0), **settings), on_blobs(UnweightedFedAvg(), **settings)
    assert fair.weights_sha256 == plain.weights_sha256
    assert fair.weights_sha256 != on_blobs(FedAvg(), **settings).weights_sha256  # sizes differ


@pytest.mark.slow
def test_a_larger_q_favours_the_worst_client() -> None:
    """Three clients agree and one is apart: as q grows, its loss falls and theirs rise."""
    centres, curvatures = np.array([[0.0], [0.0], [0.0], [8.0]]) + 1, np.ones((4, 1))
    data = quadratics(centres, curvatures, [4] * 4)
    found = [
        float(
            fa.run(data, model=lambda: Quadratic(1), algorithm=QFedAvg(q=q), partition="natural", dtype="float64",
                   rounds=80, local={"lr": 0.25, "epochs": 1, "batch": math.inf}, out=False, runtime="serial"
                   ).state["w"][0])
        for q in (0.0, 1.0, 3.0)
    ]  # fmt: skip
    assert found[0] == pytest.approx(3.0, abs=1e-6)  # the mean of the centres
    # d/dw of 3 (w-1)^4 + (9-w)^4 is 0 where 3 (w-1)^3 = (9-w)^3, that is w = (9 + c) / (1 + c), c = 3^(1/3)
    c = 3 ** (1 / 3)
    assert found[1] == pytest.approx((9 + c) / (1 + c), abs=1e-6)
    c = 3 ** (1 / 7)  # for powers of 8: 3 (w-1)^7 = (9-w)^7
    assert found[2] == pytest.approx((9 + c) / (1 + c), abs=1e-3)
    assert found[0] < found[1] < found[2] < 5.0  # the middle is the fairest point


def test_a_loss_of_zero_leaves_the_model_finite() -> None:
    centres, curvatures = np.zeros((2, 2)), np.ones((2, 2))
    data = quadratics(centres, curvatures, [4, 4])
    for q in (0.0, 0.5, 1.0, 2.0):
        run = fa.run(data, model=lambda: Quadratic(2), algorithm=QFedAvg(q=q), partition="natural", rounds=2, out=False,
                     runtime="serial")  # fmt: skip
        assert not run.notes
        assert run.state["w"].abs().max() == 0
