"""When is it enough? Budget, target, patience."""

from __future__ import annotations

import math

from fedarena.algorithms.base import Algorithm
from fedarena.config.experiment import Experiment
from fedarena.engine.record import RoundRecord
from fedarena.statistics.metric_registry import Metric, default_metric


def participants(experiment: Experiment, population: int) -> int:
    """m = max(floor(C K), 1), or the count that was asked for."""
    if experiment.per_round is not None:
        return min(experiment.per_round, population)
    return max(math.floor((experiment.share or 1.0) * population + 1e-9), 1)


class StopRule:
    """Sees every record and says when to stop."""

    def __init__(self, experiment: Experiment, algorithm: Algorithm, cohort: int, metric: Metric | None = None) -> None:
        self.experiment, self.algorithm = experiment, algorithm
        self.metric = metric or default_metric("classification")
        self.nominal_rounds = experiment.rounds or math.ceil((experiment.uploads or 1) / cohort)
        self._best: float | None = None  # value of the metric
        self._followed: float | None = None  # the best value by which it is decided when to stop
        self._best_accuracy: float | None = None  # in the same round
        self._stale = 0
        self._target_at: int | None = None
        self._uploads = self._last_round = 0  # so far, and in the last round seen

    def best(self, record: RoundRecord) -> float | None:
        """Return the accuracy of the best round so far, this one included."""
        return record.accuracy if self._is_best(record) else self._best_accuracy

    def _value(self, record: RoundRecord) -> float | None:
        return record.value_of(self.metric.name)

    def _deciding(self, record: RoundRecord) -> float | None:
        """Return the value by which it is decided when to stop: on validation samples, where there are any."""
        return record.validation if self.experiment.evaluate.validation else self._value(record)

    def _is_best(self, record: RoundRecord) -> bool:
        value = self._value(record)
        return value is not None and (self._best is None or self.metric.better(value, self._best))

    def see(self, record: RoundRecord) -> None:
        """Take a round into account."""
        self._last_round, self._uploads = record.uploads - self._uploads, record.uploads
        value = self._value(record)
        if value is None:
            return
        if self._is_best(record):
            self._best, self._best_accuracy = value, record.accuracy
        deciding = self._deciding(record)
        if deciding is None:
            return
        if self._followed is None or self.metric.better(deciding, self._followed):
            self._stale, self._followed = 0, deciding
        else:
            self._stale += 1
        target = self.experiment.evaluate.target
        if self._target_at is None and target is not None and self.metric.reaches(deciding, target):
            self._target_at = record.round

    def over(self, done: int, uploads: int) -> bool:
        """Is the budget spent or the goal reached?"""
        wish = self.experiment.evaluate
        if wish.stop_at_target and self._target_at is not None and done >= self._target_at + wish.after_target:
            return True
        if wish.patience is not None and self._stale >= wish.patience:
            return True
        if self.experiment.uploads is None or not self.algorithm.communicates:
            return done >= self.nominal_rounds
        # A round is not begun if another like the last would go beyond the budget: algorithms that send more in a round
        # must not be judged by what they reach later. One whose clients hardly ever answer would never spend it.
        like_the_last = uploads - self._uploads or self._last_round
        spent = uploads + like_the_last > self.experiment.uploads or uploads >= self.experiment.uploads
        return (done > 0 and spent) or done >= 100 * self.nominal_rounds
