"""The AUC and the average precision of scores lie in the interval that follows from histograms of these scores."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedarena.statistics.metrics import auc, average_precision
from fedarena.statistics.score_histograms import (
    Counts,
    Interval,
    auc_interval,
    average_precision_interval,
    histogram,
    mean_interval,
)

ROUNDING = 1e-12  # of sums of fractions in double precision
METRICS = [(auc, auc_interval), (average_precision, average_precision_interval)]


def samples(seed: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Labels (often of one class), scores with ties and values at the edges of bins, and a number of bins."""
    rng = np.random.default_rng(seed)
    n, bins = int(rng.integers(1, 60)), int(rng.integers(2, 30))
    labels = rng.integers(0, 2, n) if seed % 5 else np.full(n, seed % 2)
    scores = rng.beta(1, 3, n) if seed % 2 else rng.integers(0, 2 * bins + 1, n) / (2 * bins)
    return labels, scores, bins


@pytest.mark.slow
@pytest.mark.parametrize(("metric", "interval"), METRICS)
def test_the_value_of_the_scores_lies_in_the_interval(metric: object, interval: object) -> None:
    undefined = wide = 0
    for seed in range(1000):
        labels, scores, bins = samples(seed)
        exact = metric(labels, scores)  # type: ignore[operator]
        found = interval(histogram(labels == 1, scores, bins))  # type: ignore[operator]
        if math.isnan(exact):
            undefined += 1
            assert all(map(math.isnan, found))
            continue
        assert 0 <= found.low <= found.value + ROUNDING
        assert found.value <= found.high + ROUNDING <= 1 + 2 * ROUNDING
        assert found.low - ROUNDING <= exact <= found.high + ROUNDING
        wide += found.high - found.low > 0.01
    assert 0 < undefined < 500 < wide


def within_bins(counts: Counts, positive_first: bool, tied: bool) -> tuple[np.ndarray, np.ndarray]:
    """Labels and scores with these counts, one kind of each bin above the other; positive ones tied or one by one."""
    labels, scores = [], []
    bins = counts.shape[1]
    for k in range(bins):
        for kind, label in ((0, 1), (1, 0)):
            upper = (label == 1) == positive_first
            count = int(counts[kind, k])
            steps = np.zeros(count) if tied else np.arange(count) / (4 * count or 1)
            labels += [label] * count
            scores += ((k + (0.6 if upper else 0.1) + steps) / bins).tolist()
    return np.array(labels), np.array(scores)


def test_both_ends_of_the_interval_are_values_of_scores() -> None:
    """So that no smaller interval would do."""
    rng = np.random.default_rng(0)
    for _ in range(100):
        counts = rng.integers(0, 5, (2, 6))
        counts[:, 0] += 1
        best, worst = within_bins(counts, True, tied=True), within_bins(counts, False, tied=False)
        for labels, scores in (best, worst):
            assert histogram(labels == 1, scores, 6).tolist() == counts.tolist()
        for metric, interval in METRICS:
            found = interval(counts)
            assert metric(*best) == pytest.approx(found.high, abs=ROUNDING)
            assert metric(*worst) == pytest.approx(found.low, abs=ROUNDING)


def test_the_error_of_the_auc_is_half_the_mass_of_pairs_that_share_a_bin() -> None:
    counts = np.array([[1, 4, 5], [6, 2, 2]])
    pairs = [(a, b) for a in range(3) for b in range(3) for _ in range(int(counts[0, a] * counts[1, b]))]
    shared = sum(a == b for a, b in pairs) / len(pairs)
    right = sum((a > b) + (a == b) / 2 for a, b in pairs) / len(pairs)
    found = auc_interval(counts)
    assert found.value == pytest.approx(right)
    assert found.high - found.value == pytest.approx(shared / 2)
    assert found.value - found.low == pytest.approx(shared / 2)


@pytest.mark.slow
def test_scores_that_share_no_bin_have_their_exact_value() -> None:
    labels, scores = np.array([0, 1, 0, 1, 1]), np.array([0.05, 0.15, 0.25, 0.35, 1.0])
    for metric, interval in METRICS:
        assert interval(histogram(labels == 1, scores, 10)) == pytest.approx((metric(labels, scores),) * 3)


def test_the_mean_over_classes_is_undefined_where_one_is() -> None:
    assert mean_interval([Interval(0.5, 0.25, 1.0), Interval(1.0, 0.75, 1.0)]) == (0.75, 0.5, 1.0)
    assert math.isnan(mean_interval([Interval(0.5, 0.4, 0.6), auc_interval(np.array([[0, 0], [1, 2]]))]).value)
