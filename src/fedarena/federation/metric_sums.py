"""Sums over test samples from which the metrics of a classification follow, as exact integers that clients can mask.

Of each client: the confusion matrix (with a column for outputs that are not finite), the sums of log loss and Brier score,
and of each bin of confidence the number of samples, of right ones, and the sum of their confidence. Where the agreement has
score histograms: of each class the number of its samples, and of others, in each bin of its probability. Added up over
clients they give what one table of all test samples gives; of the AUC and the average precision they give an interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from fedarena.engine.task_metrics import Predictions
from fedarena.statistics.exact_sums import POINT, exact_sum
from fedarena.statistics.metric_registry import Metric, all_metrics
from fedarena.statistics.metrics import BINS, brier_scores, confidence_bins, log_losses
from fedarena.statistics.score_histograms import (
    UNDEFINED,
    Counts,
    Interval,
    auc_interval,
    average_precision_interval,
    histogram,
    mean_interval,
)

BY_CLASS = ("balanced_accuracy", "f1", "precision", "recall")  # follow from the confusion matrix
BY_SUM = ("log_loss", "brier", "ece")
BY_ORDER = {"auc": auc_interval, "average_precision": average_precision_interval}  # need the order of all scores

Values = dict[str, float]


@dataclass(frozen=True)
class MetricLayout:
    """The integers that a client sends, in their order; the server and every client derive it from what was agreed."""

    classes: int
    bins: int = 0  # of score histograms; 0: none
    positive: int | None = None  # of two classes: its histogram alone, because the other one mirrors it

    @property
    def scored(self) -> tuple[int, ...]:
        """Return the classes whose scores have histograms."""
        if not self.bins:
            return ()
        return tuple(range(self.classes)) if self.positive is None else (self.positive,)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Return how many integers each part has."""
        return (self.classes * (self.classes + 1), 2, BINS, BINS, BINS, len(self.scored) * 2 * self.bins)

    @property
    def size(self) -> int:
        """Return how many integers there are."""
        return sum(self.sizes)


@dataclass(frozen=True)
class MetricSums:
    """The sums of one client, or of all of them together."""

    layout: MetricLayout
    confusion: Counts  # labels in rows, predicted classes in columns; the last column: output not finite
    losses: tuple[int, int]  # of log loss and Brier score, times 2**1074
    samples: Counts  # in each bin of confidence
    right: Counts
    confidence: tuple[int, ...]  # times 2**1074
    histograms: Counts  # of each scored class: its samples, and others, in each bin

    @classmethod
    def of(cls, predictions: Predictions, layout: MetricLayout) -> MetricSums:
        """Add up the predictions for the samples of one client; outputs that are not finite are counted alone."""
        labels, predicted = predictions.labels, predictions.predicted
        known, columns = predicted >= 0, layout.classes + 1
        places = labels * columns + np.where(known, predicted, layout.classes)
        confusion = np.bincount(places, minlength=layout.classes * columns).reshape(-1, columns)
        y = labels[known]
        p = np.empty((0, layout.classes)) if predictions.probabilities is None else predictions.probabilities[known]
        place, confidence, is_right = confidence_bins(y, p)
        found = [histogram(y == k, p[:, k], layout.bins) for k in layout.scored]
        return cls(
            layout,
            confusion,
            (exact_sum(log_losses(y, p)), exact_sum(brier_scores(y, p))),
            np.bincount(place, minlength=BINS),
            np.bincount(place[is_right], minlength=BINS),
            tuple(exact_sum(confidence[place == k]) for k in range(BINS)),
            np.array(found, np.int64).reshape(len(found), 2, layout.bins),
        )

    @classmethod
    def from_integers(cls, integers: Sequence[int], layout: MetricLayout) -> MetricSums:
        """Take the integers apart, in the order of the layout; raise ValueError if a count is larger than any table."""
        bounds = np.cumsum([0, *layout.sizes]).tolist()
        parts = (integers[a:b] for a, b in pairwise(bounds))
        confusion, losses, samples, right, confidence, histograms = parts
        if any(abs(count) >= 2**53 for count in (*confusion, *samples, *right, *histograms)):
            raise ValueError("a count is larger than any table")
        return cls(
            layout,
            np.array(confusion, np.int64).reshape(layout.classes, layout.classes + 1),
            (losses[0], losses[1]),
            np.array(samples, np.int64),
            np.array(right, np.int64),
            tuple(confidence),
            np.array(histograms, np.int64).reshape(len(layout.scored), 2, layout.bins),
        )

    @property
    def integers(self) -> tuple[int, ...]:
        """Return all of them in the order of the layout."""
        counts = (self.confusion, self.samples, self.right, self.histograms)
        confusion, samples, right, histograms = (part.ravel().tolist() for part in counts)
        return (*confusion, *self.losses, *samples, *right, *self.confidence, *histograms)

    def values(self) -> Values:
        """Return the metrics that are sums, and of score histograms those of tied bins."""
        found = {name: self._by_class(all_metrics()[name]) for name in BY_CLASS}
        found |= {name: self._by_sum(name) for name in BY_SUM}
        return found | {name: interval.value for name, interval in self.intervals().items()}

    def intervals(self) -> dict[str, Interval]:
        """Return AUC and average precision from score histograms, with the least and the largest possible value."""
        if not self.layout.bins:
            return {}
        if self.diverged:
            values = {name: float(all_metrics()[name].diverged or 0.0) for name in BY_ORDER}
            return {name: Interval(value, value, value) for name, value in values.items()}
        if self.layout.positive is None and not self.confusion.sum(axis=1).all():  # a class is absent
            return dict.fromkeys(BY_ORDER, UNDEFINED)
        return {name: mean_interval([of(one) for one in self.histograms]) for name, of in BY_ORDER.items()}

    @property
    def diverged(self) -> bool:
        """Return whether the output for some sample is not finite."""
        return bool(self.confusion[:, -1].any())

    @property
    def matrix(self) -> Counts:
        """Return the confusion matrix without outputs that are not finite."""
        return self.confusion[:, :-1].copy()

    @property
    def calibration(self) -> tuple[dict[str, float], ...] | None:
        """Return confidence, accuracy and number of samples of every bin that has samples."""
        if self.diverged:
            return None
        return tuple(
            {
                "confidence": self.confidence[k] / (int(self.samples[k]) << POINT),
                "accuracy": int(self.right[k]) / int(self.samples[k]),
                "samples": float(self.samples[k]),
            }
            for k in np.flatnonzero(self.samples)
        )

    def implausible(self, samples: int) -> str:
        """Return what cannot be true of so many test samples, or an empty text."""
        finite = int(self.confusion[:, :-1].sum())
        if self.confusion.min() < 0 or self.confusion.sum() != samples:
            return "the confusion matrix is not that of the test samples"
        if self.samples.min() < 0 or self.samples.sum() != finite or (self.right > self.samples).any():
            return "the bins of confidence do not hold the test samples"
        if self.right.min() < 0 or not all(
            0 <= total <= int(count) << POINT for total, count in zip(self.confidence, self.samples, strict=True)
        ):
            return "a sum of confidences is not that of its samples"
        if min(self.losses) < 0 or self.losses[1] > 2 * finite << POINT or self.losses[0] > 40 * finite << POINT:
            return "a sum of losses is larger than its samples allow"
        of_class = self.confusion[:, :-1].sum(axis=1)
        for one, k in zip(self.histograms, self.layout.scored, strict=True):
            if one.min() < 0 or one[0].sum() != of_class[k] or one.sum() != finite:
                return "a score histogram does not hold the test samples"
        return ""

    def _by_class(self, metric: Metric) -> float:
        """Apply a metric of predicted classes to the cells of the confusion matrix, each with its count as weight."""
        assert metric.function is not None
        classes = np.arange(self.layout.classes)
        labels = np.repeat(classes, len(classes) + 1)
        predicted = np.tile(np.append(classes, -1), len(classes))
        extra = {"positive": self.layout.positive} if metric.takes_positive else {}
        return float(metric.function(labels, predicted, self.confusion.ravel(), **extra))

    def _by_sum(self, name: str) -> float:
        """Divide an exact sum by the number of samples, rounding once."""
        if self.diverged:
            known = all_metrics()[name].diverged
            return np.nan if known is None else known
        count = int(self.confusion.sum())
        if not count:
            return np.nan
        if name == "ece":
            parts = zip(self.confidence, self.right.tolist(), strict=True)
            gap: int = sum(abs(total - (right << POINT)) for total, right in parts)
            return gap / (count << POINT)
        return self.losses[name == "brier"] / (count << POINT)
