"""Derivatives against differences, scores against scikit-learn, and labels that cannot be learned."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import log_loss, roc_auc_score

from fedarena.config.errors import BadValue
from fedarena.statistics.metrics import auc
from fedarena.trees.objectives import check_labels, check_weights, make_objective, scores
from fedarena.vertical.settings import BoostSettings, ObjectiveName

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("name", ["logistic", "softmax", "squared_error"])
def test_gradients_are_derivatives_of_the_loss(name: ObjectiveName) -> None:
    settings = BoostSettings(objective=name, classes=3)
    objective = make_objective(settings)
    margins = RNG.normal(size=(5, settings.outputs)).astype(np.float32)
    y = np.array([0.0, 1, 1, 0, 1])
    g, _ = objective.gradients(margins, y, np.ones(5, np.float32))
    step = np.float32(1e-2)
    for k in range(settings.outputs):
        up, down = margins.copy(), margins.copy()
        up[:, k] += step
        down[:, k] -= step
        for i in range(5):
            one = np.zeros(5)
            one[i] = 1
            if name == "squared_error":  # its loss is shown as a root; half the square is what is minimised
                change = (objective.loss(up, y, one) ** 2 - objective.loss(down, y, one) ** 2) / 2
            else:
                change = objective.loss(up, y, one) - objective.loss(down, y, one)
            assert change / (2 * step) == pytest.approx(g[i, k], abs=2e-3)


def test_softmax_keeps_the_factor_two_of_xgboost() -> None:
    margins = np.zeros((1, 4), np.float32)
    g, h = make_objective(BoostSettings(objective="softmax", classes=4)).gradients(
        margins, np.array([2.0]), np.ones(1, np.float32)
    )
    assert g[0].tolist() == [0.25, 0.25, -0.75, 0.25]  # p - [class is y], p = 1/4
    assert h[0].tolist() == [0.375] * 4  # 2 p (1 - p) = 2 * 3/16


def test_scores_agree_with_scikit_learn() -> None:
    y = RNG.integers(0, 2, 200).astype(float)
    score = np.round(RNG.normal(size=200), 1)  # with ties
    assert auc(y, score) == pytest.approx(roc_auc_score(y, score), abs=1e-12)
    w = RNG.random(200)
    p = 1 / (1 + np.exp(-score))
    loss = make_objective(BoostSettings()).loss(score.astype(np.float32)[:, None], y, w)
    assert loss == pytest.approx(log_loss(y, p, sample_weight=w), rel=1e-6)


def test_a_row_of_weight_three_counts_as_three_rows() -> None:
    rng = np.random.default_rng(3)
    y, score, w = rng.integers(0, 2, 60).astype(float), rng.integers(0, 9, 60) / 9, rng.integers(0, 4, 60)
    rows = np.repeat(np.arange(60), w)
    assert auc(y, score, w.astype(float)) == auc(y[rows], score[rows])
    assert auc(y, score, w.astype(float)) != auc(y, score)
    settings = BoostSettings()
    margins = score.astype(np.float32)[:, None]
    assert scores(settings, margins, y, w.astype(float))["auc"] == auc(y[rows], score[rows])


def test_auc_of_one_class_is_not_a_number() -> None:
    assert np.isnan(auc(np.ones(3), np.arange(3.0)))


@pytest.mark.parametrize(
    ("y", "says"),
    [
        ([0, 1, np.nan], "missing or infinite"),
        ([0, 1, np.inf], "missing or infinite"),
        ([0, 1, 2], "not classes 0 to 1"),
        ([1, 1, 1], "all training labels are 1"),
    ],
)
def test_labels_that_cannot_be_learned(y: list[float], says: str) -> None:
    with pytest.raises(BadValue, match=says):
        check_labels(np.array(y, float), BoostSettings(), np.ones(3, bool))


def test_one_class_is_refused_even_if_the_validation_rows_have_two() -> None:
    with pytest.raises(BadValue, match="all training labels are 0"):
        check_labels(np.array([0.0, 0, 1]), BoostSettings(), np.array([True, True, False]))


@pytest.mark.parametrize("w", [[1, 1], [1, -1, 1], [0, 0, 0], [1, np.nan, 1]], ids=str)
def test_weights_that_mean_nothing(w: list[float]) -> None:
    with pytest.raises(BadValue):
        check_weights(np.array(w, float), 3)
