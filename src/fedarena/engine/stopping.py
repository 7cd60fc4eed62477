"""The stop rule: budget, target and patience decide when a run ends."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from fedarena.algorithms.base import Algorithm
from fedarena.config.experiment import Experiment
from fedarena.engine.record import RoundRecord
from fedarena.statistics.metric_registry import Metric, default_metric


def participants(experiment: Experiment, population: int) -> int:
    """Return m = max(floor(C K), 1), or `per_round` where the experiment gives it."""
    if experiment.per_round is not None:
        return min(experiment.per_round, population)
    return max(math.floor((experiment.share or 1.0) * population + 1e-9), 1)


METRICS = (
    "accuracy", "loss", "metric", "weighted_accuracy", "client_std", "client_worst", "epsilon", "record_epsilon",
    "validation",
)  # fmt: skip


class StopRule:
    """Follows the records of a run and decides when it ends."""

    def __init__(self, experiment: Experiment, algorithm: Algorithm, cohort: int, metric: Metric | None = None) -> None:
        self.experiment, self.algorithm = experiment, algorithm
        self.metric = metric or default_metric("classification")
        self.nominal_rounds = algorithm.own_rounds or experiment.rounds or math.ceil((experiment.uploads or 1) / cohort)
        self._best: float | None = None  # value of the metric
        self._followed: float | None = None  # best value of the metric that decides when to stop
        self._best_accuracy: float | None = None  # in the same round
        self._stale = 0
        self._target_at: int | None = None
        self._uploads = self._last_round = 0  # so far, and in the last round seen

    def best(self, record: RoundRecord) -> float | None:
        """Return the accuracy of the best round so far, this one included."""
        return record.accuracy if self._is_best(record) else self._best_accuracy

    def without_early_evaluation(self, record: RoundRecord) -> RoundRecord:
        """Return a past record as a run with the present budget has it.

        The last round of a smaller budget was evaluated because it was the last one.
        """
        every = self.experiment.evaluate.every
        due = record.round % every == 0 or self.is_finished(record.round, record.uploads)
        if record.accuracy is None or due:
            return record
        unseen: dict[str, Any] = dict.fromkeys(METRICS)
        return replace(record, best_accuracy=self.best(replace(record, accuracy=None, metric=None)), **unseen)

    def _value(self, record: RoundRecord) -> float | None:
        return record.value_of(self.metric.name)

    def _is_best(self, record: RoundRecord) -> bool:
        value = self._value(record)
        return value is not None and (self._best is None or self.metric.better(value, self._best))

    def update(self, record: RoundRecord) -> None:
        """Take the record of the next round into account."""
        self._last_round, self._uploads = record.uploads - self._uploads, record.uploads
        value = self._value(record)
        if value is None:
            return
        if self._is_best(record):
            self._best, self._best_accuracy = value, record.accuracy
        # Validation samples decide when to stop, where there are any.
        deciding = record.validation if self.experiment.evaluate.validation else value
        if deciding is None:
            return
        if self._followed is None or self.metric.better(deciding, self._followed):
            self._stale, self._followed = 0, deciding
        else:
            self._stale += 1
        target = self.experiment.evaluate.target
        if self._target_at is None and target is not None and self.metric.reaches(deciding, target):
            self._target_at = record.round

    def is_finished(self, done: int, uploads: int) -> bool:
        """Return whether the budget is spent, the target is reached or the patience is exhausted."""
        settings = self.experiment.evaluate
        reached = self._target_at
        if settings.stop_at_target and reached is not None and done >= reached + settings.after_target:
            return True
        if settings.patience is not None and self._stale >= settings.patience:
            return True
        if self.experiment.uploads is None or not self.algorithm.communicates or self.algorithm.own_rounds:
            return done >= self.nominal_rounds
        # A round does not start if another one like the last would exceed the budget: algorithms that send more in a
        # round must not be judged by what they reach later. A run whose clients hardly ever answer never spends it.
        like_the_last = uploads - self._uploads or self._last_round
        spent = uploads + like_the_last > self.experiment.uploads or uploads >= self.experiment.uploads
        return (done > 0 and spent) or done >= 100 * self.nominal_rounds
