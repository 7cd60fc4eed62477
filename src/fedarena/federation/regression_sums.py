"""Sums over test samples from which the metrics of a regression follow, as exact integers that clients can mask.

Of each client: the number of samples, of outputs that are not finite, the sums of absolute and squared errors, and the sum
and the sum of squares of the labels. Added up over clients they give what one table of all test samples gives.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import ClassVar

import numpy as np

from fedarena.engine.task_metrics import Predictions
from fedarena.statistics.exact_sums import POINT, SQUARE_POINT, exact_sum, exact_sum_of_squares
from fedarena.statistics.score_histograms import Interval

BY_ERROR = ("rmse", "mae", "r2")


@dataclass(frozen=True)
class RegressionLayout:
    """The integers that a client sends for a regression: always the same six."""

    size: int = 6


@dataclass(frozen=True)
class RegressionSums:
    """The sums of one client, or of all of them together."""

    samples: int
    lost: int  # outputs that are not finite
    absolute: int  # errors, times 2**1074
    squared: int  # errors, times 2**2148
    labels: int  # times 2**1074
    label_squares: int  # times 2**2148

    matrix: ClassVar[None] = None  # there are no classes
    calibration: ClassVar[None] = None

    @classmethod
    def of(cls, predictions: Predictions) -> RegressionSums:
        """Add up the predictions for the samples of one client."""
        labels = predictions.labels.astype(np.float64)
        errors = np.abs(labels - predictions.predicted)
        finite = errors <= 2.0**500  # false where an output is not finite
        return cls(
            len(labels),
            int((~finite).sum()),
            exact_sum(errors[finite]),
            exact_sum_of_squares(errors[finite]),
            exact_sum(labels),
            exact_sum_of_squares(labels),
        )

    @classmethod
    def from_integers(cls, integers: Sequence[int]) -> RegressionSums:
        """Return the sums that these integers encode."""
        return cls(*integers)

    @property
    def integers(self) -> tuple[int, ...]:
        """Return all of them in order."""
        return astuple(self)

    def values(self) -> dict[str, float]:
        """Return the metrics, rounded once from exact sums; NaN where an output is not finite."""
        n, spread = self.samples, self.samples * self.label_squares - self.labels**2
        if self.lost or not n:
            return dict.fromkeys(BY_ERROR, math.nan)
        return {
            "rmse": math.sqrt(self.squared / (n << SQUARE_POINT)),
            "mae": self.absolute / (n << POINT),
            "r2": 1 - n * self.squared / spread if spread else math.nan,
        }

    def intervals(self) -> dict[str, Interval]:
        """Return nothing: no metric of a regression is known only up to an interval."""
        return {}

    def implausible(self, samples: int) -> str:
        """Return what cannot be true of so many test samples, or an empty text."""
        finite = self.samples - self.lost
        if self.samples != samples or not 0 <= self.lost <= samples:
            return "they are not over the test samples"
        if min(self.absolute, self.squared) < 0 or finite * self.squared < self.absolute**2:
            return "a sum of squared errors is too small for the sum of errors"
        if samples * self.label_squares < self.labels**2:
            return "a sum of squared labels is too small for the sum of labels"
        return ""
