"""pFedMe: exact statements (docs/reference/algorithms.md#pfedme)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.algorithms.test_ditto import BLOBS, CURVATURES, QUADRATICS, ROWS, least_squares
from tests.algorithms.test_fedavg import CENTRES
from tests.support.federations import blobs, optimum, quadratics
from tests.support.trainings import trained

from fedarena.algorithms import PFedMe
from fedarena.config.errors import BadValue


@pytest.mark.slow
def test_the_optimum_of_quadratics_is_that_of_their_envelopes(tmp_path: Path) -> None:
    """The envelope of h/2 (w - a)^2 is h'/2 (w - a)^2 with h' = h lambda / (h + lambda)."""
    lam, local = 2.0, {"lr": 0.9, "epochs": 1, "batch": float("inf")}
    algorithm = PFedMe(lam=lam, steps=12, own_lr=2 / 7, beta=1.0)
    end = trained(quadratics(CENTRES, CURVATURES, ROWS), algorithm, tmp_path, rounds=26, local=local, **QUADRATICS)
    bent = CURVATURES * lam / (CURVATURES + lam)
    w = optimum(CENTRES, bent, np.array(ROWS))
    np.testing.assert_allclose(end.state.w, w, atol=1e-9)
    theta = (CURVATURES * CENTRES + lam * w) / (CURVATURES + lam)
    np.testing.assert_allclose(np.stack(end.own), theta, atol=1e-9)


@pytest.mark.parametrize("beta", [1.0, 0.5, 2.0])
def test_a_loop_in_numpy_gives_the_same(beta: float, tmp_path: Path) -> None:
    """Least squares on batches of one order, against the algorithm as it is printed."""
    rng = np.random.default_rng(4)
    lam, lr, own_lr, steps, rounds, batch = 1.5, 0.2, 0.1, 3, 4, 4
    x = rng.standard_normal((3, 8, 3))
    y = (x @ rng.standard_normal((3, 3, 1)))[:, :, 0]
    w, theta = np.zeros(3), np.zeros((3, 3))
    for _ in range(rounds):
        ends = np.tile(w, (3, 1))
        for k in range(3):
            theta[k] = w
            for start in (0, 4, 0, 4):  # two epochs: four local rounds
                rows, labels = x[k, start : start + batch], y[k, start : start + batch]
                for _ in range(steps):
                    slope = rows.T @ (rows @ theta[k] - labels) / batch
                    theta[k] -= own_lr * (slope + lam * (theta[k] - ends[k]))
                ends[k] -= lr * lam * (ends[k] - theta[k])
        w = (1 - beta) * w + beta * ends.mean(axis=0)

    end = trained(
        least_squares(x, y), PFedMe(lam=lam, steps=steps, own_lr=own_lr, beta=beta), tmp_path, rounds=rounds,
        local={"lr": lr, "epochs": 2, "batch": batch, "shuffle": False}, model="least_squares", partition="natural",
        dtype="float64",
    )  # fmt: skip
    np.testing.assert_allclose(end.state.w, w, atol=1e-10)
    np.testing.assert_allclose(np.stack(end.own), theta, atol=1e-10)


@pytest.mark.parametrize("algorithm", [PFedMe(lam=30.0), PFedMe(lam=3.0, own_lr=1.0)])
def test_a_weight_that_diverges_is_refused(algorithm: PFedMe, tmp_path: Path) -> None:
    with pytest.raises(BadValue, match=r"pfedme diverges: .* = 3, and must stay below 2"):
        trained(blobs(), algorithm, tmp_path, **BLOBS)
