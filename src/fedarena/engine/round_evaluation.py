"""The evaluation of a run: the metrics of its rounds, of its last model, and of the round chosen by validation."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedarena.engine.attack_success import open_attack_success
from fedarena.engine.checkpoint import CheckpointStore
from fedarena.engine.checkpoint_files import Snapshot
from fedarena.engine.client import Broadcast
from fedarena.engine.context import ExperimentContext
from fedarena.engine.evaluation import EvaluationResult, open_evaluator
from fedarena.engine.notes import RunNotes
from fedarena.engine.record import RoundRecord
from fedarena.engine.task_metrics import FinalMetrics, mean_over_clients
from fedarena.engine.tasks import Runtime
from fedarena.engine.unseen_clients import open_unseen
from fedarena.engine.validated_round import ValidatedRound, ValidatedSnapshot
from fedarena.engine.validation import UNDEFINED, open_validation
from fedarena.statistics.fairness import fairness, weighted_accuracy


class EvaluatedModel(NamedTuple):
    """The server's model as it is evaluated: its weights, and the message from which clients with own models predict."""

    common: Broadcast
    message: Broadcast


class RoundEvaluation:
    """Evaluates the models of a run and remembers what its result needs."""

    def __init__(self, context: ExperimentContext, runtime: Runtime, store: CheckpointStore, notes: RunNotes) -> None:
        self.context, self.store, self.notes = context, store, notes
        self.client_accuracy: NDArray[np.float64] = np.full(len(context.owners.clients), np.nan)  # of the last one
        self.complete: EvaluationResult | None = None  # with all metrics, of the model as it is now
        self._evaluator = open_evaluator(context, runtime)
        self._validation = open_validation(context, self._evaluator)
        self._unseen = open_unseen(context, self._evaluator)
        self._success = open_attack_success(context, self._evaluator)

    def evaluate(self, model: EvaluatedModel, round: int, last: bool) -> dict[str, Any]:
        """Return the metrics of a round's record: on the global test set and over the clients' own.

        All metrics are computed after the last round, and after a round that is the best on validation samples so far.
        """
        validation, value = self._validation, None
        if validation is not None:
            value = validation.value(model.message, self.store.client_state)
        chosen = validation is not None and value is not None and validation.is_best(value)
        seen = self._evaluate(model, last or chosen)
        if validation is not None and value is not None and chosen:
            is_due = round % self.context.experiment.evaluate.every == 0
            validation.choose(round, value, self._all_metrics(seen, model), is_due)
        for client in seen.missing:
            self.notes.add("evaluations were without the rows of a client", self.notes.client_label(client))
        for note in seen.notes:
            self.notes.add(note)
        self.client_accuracy = seen.own
        spread = fairness(self.client_accuracy)
        followed, summed = self.context.metric.name, {"log_loss": seen.loss}  # a real federation knows sums alone
        return {
            "accuracy": seen.accuracy,
            "loss": seen.loss,
            "metric": None if followed in ("accuracy", "loss") else {**summed, **seen.values}.get(followed, math.nan),
            "weighted_accuracy": weighted_accuracy(self.client_accuracy, self.context.owners.sizes),
            "client_std": spread.get("std"),
            "client_worst": spread.get("worst_tenth"),
            "validation": value,
            "attack_success": None if self._success is None else self._success.value(model.message, self.store.client_state),
        }

    def _evaluate(self, model: EvaluatedModel, complete: bool) -> EvaluationResult:
        """Evaluate every row once, for the metric of the experiment or for all metrics."""
        evaluator, context = self._evaluator, self.context
        followed = [] if context.metric.name in ("accuracy", "loss") else [context.metric]
        metrics = evaluator.metrics if complete else followed
        if context.has_personal_models:
            seen = evaluator.evaluate_personal(*model, self.store.client_state, metrics, complete)
        else:
            seen = evaluator.evaluate_shared(model.common, metrics, complete)
        self.complete = seen if complete else None
        return seen

    def final_metrics(self, model: EvaluatedModel) -> FinalMetrics:
        """Return all metrics of the model as it is now."""
        seen = self.complete or self._evaluate(model, complete=True)
        for name, error in self._evaluator.failed.items():
            self.notes.add(f"the metric '{name}' failed and is left out: {error}")
        return self._all_metrics(seen, model)

    def _all_metrics(self, seen: EvaluationResult, model: EvaluatedModel) -> FinalMetrics:
        """Return the metrics of an evaluation that computed all of them, with those of clients that never train."""
        unseen = None if self._unseen is None else self._unseen.metrics(model.message, self.store.client_state)
        return replace(collected_metrics(self.context, seen, self._evaluator.own_samples), unseen=unseen)

    # The round chosen by validation

    def validated_round(self, records: list[RoundRecord], measured: FinalMetrics) -> ValidatedRound | None:
        """Return the round chosen on validation samples; `measured` are the metrics at the end. None without validation."""
        if self._validation is None:
            return None
        if self._validation.best is None:
            self.notes.add(UNDEFINED.format(metric=self.context.metric.name))
        return self._validation.result(records, measured)

    def with_validated(self, snapshot: Snapshot) -> Snapshot:
        """Add the validated round so far to a snapshot, where validation samples are held out."""
        if self._validation is None:
            return snapshot
        known = {field.name: getattr(snapshot, field.name) for field in fields(snapshot)}
        return ValidatedSnapshot(**known, validated=self._validation.candidates)

    def restore(self, snapshot: Snapshot | None, records: list[RoundRecord]) -> None:
        """Continue with the client accuracies and the validated round of a checkpoint."""
        if snapshot is not None:
            self.client_accuracy = snapshot.client_accuracy
        if self._validation is not None and isinstance(snapshot, ValidatedSnapshot):
            self._validation.resume(snapshot.validated, records)


def collected_metrics(
    context: ExperimentContext, seen: EvaluationResult, own_samples: NDArray[np.int64]
) -> FinalMetrics:
    """Return the metrics of an evaluation that computed all of them, with the mean over clients of their own values."""
    own, undefined = mean_over_clients(seen.client_values, own_samples)
    return FinalMetrics(
        task=context.task_name,
        metric=context.metric.name,
        direction=context.metric.direction,
        class_names=context.data.class_names,
        client_names=context.owners.names or tuple(str(k) for k in range(len(context.owners.clients))),
        client_tests=context.owners.test_sizes,
        common={} if context.has_personal_models and context.common_score == "none" else seen.values,
        own=own,
        undefined=undefined,
        clients=seen.client_values,
        confusion=seen.confusion,
        calibration=seen.calibration,
        bounds=seen.bounds,
    )
