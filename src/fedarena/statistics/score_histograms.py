"""AUC and average precision from histograms of scores, each with the interval in which the value of the scores lies.

A histogram counts samples in equal bins of a probability. Samples of different bins are ordered as their scores are; samples
of one bin are not. So the AUC is known up to half the mass of the pairs of samples that share a bin, and the average
precision up to the order of samples within bins.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedarena.statistics.metrics import Array, auc, average_precision

Counts = NDArray[np.int64]


class Interval(NamedTuple):
    """The value of a metric with all samples of a bin tied, and the least and the largest value that scores can have."""

    value: float
    low: float
    high: float


UNDEFINED = Interval(np.nan, np.nan, np.nan)


def histogram(is_positive: Array, scores: Array, bins: int) -> Counts:
    """Count positive samples (first row) and others (second row) in each bin [k / bins, (k + 1) / bins) of the score.

    >>> histogram(np.array([True, False, True]), np.array([0.9, 0.1, 1.0]), 2).tolist()
    [[0, 2], [1, 0]]
    """
    place = np.minimum((np.asarray(scores, np.float64) * bins).astype(np.int64), bins - 1)
    return np.stack([np.bincount(place[chosen], minlength=bins) for chosen in (is_positive, ~is_positive)])


def auc_interval(counts: Counts) -> Interval:
    """Return the AUC: pairs of different bins are ordered, and a pair that shares a bin is wrong by at most one half.

    >>> auc_interval(np.array([[0, 1, 3], [3, 1, 0]]))
    Interval(value=0.96875, low=0.9375, high=1.0)
    """
    positive, other = counts
    value = _tied(auc, counts)
    pairs = float(positive.sum()) * float(other.sum())
    if not pairs:
        return UNDEFINED
    error = float((positive.astype(np.float64) * other).sum()) / pairs / 2
    return Interval(value, max(0.0, value - error), min(1.0, value + error))


def average_precision_interval(counts: Counts) -> Interval:
    """Return the average precision: least with the others of a bin first, largest with its positive samples first, tied.

    >>> average_precision_interval(np.array([[0, 2], [1, 1]]))
    Interval(value=0.6666666666666666, low=0.5833333333333333, high=1.0)
    """
    positive, other = (part[::-1].astype(np.float64) for part in counts)  # the highest scores first
    total = positive.sum()
    if not total:
        return UNDEFINED
    found, above = np.cumsum(positive) - positive, np.cumsum(positive + other) - positive - other  # in higher bins
    low = high = 0.0
    for k in np.flatnonzero(positive):
        each = np.arange(1, positive[k] + 1)
        low += float(((found[k] + each) / (above[k] + other[k] + each)).sum())
        high += float(positive[k] * (found[k] + positive[k]) / (above[k] + positive[k]))
    return Interval(_tied(average_precision, counts), low / float(total), high / float(total))


def mean_interval(intervals: list[Interval]) -> Interval:
    """Return the mean over classes; undefined where one of them is."""
    return Interval(*(float(np.mean(part)) for part in zip(*intervals, strict=True)))


def _tied(metric: Callable[..., float], counts: Counts) -> float:
    """Apply a metric of scores to bins as scores, each bin with its counts as weights."""
    bins = np.arange(counts.shape[1])
    labels = np.repeat([1, 0], len(bins))
    return float(metric(labels, np.tile(bins, 2), counts.ravel()))
