"""FedDyn: the optimum of unlike clients."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.algorithms.test_fedavg import on_blobs
from tests.support.federations import optimum
from tests.support.quadratic_federations import federation, solve

from fedarena.algorithms import FedDyn
from fedarena.config.errors import BadValue


@pytest.mark.slow
def test_feddyn_reaches_the_optimum_of_unlike_quadratics() -> None:
    """With many local steps a round, all clients or some of them, where FedAvg does not."""
    data, centres, curvatures = federation(6)
    target = optimum(centres, curvatures, np.ones(6))
    local = {"lr": 0.4, "epochs": 15, "batch": math.inf}  # the local error shrinks to 0.4 ** 15 or less
    np.testing.assert_allclose(solve(data, FedDyn(alpha=1.0), 60, local=local), target, atol=1e-8)
    some = solve(data, FedDyn(alpha=1.0), 120, per_round=3, local=local)
    np.testing.assert_allclose(some, target, atol=1e-6)


def test_feddyn_refuses_an_alpha_that_diverges() -> None:
    with pytest.raises(BadValue, match="feddyn diverges"):
        on_blobs(FedDyn(alpha=30.0), local={"lr": 0.1})
