"""Metrics of predictions as short numpy functions, equal to those of scikit-learn (`c_index`: of lifelines).

Labels are class indices 0, 1, ... and probabilities have one column per class. A metric that the labels leave undefined, such
as the AUC of one class, is NaN. `sample_weight` gives every sample a weight. `positive` is the positive class of two; without
it, `precision`, `recall`, `f1`, `auc` and `average_precision` are unweighted (macro) means over classes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Weights = NDArray[Any]  # float64

BINS = 15  # of the expected calibration error
SMALLEST = float(np.finfo(np.float64).eps)  # probabilities are kept away from 0 and 1 by this much in the log loss


def accuracy(y_true: Array, y_pred: Array, sample_weight: Array | None = None) -> float:
    """Return the share of samples whose predicted class is their label."""
    return _mean(y_true == y_pred, _weights(y_true, sample_weight))


def balanced_accuracy(y_true: Array, y_pred: Array, sample_weight: Array | None = None) -> float:
    """Return the mean recall over the classes that occur among the labels."""
    found, _, samples = _class_sums(y_true, y_pred, sample_weight)
    occurs = samples > 0
    return float(np.mean(found[occurs] / samples[occurs])) if occurs.any() else np.nan


def precision(y_true: Array, y_pred: Array, sample_weight: Array | None = None, positive: int | None = None) -> float:
    """Return the share of samples predicted as a class that belong to it; 0 where no sample is predicted as it."""
    found, predicted, samples = _class_sums(y_true, y_pred, sample_weight)
    return _of_classes(found, predicted, found + predicted + samples, samples, positive)


def recall(y_true: Array, y_pred: Array, sample_weight: Array | None = None, positive: int | None = None) -> float:
    """Return the share of samples of a class that are predicted as it."""
    found, predicted, samples = _class_sums(y_true, y_pred, sample_weight)
    return _of_classes(found, samples, found + predicted + samples, samples, positive)


def f1(y_true: Array, y_pred: Array, sample_weight: Array | None = None, positive: int | None = None) -> float:
    """Return the harmonic mean of precision and recall."""
    found, predicted, samples = _class_sums(y_true, y_pred, sample_weight)
    return _of_classes(2 * found, predicted + samples, found + predicted + samples, samples, positive)


def log_loss(y_true: Array, probabilities: Array, sample_weight: Array | None = None) -> float:
    """Return the mean of -log(probability of the label), probabilities clipped to [2.2e-16, 1 - 2.2e-16]."""
    return _mean(log_losses(y_true, probabilities), _weights(y_true, sample_weight))


def log_losses(y_true: Array, probabilities: Array) -> Weights:
    """Return the log loss of each sample."""
    p = probabilities[np.arange(len(y_true)), y_true]
    losses: Weights = -np.log(np.clip(p, SMALLEST, 1 - SMALLEST))
    return losses


def brier(y_true: Array, probabilities: Array, sample_weight: Array | None = None) -> float:
    """Return the mean squared difference of probabilities and labels: of one of two classes, or summed over more."""
    return _mean(brier_scores(y_true, probabilities), _weights(y_true, sample_weight))


def brier_scores(y_true: Array, probabilities: Array) -> Weights:
    """Return the Brier score of each sample."""
    errors = probabilities.astype(np.float64)
    errors[np.arange(len(y_true)), y_true] -= 1
    squares: Weights = (errors**2).sum(axis=1)
    return squares / 2 if probabilities.shape[1] == 2 else squares


def ece(y_true: Array, probabilities: Array, sample_weight: Array | None = None, bins: int = BINS) -> float:
    """Return the expected calibration error: the mean distance of confidence and accuracy over bins of confidence."""
    confidence, share_right, weight = reliability(y_true, probabilities, sample_weight, bins)
    total, known = weight.sum(), weight > 0
    return float((weight[known] * abs(confidence - share_right)[known]).sum() / total) if total > 0 else np.nan


def reliability(
    y_true: Array, probabilities: Array, sample_weight: Array | None = None, bins: int = BINS
) -> tuple[Weights, Weights, Weights]:
    """Return mean confidence, accuracy and weight of each bin (k / bins, (k + 1) / bins] of the largest probability."""
    weights = _weights(y_true, sample_weight)
    place, confidence, is_right = confidence_bins(y_true, probabilities, bins)
    total = np.bincount(place, weights, bins)
    sums = [np.bincount(place, weights * values, bins) for values in (confidence, is_right)]
    mean_confidence, share_right = (_divided(part, total, np.nan) for part in sums)
    return mean_confidence, share_right, total


def confidence_bins(y_true: Array, probabilities: Array, bins: int = BINS) -> tuple[Array, Weights, Array]:
    """Return of each sample its bin of confidence, its confidence, and whether its likeliest class is its label."""
    predicted = probabilities.argmax(axis=1)
    confidence = probabilities[np.arange(len(y_true)), predicted].astype(np.float64)
    place = np.searchsorted(np.linspace(0, 1, bins + 1)[1:-1], confidence, side="left")
    return place, confidence, predicted == y_true


def auc(y_true: Array, scores: Array, sample_weight: Array | None = None, positive: int | None = None) -> float:
    """Return the probability that a sample of the class scores above one of another class, ties counting one half.

    With more than two classes it is the mean over classes, one against the rest, and undefined if a class is absent.
    """
    return _one_against_rest(_binary_auc, y_true, scores, sample_weight, positive)


def average_precision(
    y_true: Array, scores: Array, sample_weight: Array | None = None, positive: int | None = None
) -> float:
    """Return the mean precision over thresholds, each weighted by the recall that it adds."""
    return _one_against_rest(_binary_average_precision, y_true, scores, sample_weight, positive)


def rmse(y_true: Array, y_pred: Array, sample_weight: Array | None = None) -> float:
    """Return the root of the mean squared error."""
    return float(np.sqrt(_mean((np.asarray(y_true, np.float64) - y_pred) ** 2, _weights(y_true, sample_weight))))


def mae(y_true: Array, y_pred: Array, sample_weight: Array | None = None) -> float:
    """Return the mean absolute error."""
    return _mean(abs(np.asarray(y_true, np.float64) - y_pred), _weights(y_true, sample_weight))


def r2(y_true: Array, y_pred: Array, sample_weight: Array | None = None) -> float:
    """Return 1 - squared error / variance of the labels; undefined if all labels are equal."""
    weights, y = _weights(y_true, sample_weight), np.asarray(y_true, np.float64)
    if len(np.unique(y[weights > 0])) < 2:
        return np.nan
    return 1 - _mean((y - y_pred) ** 2, weights) / _mean((y - _mean(y, weights)) ** 2, weights)


def c_index(y_true: Array, risk: Array, sample_weight: Array | None = None) -> float:
    """Return Harrell's C: the share of comparable pairs in which the sample with the earlier event has the higher risk.

    `y_true` has the columns time and event (1: observed, 0: censored). A pair is comparable if the earlier time is an event,
    or if times are equal and exactly one is an event (which then counts as the earlier). Equal risks count one half.
    """
    weights = _weights(y_true, sample_weight)
    time, event = y_true[:, 0], y_true[:, 1] > 0
    right = total = 0.0
    for k in np.flatnonzero(event):
        later = (time > time[k]) | ((time == time[k]) & ~event)
        pairs = weights[k] * weights[later]
        total += pairs.sum()
        right += (pairs * ((risk[k] > risk[later]) + 0.5 * (risk[k] == risk[later]))).sum()
    return float(right / total) if total > 0 else np.nan


def _weights(y_true: Array, sample_weight: Array | None) -> Weights:
    return np.ones(len(y_true)) if sample_weight is None else np.asarray(sample_weight, np.float64)


def _mean(values: Array, weights: Weights) -> float:
    total = weights.sum()
    return float((weights * values).sum() / total) if total > 0 else np.nan


def _divided(part: Weights, whole: Weights, otherwise: float) -> Weights:
    shares: Weights = np.divide(part, whole, out=np.full(len(whole), otherwise), where=whole > 0)
    return shares


def _class_sums(y_true: Array, y_pred: Array, sample_weight: Array | None) -> tuple[Weights, Weights, Weights]:
    """Return the weight of samples of each class that are found, predicted and labelled; a class below 0 is no class."""
    weights = _weights(y_true, sample_weight)
    classes = int(max(y_true.max(initial=0), y_pred.max(initial=0))) + 1
    known, right = y_pred >= 0, y_pred == y_true
    found = np.bincount(y_true[right], weights[right], classes)
    return found, np.bincount(y_pred[known], weights[known], classes), np.bincount(y_true, weights, classes)


def _of_classes(part: Weights, whole: Weights, seen: Weights, samples: Weights, positive: int | None) -> float:
    """Return part / whole of the positive class, undefined without a sample of it, or the mean over the classes seen."""
    shares = _divided(part, whole, 0.0)
    if positive is None:
        return float(shares[seen > 0].mean()) if samples.any() else np.nan
    return float(shares[positive]) if positive < len(samples) and samples[positive] > 0 else np.nan


def _one_against_rest(
    score: Any, y_true: Array, scores: Array, sample_weight: Array | None, positive: int | None
) -> float:
    """Apply a binary metric to the positive class, or to every class in turn and take the mean."""
    weights = _weights(y_true, sample_weight)
    if scores.ndim == 1:
        return float(score(y_true == (1 if positive is None else positive), scores, weights))
    if positive is None and scores.shape[1] == 2:
        positive = 1
    if positive is not None:
        return float(score(y_true == positive, scores[:, positive], weights))
    present = np.bincount(y_true, weights, scores.shape[1]) > 0
    if not present.all():
        return np.nan
    return float(np.mean([score(y_true == k, scores[:, k], weights) for k in range(scores.shape[1])]))


def _tied(is_positive: Array, scores: Array, weights: Weights) -> tuple[Weights, Weights]:
    """Return the weight of positive and of other samples at each distinct score, in ascending order of scores."""
    order = np.argsort(scores, kind="stable")
    ranked = scores[order]
    start = np.flatnonzero(np.concatenate([[True], ranked[1:] != ranked[:-1]]))
    yes = np.where(is_positive, weights, 0.0)[order]
    return np.add.reduceat(yes, start), np.add.reduceat(weights[order] - yes, start)


def _binary_auc(is_positive: Array, scores: Array, weights: Weights) -> float:
    if not len(scores):
        return np.nan
    yes, no = _tied(is_positive, scores, weights)
    pairs = yes.sum() * no.sum()
    return float((yes * (np.cumsum(no) - no / 2)).sum() / pairs) if pairs > 0 else np.nan


def _binary_average_precision(is_positive: Array, scores: Array, weights: Weights) -> float:
    if not len(scores):
        return np.nan
    yes, no = (part[::-1] for part in _tied(is_positive, scores, weights))
    found, above = np.cumsum(yes), np.cumsum(yes + no)
    precisions = np.divide(found, above, out=np.zeros(len(above)), where=above > 0)
    return float((yes * precisions).sum() / found[-1]) if found[-1] > 0 else np.nan
