"""Co-Learning: the decaying rate, and the doubling of epochs."""

from __future__ import annotations

import numpy as np
from tests.algorithms.test_fedavg import CENTRES, CURVATURES, on_blobs, on_quadratics
from tests.support.quadratic_federations import FULL
from torch import nn

import fedarena as fa
from fedarena.algorithms import CoLearning


def test_colearning_rate_falls_by_epochs_and_starts_again() -> None:
    """eta lambda^(e/E): 0.1, 0.1 * 0.25^(1/3), 0.1 * 0.25^(2/3); full batch on a quadratic, by hand, two rounds."""
    got = on_quadratics([5], algorithm=CoLearning(decay=0.25, epsilon=-1.0), rounds=2, local={**FULL, "epochs": 3})
    w = np.zeros(2)
    for _ in range(2):
        for e in range(3):
            w = w - 0.1 * 0.25 ** (e / 3) * CURVATURES[0] * (w - CENTRES[0])
    np.testing.assert_allclose(got, w, rtol=1e-12)


def test_colearning_doubles_when_the_model_hardly_moves() -> None:
    """epsilon = inf: 1, 2, 4, 4 (cap) times the epochs; epsilon < 0: never."""
    run = on_blobs(CoLearning(epsilon=1e9, most=4), local={"lr": 0.05, "epochs": 1, "batch": 16}, rounds=4)
    each = np.diff([0, *(r.steps for r in run.records)])
    assert (each / each[0]).tolist() == [1, 2, 4, 4]


def test_colearning_epochs_only_double_and_only_when_the_model_has_settled() -> None:
    """With an epsilon in between: the same, then powers of two, never less."""
    run = on_blobs(CoLearning(epsilon=0.02, decay=0.5, most=8), local={"lr": 0.05, "epochs": 1, "batch": 16}, rounds=30)
    each = np.diff([0, *(r.steps for r in run.records)])
    factors = (each / each[0]).tolist()
    assert factors == sorted(factors)
    assert factors[:3] == [1, 1, 1]
    assert factors[-1] > 1
    assert set(factors) <= {1, 2, 4, 8}


def test_colearning_measures_parameters_not_statistics() -> None:
    """The weights hardly move while BatchNorm's running means go from 0 to those of the rows: epochs double."""
    x = np.random.default_rng(0).random((60, 1, 8, 8)).astype(np.float32) + 100
    net = lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
    run = fa.run((x, np.arange(60) % 3), model=net, algorithm=CoLearning(epsilon=1e-3), partition="iid", clients=3,
                 rounds=2, local={"lr": 1e-7, "epochs": 1, "batch": 8}, out=False, runtime="serial")  # fmt: skip
    assert float(run.state["1.running_mean"].abs().max()) > 1
    assert run.records[1].steps == 3 * run.records[0].steps
