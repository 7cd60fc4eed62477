"""Sums of clients add up to those of one table of all samples, and give its metrics, confusion matrix and calibration."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from fedarena.engine.task_metrics import Predictions, calibration_bins, confusion_counts
from fedarena.federation.evaluation_sums import own_values
from fedarena.federation.metric_sums import BY_CLASS, BY_SUM, MetricLayout, MetricSums
from fedarena.models.task import Scores
from fedarena.statistics.metric_registry import measure, metrics_of

ROUNDING = 1e-12


def predictions(labels: np.ndarray, probabilities: np.ndarray, predicted: np.ndarray) -> Predictions:
    ones = np.ones(len(labels), np.int64)
    return Predictions(labels, predicted, probabilities, Scores(ones, ones, ones.astype(float)))


def federation(seed: int, classes: int) -> list[Predictions]:
    """Up to five clients: some have one class, some no sample, some outputs are not finite, many scores are tied."""
    rng = np.random.default_rng(seed)
    found = []
    for k in range(int(rng.integers(1, 6))):
        n = 0 if (seed + k) % 6 == 0 else int(rng.integers(1, 25))
        y = rng.choice(rng.permutation(classes)[: rng.integers(1, classes + 1)], n)
        raw = rng.integers(0, 4, (n, classes)) + 0.5 if seed % 2 else rng.random((n, classes)) ** 3
        p = raw / raw.sum(axis=1, keepdims=True)
        predicted = p.argmax(axis=1)
        if seed % 7 == 0 and n:
            p[0], predicted[0] = np.nan, -1
        found.append(predictions(y, p, predicted))
    return found


def joined(parts: list[Predictions]) -> Predictions:
    return predictions(
        *(np.concatenate([getattr(p, n) for p in parts]) for n in ("labels", "probabilities", "predicted"))
    )


def same(found: float, expected: float, within: float = 0.0) -> bool:
    return (math.isnan(found) and math.isnan(expected)) or abs(found - expected) <= within


@pytest.mark.slow
@pytest.mark.parametrize("classes", [2, 4])
def test_metrics_from_sums_are_those_of_all_samples(classes: int) -> None:
    layout = MetricLayout(classes, bins=10, positive=1 if classes == 2 else None)
    chosen = list(metrics_of("classification").values())
    diverged = undefined = 0
    for seed in range(150):
        clients = federation(seed, classes)
        pooled = joined(clients)
        integers = [MetricSums.of(one, layout).integers for one in clients]
        total = MetricSums.from_integers([sum(column) for column in zip(*integers, strict=True)], layout)
        assert total.integers == MetricSums.of(pooled, layout).integers
        assert total.implausible(len(pooled.labels)) == ""
        expected = measure(chosen, pooled.labels, pooled.predicted, pooled.probabilities, layout.positive)
        values = total.values()
        assert set(values) == {*BY_CLASS, *BY_SUM, "auc", "average_precision"}
        for name in BY_CLASS:  # whole numbers and one division: the same bits
            assert same(values[name], expected[name]), name
        for name in BY_SUM:
            assert same(values[name], expected[name], ROUNDING), name
        for name, (value, low, high) in total.intervals().items():
            assert math.isnan(value) == math.isnan(expected[name])
            assert math.isnan(value) or low - ROUNDING <= expected[name] <= high + ROUNDING
        assert total.matrix.tolist() == confusion_counts(pooled, classes).tolist()
        curve = calibration_bins(pooled)
        assert (total.calibration is None) == (curve is None)
        for own, other in zip(total.calibration or (), curve or (), strict=True):
            assert own == pytest.approx(other, abs=ROUNDING)
        diverged += total.diverged
        undefined += math.isnan(values["auc"])
    assert diverged > 10
    assert undefined > 10


def changed(integers: tuple[int, ...], at: int, by: int) -> list[int]:
    return [number + by * (k == at) for k, number in enumerate(integers)]


def test_totals_that_cannot_be_right_are_found() -> None:
    layout = MetricLayout(3, bins=4)
    pooled = joined(federation(1, 3))
    sums, count = MetricSums.of(pooled, layout), len(pooled.labels)
    bounds = np.cumsum(layout.sizes)
    assert sums.implausible(count) == ""
    assert "confusion" in sums.implausible(count + 1)
    cases: dict[str, tuple[int, int]] = {
        "confusion": (0, 1),
        "losses": (bounds[0] + 1, 10**5 << 1074),
        "bins of confidence": (bounds[1], 1),
        "sum of confidences": (bounds[3], -(10**5) << 1074),
        "histogram": (bounds[4], -1000),
    }
    for problem, (at, by) in cases.items():
        found = MetricSums.from_integers(changed(sums.integers, int(at), by), layout)
        assert problem in found.implausible(count), problem
    with pytest.raises(ValueError, match="larger than any table"):
        MetricSums.from_integers(changed(sums.integers, 0, 2**60), layout)


def test_a_client_with_few_samples_has_no_values_of_its_own() -> None:
    y, p = np.array([0, 1, 1]), np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    one = predictions(y, p, p.argmax(axis=1))
    assert own_values(one, "classification", 1, least=4) == {"auc": None, "average_precision": None}
    assert own_values(one, "classification", 1, least=3) == {"auc": 1.0, "average_precision": 1.0}
    same_class: Any = predictions(np.array([1, 1, 1]), p, p.argmax(axis=1))
    assert own_values(same_class, "classification", 1, least=3) == {"auc": None, "average_precision": 1.0}
