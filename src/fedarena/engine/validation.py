"""Validation: evaluate every model on held-out training samples, and remember the best round with its test metrics."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from fedarena.engine.client import Broadcast
from fedarena.engine.context import EVALUATION_ROWS, ExperimentContext
from fedarena.engine.evaluation import ClientStates, Evaluator, LocalEvaluator, accuracy
from fedarena.engine.evaluation_tasks import EvaluationTask
from fedarena.engine.personal_model import PersonalTask
from fedarena.engine.record import RoundRecord
from fedarena.engine.task_metrics import FinalMetrics
from fedarena.engine.tasks import RuntimeTask
from fedarena.engine.validated_round import ValidatedRound
from fedarena.models.task import Scores

UNDEFINED = "no round has a defined value of {metric} on the validation samples, so the last round counts as validated"


class Validation:
    """The validation samples of an experiment, and the best round on them so far; the first of several equal ones."""

    def __init__(self, context: ExperimentContext, evaluation: LocalEvaluator) -> None:
        self.context, self.evaluation = context, evaluation
        self.metric, self.rows = context.metric, context.owners.validation
        self.owners = [k for k, rows in enumerate(self.rows) if len(rows) and k not in context.attackers]
        self.candidates: tuple[ValidatedRound, ...] = ()  # as `ValidatedSnapshot` explains them

    @property
    def best(self) -> ValidatedRound | None:
        """Return the best round so far; None if none has a defined value."""
        return self.candidates[-1] if self.candidates else None

    def value(self, message: Broadcast, states: ClientStates) -> float:
        """Return the metric over the validation samples of all clients, each predicted by the model of its client."""
        keep = self.evaluation.scoring.keep([self.metric])
        rows = np.concatenate([self.rows[k] for k in self.owners])
        noisy, personal = self.context.owners.noise is not None, self.context.has_personal_models
        jobs: Iterable[RuntimeTask]
        if personal:
            jobs = (PersonalTask(k, states(k), self.rows[k], noisy, keep, validates=True) for k in self.owners)
        elif noisy:
            jobs = (EvaluationTask(self.rows[k], k, keep=keep, validates=True) for k in self.owners)
        else:
            pieces = (rows[start : start + EVALUATION_ROWS] for start in range(0, len(rows), EVALUATION_ROWS))
            jobs = (EvaluationTask(piece, keep=keep, validates=True) for piece in pieces)
        scores = Scores.joined(list(self.evaluation.scores(jobs, message)))
        predictions = self.evaluation.scoring.predictions(rows, scores)
        found = self.evaluation.values([self.metric], predictions, accuracy(scores), strict=True)
        return found[self.metric.name]

    def is_best(self, value: float) -> bool:
        """Return whether a round with this value is better than all before it; an undefined value never is."""
        return not math.isnan(value) and (self.best is None or self.metric.better(value, self.best.value))

    def choose(self, round: int, value: float, measured: FinalMetrics, is_due: bool) -> None:
        """Remember a round that is the best so far; `is_due` says that a run with any budget evaluates it."""
        chosen = ValidatedRound(round, value, measured)
        self.candidates = (chosen,) if is_due else (*self.candidates[:1], chosen)

    def resume(self, candidates: Sequence[ValidatedRound], records: Sequence[RoundRecord]) -> None:
        """Continue with the candidates of a snapshot whose rounds count as evaluated under the present budget."""
        evaluated = {record.round for record in records if record.validation is not None}
        self.candidates = tuple(one for one in candidates if one.round in evaluated)

    def result(self, records: Sequence[RoundRecord], measured: FinalMetrics) -> ValidatedRound:
        """Return the chosen round of a finished run; the last one where the metric is undefined in every round."""
        if self.best is not None:
            return self.best
        return ValidatedRound(records[-1].round, math.nan, measured)


def open_validation(context: ExperimentContext, evaluation: Evaluator) -> Validation | None:
    """Return the validation of an experiment; None where no samples are held out for it."""
    if not context.experiment.evaluate.validation:
        return None
    assert isinstance(evaluation, LocalEvaluator)  # a real federation refuses it (federation/consent.py)
    return Validation(context, evaluation)
