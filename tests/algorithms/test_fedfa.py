"""FedFA: the weights of clients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.algorithms.test_fedavg import on_quadratics
from tests.support.quadratic_federations import FULL

from fedarena.algorithms import FedFA


def test_fedfa_weights_sum_to_one_and_favour_the_weak_and_the_rare() -> None:
    w = FedFA().weights(np.array([0.9, 0.5, 0.7]), np.array([3.0, 3.0, 3.0]))
    assert w.sum() == pytest.approx(1)
    assert w.argmax() == 1
    rare = FedFA().weights(np.full(3, 0.8), np.array([1.0, 5.0, 5.0]))
    often = FedFA(freq="more_more").weights(np.full(3, 0.8), np.array([1.0, 5.0, 5.0]))
    assert rare.argmax() == 0
    assert often.argmin() == 0
    assert (FedFA().weights(np.array([0.4]), np.array([2.0])) == [1.0]).all()
    np.testing.assert_allclose(FedFA().weights(np.full(4, 0.8), np.full(4, 2.0)), 0.25)


@pytest.mark.slow
@given(st.lists(st.tuples(st.floats(0, 1), st.integers(1, 50)), min_size=1, max_size=9), st.sampled_from([0, 0.3, 1]))
def test_fedfa_weights_are_shares(clients: list[tuple[float, int]], mix: float) -> None:
    """Weights are never negative and sum to 1, for all accuracies and visits."""
    accuracy, visits = (np.array(column, dtype=np.float64) for column in zip(*clients, strict=True))
    for freq in ("less_more", "more_more"):
        share = FedFA(mix=mix, freq=freq).weights(accuracy, visits)
        assert (share >= 0).all()
        assert share.sum() == pytest.approx(1)


def test_fedfa_with_equal_accuracies_and_visits_is_the_uniform_mean() -> None:
    """Unlike quadratics, which know no accuracy, of equal rows, without momentum: FedAvg."""
    settings: dict[str, Any] = {"rounds": 3, "local": FULL}
    fair, plain = (on_quadratics([4, 4, 4], algorithm=a, **settings) for a in (FedFA(beta=0.0), "fedavg"))
    np.testing.assert_allclose(fair, plain, rtol=1e-12)
