"""The score by which runs are compared: a metric of one round, on common or on clients' own test samples."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import get_args

import numpy as np

from fedarena.config.comparison_plan import Score, View
from fedarena.config.errors import BadValue
from fedarena.engine.record import RoundRecord
from fedarena.engine.task_metrics import FinalMetrics, lost_by_divergence
from fedarena.engine.validated_round import ValidatedRound
from fedarena.results.run import Run
from fedarena.statistics.metric_registry import OPTIMISTIC, Metric, all_metrics

SCORES: tuple[Score, ...] = get_args(Score)
VIEWS: tuple[View, ...] = get_args(View)
VIEW_NAMES = {
    "common": "on the common test samples",
    "own": "on clients' own test samples, weighted by samples",
    "own:uniform": "on clients' own test samples, every client alike",
}
VALIDATED = "chosen on training samples that are held out of training"


@dataclass(frozen=True)
class Scoring:
    """How a run becomes one score. Numbers of two views are never compared with each other."""

    score: Score = "final"
    metric: str = "accuracy"
    evaluate_on: View = "common"

    def check(self) -> None:
        """Raise if the score is undefined: the best round is chosen on common samples."""
        if self.score == "best" and self.evaluate_on != "common":
            raise BadValue(
                "the best round is chosen on the common test samples, and the scores are on clients' own test samples",
                remedy="use --score final, or --evaluate-on common",
                where="--score",
            )

    @property
    def known(self) -> Metric:
        """The metric with its direction and rope."""
        return all_metrics()[self.metric]

    @property
    def sign(self) -> int:
        """1 where larger is better, else -1."""
        return 1 if self.known.maximize else -1

    @property
    def is_share(self) -> bool:
        """Whether values are shares of 1, which are shown in percent."""
        return self.known.bounds == (0.0, 1.0)

    @property
    def name(self) -> str:
        """The name of the score in a sentence: final accuracy on the common test samples."""
        return f"{self.score} {self.metric} {VIEW_NAMES[self.evaluate_on]}"

    @property
    def labelled(self) -> str:
        """The name of the score, with a warning where its round is chosen on test samples."""
        return f"{self.name} ({OPTIMISTIC})" if self.score == "best" else self.name

    def value(self, run: Run) -> float:
        """Return the score of a run; NaN where its metric is undefined."""
        measured = self.measured(run)
        if self.evaluate_on == "own":
            return float(measured.own.get(self.metric, math.nan))
        if self.evaluate_on == "own:uniform":
            values = measured.clients.get(self.metric, np.empty(0))
            known = values[~np.isnan(values)]
            is_defined = len(known) and not lost_by_divergence(measured.clients, self.metric)
            return float(known.mean()) if is_defined else math.nan
        record = self.record(run)
        if measured.own and not measured.common:  # no complete model that could be tested on common samples
            return math.nan
        if self.metric == "accuracy":
            return float(record.accuracy or 0.0)
        if self.score != "best" and self.metric in measured.common:
            return float(measured.common[self.metric])
        return math.nan if record.metric is None or run.measured.metric != self.metric else float(record.metric)

    @property
    def explained(self) -> str:
        """The name of the score, and how its round is chosen where that is not the last one."""
        how = {"best": OPTIMISTIC, "validated": VALIDATED}.get(self.score)
        return self.name if how is None else f"{self.name} ({how})"

    def record(self, run: Run) -> RoundRecord:
        """Return the round of a run that counts."""
        if self.score == "validated":
            return run.records[_chosen(run).round - 1]
        return run.final if self.score == "final" else run.best

    def measured(self, run: Run) -> FinalMetrics:
        """Return all metrics of the validated round if that counts, else of the last one."""
        return _chosen(run).measured if self.score == "validated" else run.measured

    def is_diverged(self, run: Run) -> bool:
        """Return whether the model of the round that counts went to infinity."""
        if self.score != "validated":
            return run.diverged
        return not math.isfinite(self.record(run).loss or 0.0)

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
        """The unit of differences on the axis of a chart: percentage points, or the metric itself."""
        return "percentage points" if self.is_share else self.metric

    @property
    def scale(self) -> float:
        """The factor from differences to numbers on an axis: 100 for percentage points, else 1."""
        return 100.0 if self.is_share else 1.0

    def signed(self, difference: float, *, unit: bool = False) -> str:
        """Return a difference with its sign, in percentage points or in the units of the metric.

        >>> Scoring().signed(-0.0123), Scoring(metric="log_loss").signed(0.0123, unit=True)
        ('\N{MINUS SIGN}1.2', '+0.0123')
        """
        text = f"{100 * difference:+.1f}" if self.is_share else f"{difference:+.3g}"
        return text.replace("-", "\N{MINUS SIGN}") + (" points" if unit and self.is_share else "")


def _chosen(run: Run) -> ValidatedRound:
    """Return the round that validation samples chose."""
    if run.chosen is None:
        raise BadValue(
            "this run held out no validation samples, so that no round of it was chosen on them",
            remedy="run it with evaluate.validation = 0.1, or score the final round",
            where="--score",
        )
    return run.chosen
