"""Targets, means and recalls by hand (docs/reference/metrics.md#curves-and-targets)."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.algorithms.test_fedavg import on_blobs

from fedarena.engine.setup import open_context
from fedarena.statistics.curve_summary import area, monotone, recalls, relative_accuracy, rounds_to

CURVE = [(1, 0.2), (2, 0.6), (3, 0.5), (4, 0.9)]


def test_rounds_to_is_the_first_crossing() -> None:
    assert rounds_to(CURVE, 0.6) == 2
    assert rounds_to(CURVE, 0.61) == 4
    assert rounds_to(CURVE, 0.95) is None
    assert rounds_to([], 0.5) is None


def test_rounds_to_interpolates_on_the_monotone_curve_and_rounds_up() -> None:
    """Between (3, 0.6 so far) and (4, 0.9), 0.7 lies at 3.33; between 0 and the first evaluation nothing is known."""
    assert rounds_to(CURVE, 0.7, interpolate=True) == 4
    assert rounds_to([(10, 0.0), (20, 1.0)], 0.34, interpolate=True) == 14
    assert rounds_to([(10, 0.0), (20, 1.0)], 0.3, interpolate=True) == 13
    assert rounds_to(CURVE, 0.1, interpolate=True) == 1
    assert rounds_to([(5, 0.0), (10, 1.0)], 1e-200, interpolate=True) == 6


@pytest.mark.slow
@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.floats(0, 1))
def test_interpolation_never_comes_later_than_the_crossing(values: list[float], target: float) -> None:
    curve = [(5 * (i + 1), a) for i, a in enumerate(values)]
    first, between = rounds_to(curve, target), rounds_to(curve, target, interpolate=True)
    assert (first is None) == (between is None)
    if first is not None and between is not None:
        assert first - 5 < between <= first
    assert all(a <= b for (_, a), (_, b) in zip(monotone(curve), monotone(curve)[1:], strict=False))


def test_area_and_relative_accuracy() -> None:
    assert area([(1, 0.0), (3, 1.0)]) == 0.5
    assert relative_accuracy(0.9, 0.6) == pytest.approx(1.5)


def test_recalls_by_hand() -> None:
    got = recalls(np.array([[8, 2, 0], [1, 3, 0], [0, 0, 0]]))
    np.testing.assert_allclose(got[:2], [0.8, 0.75])
    assert np.isnan(got[2])


def test_clients_can_be_compared_on_their_training_rows() -> None:
    """The weighted mean over an exhaustive partition is then the accuracy on all training rows.

    See docs/reference/metrics.md#t-1.
    """
    run = on_blobs(evaluate={"on": "train"}, partition={"name": "quantity_dirichlet", "beta": 1.0})
    site = open_context(run.experiment)
    site.task.module.load_state_dict(run.state)
    on_all = site.evaluate(np.arange(site.data.n_train)).right.mean()
    assert run.final.weighted_accuracy == pytest.approx(on_all)
    assert run.final.accuracy == pytest.approx(site.evaluate(site.owners.test).right.mean())
