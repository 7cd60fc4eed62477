"""When is it enough? Budget, target, patience."""

from __future__ import annotations

import math

from fedarena.algorithms.base import Algorithm
from fedarena.engine.record import RoundRecord
from fedarena.spec import Experiment


def participants(experiment: Experiment, population: int) -> int:
    """m = max(floor(C K), 1), or the count that was asked for."""
    if experiment.per_round is not None:
        return min(experiment.per_round, population)
    return max(math.floor((experiment.share or 1.0) * population + 1e-9), 1)


class StopRule:
    """Sees every record and says when to stop."""

    def __init__(self, experiment: Experiment, algorithm: Algorithm, cohort: int) -> None:
        self.experiment, self.algorithm = experiment, algorithm
        self.nominal_rounds = experiment.rounds or math.ceil((experiment.uploads or 1) / cohort)
        self._best: float | None = None
        self._stale = 0
        self._target_at: int | None = None
        self._uploads = self._last_round = 0  # so far, and in the last round seen

    def best(self, record: RoundRecord) -> float | None:
        """The best accuracy including this record."""
        known = [a for a in (self._best, record.accuracy) if a is not None]
        return max(known) if known else None

    def see(self, record: RoundRecord) -> None:
        """Take a round into account."""
        self._last_round, self._uploads = record.uploads - self._uploads, record.uploads
        if record.accuracy is None:
            return
        self._stale = 0 if self._best is None or record.accuracy > self._best else self._stale + 1
        self._best = self.best(record)
        target = self.experiment.evaluate.target
        if self._target_at is None and target is not None and record.accuracy >= target:
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
