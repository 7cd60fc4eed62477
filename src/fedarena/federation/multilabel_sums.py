"""Sums over test samples from which the metrics of several labels follow: of each label those of two classes.

A metric is the mean over labels, without labels that leave it undefined because all test samples have the same value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedarena.engine.task_metrics import Predictions
from fedarena.federation.metric_sums import MetricLayout, MetricSums, Values
from fedarena.statistics.score_histograms import Interval


@dataclass(frozen=True)
class MultilabelLayout:
    """Which integers a client sends: those of each label, one label after the other."""

    labels: int
    bins: int = 0  # of score histograms; 0: none

    @property
    def each(self) -> MetricLayout:
        """Return the layout of one label."""
        return MetricLayout(2, self.bins, positive=1)

    @property
    def size(self) -> int:
        """Return how many integers there are."""
        return self.labels * self.each.size


@dataclass(frozen=True)
class MultilabelSums:
    """The sums of one client, or of all of them together."""

    each: tuple[MetricSums, ...]  # of the labels

    matrix: ClassVar[None] = None  # a sample has no single class
    calibration: ClassVar[None] = None

    @classmethod
    def of(cls, predictions: Predictions, layout: MultilabelLayout) -> MultilabelSums:
        """Add up the predictions for the samples of one client."""
        y, predicted, p = predictions.labels.astype(np.int64), predictions.predicted, predictions.probabilities
        if p is None:
            p = np.zeros(y.shape)
        parts = (
            Predictions(y[:, k], predicted[:, k], np.column_stack([1 - p[:, k], p[:, k]]), predictions.scores)
            for k in range(layout.labels)
        )
        return cls(tuple(MetricSums.of(part, layout.each) for part in parts))

    @classmethod
    def from_integers(cls, integers: Sequence[int], layout: MultilabelLayout) -> MultilabelSums:
        """Take the integers apart; raise ValueError if a count is larger than any table."""
        size = layout.each.size
        parts = (integers[k * size : (k + 1) * size] for k in range(layout.labels))
        return cls(tuple(MetricSums.from_integers(part, layout.each) for part in parts))

    @property
    def integers(self) -> tuple[int, ...]:
        """Return all of them, one label after the other."""
        return tuple(integer for one in self.each for integer in one.integers)

    def values(self) -> Values:
        """Return the mean of each metric over labels."""
        found = [one.values() for one in self.each]
        return {name: _mean([values[name] for values in found]) for name in found[0]}

    def intervals(self) -> dict[str, Interval]:
        """Return AUC and average precision from score histograms: the means over labels of value and bounds."""
        found = [one.intervals() for one in self.each]
        part: Callable[[str, int], float] = lambda name, i: _mean([intervals[name][i] for intervals in found])
        return {name: Interval(part(name, 0), part(name, 1), part(name, 2)) for name in found[0]}

    def implausible(self, samples: int) -> str:
        """Return what cannot be true of so many test samples, or an empty text."""
        problems = ((k, one.implausible(samples)) for k, one in enumerate(self.each))
        return next((f"of label {k + 1}, {problem}" for k, problem in problems if problem), "")


def _mean(values: list[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return math.fsum(known) / len(known) if known else math.nan
