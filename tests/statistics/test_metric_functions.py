"""Every metric equals scikit-learn's on random samples with ties, weights, absent classes and one-class clients."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from sklearn import config_context
from sklearn import metrics as sk
from sklearn.preprocessing import label_binarize

from fedarena.config.errors import BadValue, UnknownName
from fedarena.statistics import metrics as ours
from fedarena.statistics.metric_registry import (
    all_metrics,
    default_metric,
    find_metric,
    measure,
    metric,
    metrics_of,
)

INPUTS = 500  # of each kind: two classes and more


@pytest.fixture(autouse=True)
def fast_oracle() -> Iterator[None]:
    with config_context(assume_finite=True, skip_parameter_validation=True):
        yield


def samples(classes: int, seeds: range) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]]:
    """Labels, predicted classes, probabilities with ties, and weights (some of them zero) for every seed."""
    for seed in seeds:
        rng = np.random.default_rng(seed)
        n = int(rng.integers(1, 40))
        present = rng.permutation(classes)[: rng.integers(1, classes + 1)]  # often one class alone
        labels = rng.choice(present, n)
        raw = rng.integers(0, 5, (n, classes)) + 0.5  # few distinct scores: many ties
        probabilities = raw / raw.sum(axis=1, keepdims=True)
        weights = None
        if seed % 2:
            weights = rng.integers(0, 4, n) * rng.random()
            weights[0] = 1.0
        yield labels, probabilities.argmax(axis=1), probabilities, weights


def oracle(function: Callable[..., Any], *args: Any, **settings: Any) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(function(*args, **settings))


def same(found: float, expected: float) -> bool:
    return (math.isnan(found) and math.isnan(expected)) or abs(found - expected) <= 1e-9


def present(labels: np.ndarray, weights: np.ndarray | None) -> set[int]:
    return {int(k) for k in labels[slice(None) if weights is None else weights > 0]}


@pytest.mark.slow
@pytest.mark.parametrize("classes", [2, 5])
def test_metrics_of_predicted_classes_equal_scikit_learn(classes: int) -> None:
    everything = list(range(classes))
    for labels, predicted, _, w in samples(classes, range(INPUTS)):
        kept = slice(None) if w is None else w > 0  # scikit-learn counts a class of weight zero among the classes
        y, p, v = labels[kept], predicted[kept], None if w is None else w[kept]
        assert same(ours.accuracy(labels, predicted, w), oracle(sk.accuracy_score, y, p, sample_weight=v))
        balanced = oracle(sk.balanced_accuracy_score, y, p, sample_weight=v)
        assert same(ours.balanced_accuracy(labels, predicted, w), balanced)
        options: Any = {"sample_weight": v, "zero_division": 0}
        macro = sk.precision_recall_fscore_support(y, p, average="macro", **options)
        each = sk.precision_recall_fscore_support(y, p, labels=everything, average=None, **options)
        for own, mean, of_class in zip((ours.precision, ours.recall, ours.f1), macro, each, strict=False):
            assert same(own(labels, predicted, w), mean)
            for k in everything:  # undefined without a sample of the positive class
                expected = of_class[k] if k in present(labels, w) else math.nan
                assert same(own(labels, predicted, w, positive=k), expected)


@pytest.mark.slow
@pytest.mark.parametrize("classes", [2, 5])
def test_metrics_of_probabilities_equal_scikit_learn(classes: int) -> None:
    everything = list(range(classes))
    for labels, _, p, w in samples(classes, range(INPUTS)):
        assert same(ours.log_loss(labels, p, w), oracle(sk.log_loss, labels, p, sample_weight=w, labels=everything))
        scores = p[:, 1] if classes == 2 else p
        expected = oracle(sk.brier_score_loss, labels, scores, sample_weight=w, labels=everything)
        assert same(ours.brier(labels, p, w), expected)


@pytest.mark.slow
def test_the_auc_equals_scikit_learn_and_is_undefined_without_two_classes() -> None:
    undefined = 0
    for labels, _, p, w in samples(2, range(INPUTS)):
        expected = math.nan
        if present(labels, w) == {0, 1}:
            expected = oracle(sk.roc_auc_score, labels, p[:, 1], sample_weight=w)
        undefined += math.isnan(expected)
        assert same(ours.auc(labels, p, w, positive=1), expected)
        assert same(ours.auc(labels, p[:, 1], w), expected)
        assert same(ours.auc(labels, p, w, positive=0), expected)  # two probabilities that add up to one
    assert 0 < undefined < INPUTS


@pytest.mark.slow
def test_the_auc_of_many_classes_is_the_mean_of_one_against_the_rest() -> None:
    defined = 0
    for labels, _, p, w in samples(4, range(INPUTS)):
        expected = math.nan
        if present(labels, w) == {0, 1, 2, 3}:
            options: Any = {"multi_class": "ovr", "average": "macro", "sample_weight": w}
            expected, defined = oracle(sk.roc_auc_score, labels, p, **options), defined + 1
        assert same(ours.auc(labels, p, w), expected)
    assert defined > 50


@pytest.mark.slow
@pytest.mark.parametrize("classes", [2, 4])
def test_average_precision_equals_scikit_learn_and_is_undefined_without_a_positive_sample(classes: int) -> None:
    everything = list(range(classes))
    for labels, _, p, w in samples(classes, range(INPUTS)):
        expected = math.nan
        if classes == 2 and 1 in present(labels, w):
            expected = oracle(sk.average_precision_score, labels, p[:, 1], sample_weight=w)
        elif classes > 2 and present(labels, w) == {*everything}:
            truth = label_binarize(labels, classes=everything)
            expected = oracle(sk.average_precision_score, truth, p, average="macro", sample_weight=w)
        assert same(ours.average_precision(labels, p, w), expected)


@pytest.mark.slow
def test_the_calibration_error_is_the_gap_between_confidence_and_accuracy_in_fifteen_bins() -> None:
    for labels, predicted, p, w in samples(3, range(2 * INPUTS)):
        weights = np.ones(len(labels)) if w is None else w
        confidence, gap = p.max(axis=1), 0.0
        for k in range(15):
            inside = (confidence > k / 15) & (confidence <= (k + 1) / 15) & (weights > 0)
            if inside.any():
                means = [np.average(v[inside], weights=weights[inside]) for v in (confidence, predicted == labels)]
                gap += weights[inside].sum() * abs(means[0] - means[1])
        assert same(ours.ece(labels, p, w), gap / weights.sum())


@pytest.mark.slow
def test_metrics_of_values_equal_scikit_learn() -> None:
    constant_labels = 0
    for seed in range(2 * INPUTS):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(1, 30))
        y, p = rng.integers(0, 4, n) + 0.25, rng.normal(size=n)
        w = rng.random(n) * rng.integers(0, 3, n) if seed % 2 else None  # some of them zero
        if w is not None:
            w[0] = 1.0
        assert same(ours.rmse(y, p, w), oracle(sk.root_mean_squared_error, y, p, sample_weight=w))
        assert same(ours.mae(y, p, w), oracle(sk.mean_absolute_error, y, p, sample_weight=w))
        constant = len(set(y if w is None else y[w > 0])) == 1  # a label of weight zero is no label
        constant_labels += constant
        assert same(ours.r2(y, p, w), math.nan if constant else oracle(sk.r2_score, y, p, sample_weight=w))
    assert constant_labels


def brute_force_c_index(time: Any, event: Any, risk: Any, w: Any) -> float:
    """Every pair in turn, by the definition that lifelines documents for its concordance index."""
    right = total = 0.0
    for a in range(len(time)):
        for b in range(a):
            first, second = (a, b) if (time[a], not event[a]) <= (time[b], not event[b]) else (b, a)
            if not event[first] or (time[first] == time[second] and event[second]):
                continue  # the earlier one is censored, or both events came at the same time
            total += w[a] * w[b]
            right += w[a] * w[b] * (0.5 if risk[a] == risk[b] else risk[first] > risk[second])
    return right / total if total else math.nan


@pytest.mark.slow
def test_the_c_index_equals_a_count_of_all_pairs() -> None:
    undefined = 0
    for seed in range(2 * INPUTS):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(1, 14))
        time, event = rng.integers(1, 6, n), rng.integers(0, 2, n)
        risk, w = rng.integers(0, 4, n), rng.random(n) if seed % 2 else None
        expected = brute_force_c_index(time, event, risk, np.ones(n) if w is None else w)
        undefined += math.isnan(expected)
        assert same(ours.c_index(np.stack([time, event], axis=1), risk, w), expected)
    assert undefined


@pytest.mark.slow
def test_predictions_that_ignore_the_largest_probability_keep_their_metrics() -> None:
    """A threshold, or a class that occurs among neither labels nor predictions: any predicted class equals scikit-learn."""
    for seed in range(200):
        rng = np.random.default_rng(seed)
        n, w = int(rng.integers(1, 30)), None
        labels, predicted = rng.choice([0, 2, 5], n), rng.choice([0, 3, 5], n)
        if seed % 2:
            w = rng.random(n) + 0.1
        options: Any = {"sample_weight": w, "zero_division": 0}
        macro = sk.precision_recall_fscore_support(labels, predicted, average="macro", **options)
        for own, mean in zip((ours.precision, ours.recall, ours.f1), macro, strict=False):
            assert same(own(labels, predicted, w), mean)
        balanced = oracle(sk.balanced_accuracy_score, labels, predicted, sample_weight=w)
        assert same(ours.balanced_accuracy(labels, predicted, w), balanced)


def test_ties_of_the_c_index_are_those_of_lifelines() -> None:
    """Worked out by hand for each kind of tie; lifelines itself is not needed to run the tests."""
    times_tied = np.array([[2, 1], [2, 0]])
    assert ours.c_index(times_tied, np.array([1.0, 0.0])) == 1.0  # the event counts as earlier than the censoring
    assert ours.c_index(times_tied, np.array([0.0, 1.0])) == 0.0
    assert math.isnan(ours.c_index(np.array([[2, 1], [2, 1]]), np.array([1.0, 0.0])))  # both events at once
    assert math.isnan(ours.c_index(np.array([[1, 0], [2, 1]]), np.array([1.0, 0.0])))  # the earlier one is censored
    assert ours.c_index(np.array([[1, 1], [2, 1]]), np.array([0.5, 0.5])) == 0.5


def test_every_metric_of_no_samples_is_undefined() -> None:
    none = np.empty(0, np.int64)
    for task in ("classification", "next_symbol"):
        values = measure(list(metrics_of(task).values()), none, none, np.empty((0, 3)), None)
        assert values
        assert all(map(math.isnan, values.values()))


def test_a_model_that_diverged_keeps_its_accuracy_has_auc_one_half_and_no_log_loss() -> None:
    labels, predicted = np.array([0, 1, 1, 0]), np.array([0, -1, -1, 1])
    values = measure(list(metrics_of("classification").values()), labels, predicted, np.full((4, 2), np.nan), 1)
    assert values["accuracy"] == 0.25
    assert values["recall"] == 0.0
    assert values["balanced_accuracy"] == 0.25
    assert values["auc"] == 0.5
    assert math.isnan(values["log_loss"])
    for name, one in all_metrics().items():
        if one.needs == "probabilities" and not math.isinf(one.bounds[1]):
            assert one.bounds[0] <= values[name] <= one.bounds[1]


def test_a_metric_that_does_not_exist_for_a_task_is_refused() -> None:
    with pytest.raises(BadValue, match="'accuracy' does not exist for the task 'regression'"):
        find_metric("accuracy", "regression")
    with pytest.raises(BadValue, match="does not exist for a model with its own loss"):
        find_metric("auc", "custom")
    with pytest.raises(UnknownName, match="did you mean 'accuracy'"):
        find_metric("acuracy", "classification")
    for task in ("classification", "next_symbol", "regression", "survival", "custom"):
        assert default_metric(task).name in metrics_of(task)


def test_the_better_of_two_values_follows_the_direction_and_a_number_is_better_than_none() -> None:
    auc, loss = all_metrics()["auc"], all_metrics()["log_loss"]
    assert auc.better(0.9, 0.8)
    assert not auc.better(0.8, 0.8)
    assert auc.reaches(0.8, 0.8)
    assert loss.better(0.1, 0.2)
    assert not loss.better(0.2, 0.1)
    assert loss.reaches(0.1, 0.2)
    assert auc.better(0.1, math.nan)
    assert not auc.better(math.nan, 0.1)
    assert not auc.better(math.nan, math.nan)


def test_a_user_cannot_replace_a_built_in_metric() -> None:
    with pytest.raises(BadValue, match="cannot be called 'auc'"):
        metric()(ours.auc)
    with pytest.raises(BadValue, match="direction"):
        metric(direction="up")  # type: ignore[arg-type]
