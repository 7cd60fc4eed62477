"""The number by which runs are compared: which round, which metric, on whose test samples."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedarena.errors import BadValue
from fedarena.results.run import Run
from fedarena.statistics.metric_registry import OPTIMISTIC as OPTIMISTIC
from fedarena.statistics.metric_registry import Metric, all_metrics

Score = Literal["final", "best"]
View = Literal["common", "own", "own:uniform"]
SCORES: tuple[Score, ...] = ("final", "best")
VIEWS: tuple[View, ...] = ("common", "own", "own:uniform")
VIEW_NAMES = {
    "common": "on the common test samples",
    "own": "on clients' own test samples, weighted by samples",
    "own:uniform": "on clients' own test samples, every client alike",
}


@dataclass(frozen=True)
class Scoring:
    """How a run becomes one score. Numbers of two views are never compared with each other."""

    score: Score = "final"
    metric: str = "accuracy"
    evaluate_on: View = "common"

    def check(self) -> None:
        """Refuse what has no value: the best round is chosen on common samples."""
        if self.score == "best" and self.evaluate_on != "common":
            raise BadValue(
                "the best round is chosen on the common test samples, and scores are to be those of clients' own",
                remedy="use --score final, or --evaluate-on common",
                where="--score",
            )

    @property
    def known(self) -> Metric:
        """Return the metric, with its direction and rope."""
        return all_metrics()[self.metric]

    @property
    def sign(self) -> int:
        """Return 1 where larger is better, else -1."""
        return 1 if self.known.maximize else -1

    @property
    def is_share(self) -> bool:
        """Return whether values are shares of 1, which are shown in percent."""
        return self.known.bounds == (0.0, 1.0)

    @property
    def name(self) -> str:
        """Return how the score is called in a sentence: final accuracy on the common test samples."""
        return f"{self.score} {self.metric} {VIEW_NAMES[self.evaluate_on]}"

    def value(self, run: Run) -> float:
        """Return the score of a run; NaN where its metric is undefined."""
        if self.evaluate_on == "own":
            return float(run.own_metrics.get(self.metric, math.nan))
        if self.evaluate_on == "own:uniform":
            values = run.client_metrics.get(self.metric, np.empty(0))
            known = values[~np.isnan(values)]
            return float(known.mean()) if len(known) else math.nan
        record = run.final if self.score == "final" else run.best
        if self.metric == "accuracy":
            return float(record.accuracy or 0.0)
        if self.score == "final" and self.metric in run.metrics:
            return float(run.metrics[self.metric])
        return math.nan if record.metric is None or run.measured.metric != self.metric else float(record.metric)

    def shown(self, value: float | None, digits: int = 1) -> str:
        """Return a value as it is read: 93.1 %, or a number with four significant digits."""
        if value is None or math.isnan(value):
            return "-"
        return f"{100 * value:.{digits}f}%" if self.is_share else f"{value:.4g}"

    def difference(self, value: float) -> str:
        """Return a difference as it is read: 1 point, or a number."""
        if not self.is_share:
            return f"{value:g}"
        return f"{100 * value:g} point{'s' * (value != 0.01)}"

    def loss(self, value: float) -> str:
        """Return an expected loss as it is read: 0.3 points, or a number."""
        if math.isinf(value):
            return "unknown with 2 splits"
        return f"{100 * value:.2f} points" if self.is_share else f"{value:.3g}"

    @property
    def unit(self) -> str:
        """Return the unit of differences, as the axis of a chart names it: percentage points, or the metric itself."""
        return "percentage points" if self.is_share else self.metric

    @property
    def scale(self) -> float:
        """Return the factor from differences to numbers on an axis: 100 for percentage points, else 1."""
        return 100.0 if self.is_share else 1.0

    def signed(self, difference: float, *, unit: bool = False) -> str:
        """Return a difference with its sign, in percentage points or in the units of the metric.

        >>> Scoring().signed(-0.0123), Scoring(metric="log_loss").signed(0.0123, unit=True)
        ('\N{MINUS SIGN}1.2', '+0.0123')
        """
        text = f"{100 * difference:+.1f}" if self.is_share else f"{difference:+.3g}"
        return text.replace("-", "\N{MINUS SIGN}") + (" points" if unit and self.is_share else "")
