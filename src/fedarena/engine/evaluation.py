"""Evaluation of models on the global test set and on every client's own rows; each row is predicted once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedarena.config.errors import BadValue, ClientFailed
from fedarena.data.dataset import Rows, count_labels
from fedarena.engine.client import Broadcast, ClientState
from fedarena.engine.context import EVALUATION_ROWS, ExperimentContext
from fedarena.engine.evaluation_tasks import EvaluationTask
from fedarena.engine.personal_model import PersonalTask
from fedarena.engine.task_metrics import (
    MANY_CLASSES,
    Predictions,
    TaskMetrics,
    Values,
    calibration_bins,
    confusion_counts,
    mean_over_clients,
    stacked,
)
from fedarena.engine.tasks import FailedTask, Runtime, RuntimeTask, in_order
from fedarena.models.task import Scores
from fedarena.statistics.metric_registry import CLASSES, Metric


@dataclass(frozen=True)
class EvaluationResult:
    """The result of an evaluation: accuracy and loss on the global test set, and each client's accuracy on its own rows."""

    accuracy: float | None  # without a common score, this and loss and values are those on clients' own rows
    loss: float
    own: NDArray[np.float64]  # NaN for a client without test rows
    missing: tuple[int, ...] = ()  # clients of a real federation that could not be evaluated
    values: Values = field(default_factory=dict)  # of the requested metrics, on the global test set
    client_values: dict[str, NDArray[np.float64]] = field(default_factory=dict)  # and of each client, if requested
    confusion: NDArray[np.int64] | None = None  # of a model that all clients share
    calibration: tuple[dict[str, float], ...] | None = None
    bounds: dict[str, tuple[float, float]] = field(default_factory=dict)  # of values known only up to an interval
    notes: tuple[str, ...] = ()  # about clients that the values do not include


ClientStates = Callable[[int], ClientState | None]  # None for a client that has not trained yet


class Evaluator(Protocol):
    """Evaluates models: one for all clients, or one for each client.

    `metrics` are the requested ones; `clients` requests those of every client too, and the confusion matrix.
    """

    metrics: list[Metric]  # that can be computed on the common test samples
    failed: dict[str, str]  # users' metrics that raised an error

    @property
    def own_samples(self) -> NDArray[np.int64]:
        """Return how many labelled samples each client is compared on."""
        ...

    def evaluate_shared(
        self, common: Broadcast, metrics: Sequence[Metric] = (), clients: bool = False
    ) -> EvaluationResult:
        """Evaluate one model for all clients."""
        ...

    def evaluate_personal(
        self, common: Broadcast, message: Broadcast, states: ClientStates, metrics: Sequence[Metric], clients: bool
    ) -> EvaluationResult:
        """Evaluate a model for each client, which follows from its state and a message, and the common model if any."""
        ...


def open_evaluator(context: ExperimentContext, runtime: Runtime) -> Evaluator:
    """Return the evaluator of the run: a runtime whose rows stay with the clients has its own (`looks`)."""
    remote: Evaluator | None = getattr(runtime, "looks", None)
    if remote is not None and context.metric not in remote.metrics:
        raise BadValue(
            f"clients of a real federation send counts and sums, from which '{context.metric.name}' cannot be computed",
            remedy=f"use one of: {', '.join(metric.name for metric in remote.metrics)}",
            where="evaluate.metric",
        )
    return LocalEvaluator(context, runtime) if remote is None else remote


class LocalEvaluator:
    """Evaluates models on rows of this machine, in tasks on the workers."""

    def __init__(self, context: ExperimentContext, runtime: Runtime) -> None:
        self.runtime, self.owners = runtime, context.owners
        self.scoring = TaskMetrics(context)
        self.metrics, self.failed = self.scoring.metrics, self.scoring.failed
        own = self.owners.clients if context.experiment.evaluate.on == "train" else self.owners.client_tests
        if context.attackers:  # who are not judged
            own = [rows[:0] if k in context.attackers else rows for k, rows in enumerate(own)]
        self.own_rows, self.judged_clients = own, context.judged_clients
        self.rows = np.unique(np.concatenate([self.owners.test, *self.own_rows]))
        self._test = np.searchsorted(self.rows, self.owners.test)
        sizes = [len(rows) for rows in self.own_rows]
        self._own = np.searchsorted(self.rows, np.concatenate([np.empty(0, np.int64), *self.own_rows]))
        self._bounds = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])

    @property
    def own_samples(self) -> NDArray[np.int64]:
        """Return how many labelled samples each client is compared on."""
        labels = (self.scoring.context.data.y[rows] for rows in self.own_rows)
        return np.array([count_labels(y) for y in labels], np.int64)

    def evaluate_shared(
        self, common: Broadcast, metrics: Sequence[Metric] = (), clients: bool = False
    ) -> EvaluationResult:
        """Evaluate one model for all clients, in pieces over the workers."""
        pieces = [self.rows[i : i + EVALUATION_ROWS] for i in range(0, len(self.rows), EVALUATION_ROWS)]
        keep = self.scoring.keep(metrics)
        scores = Scores.joined(list(self.scores((EvaluationTask(piece, keep=keep) for piece in pieces), common)))
        found = EvaluationResult(
            accuracy(scores, self._test), mean_loss(scores, self._test), self._own_accuracy(scores)
        )
        if metrics:
            predictions = self.scoring.predictions(self.rows, scores)
            on_test = predictions.rows(self._test)
            found = replace(found, values=self.values(metrics, on_test, found.accuracy, strict=True))
            if clients:
                own = (predictions.rows(self._rows_of(k)) for k in range(len(self.own_rows)))
                found = replace(found, client_values=self._of_clients(metrics, own), **self._class_tables(on_test))
        if self.owners.noise is not None:  # clients with feature noise have it in their test rows too
            jobs = (EvaluationTask(rows, k, keep=keep if clients else "") for k, rows in enumerate(self.own_rows))
            found = self._noisy(found, jobs, common, metrics if clients else ())
        return found

    def evaluate_personal(
        self, common: Broadcast, message: Broadcast, states: ClientStates, metrics: Sequence[Metric], clients: bool
    ) -> EvaluationResult:
        """Evaluate each client's model on its own rows, and the common rows as the algorithm's `common_score` says."""
        score = self.scoring.context.common_score
        if score == "mean":
            return self._evaluate_everywhere(message, states, metrics, clients)
        keep, noisy = self.scoring.keep(metrics), self.owners.noise is not None
        jobs = (PersonalTask(k, states(k), rows, noisy, keep) for k, rows in enumerate(self.own_rows))
        each = [
            self.scoring.predictions(rows, scores)
            for rows, scores in zip(self.own_rows, self.scores(jobs, message), strict=True)
        ]
        own = np.array([accuracy(one.scores) for one in each], dtype=np.float64)
        if score == "shared":
            found = self.evaluate_shared(common, metrics, clients)
            values = self._of_clients(metrics, each) if clients else {}
            return replace(found, own=own, client_values=values)
        together, values = Scores.joined([replace(one.scores, outputs=None) for one in each]), {}
        if metrics:
            values = self._of_clients(metrics, each)
        right, loss = accuracy(together), mean_loss(together)
        means, _ = mean_over_clients(values, self.own_samples)
        return EvaluationResult(right, loss, own, values=means, client_values=values if clients else {})

    def _evaluate_everywhere(
        self, message: Broadcast, states: ClientStates, metrics: Sequence[Metric], clients: bool
    ) -> EvaluationResult:
        """Evaluate each client's model on all rows and return means over clients, weighted by their training rows."""
        keep = self.scoring.keep(metrics)

        def job(k: int, rows: Rows, noisy: bool = False) -> PersonalTask:
            return PersonalTask(k, states(k), rows, noisy, keep=keep if not noisy or clients else "")

        people = self.judged_clients
        sizes = self.owners.sizes[people]
        own = np.full(len(self.own_rows), np.nan)
        on_test = losses = 0.0
        values, client_values = dict.fromkeys((metric.name for metric in metrics), 0.0), {}
        all_scores = self.scores((job(k, self.rows) for k in people), message)
        for k, p, scores in zip(people, sizes / sizes.sum(), all_scores, strict=True):
            right = accuracy(scores, self._test) or 0.0
            on_test += p * right
            losses += p * mean_loss(scores, self._test)
            own[k] = accuracy(scores, self._rows_of(k))
            if metrics:
                predictions = self.scoring.predictions(self.rows, scores)
                found = self.values(metrics, predictions.rows(self._test), right, strict=True)
                values = {name: float(value + p * found[name]) for name, value in values.items()}
                if clients:
                    client_values[k] = self.values(metrics, predictions.rows(self._rows_of(k)), own[k])
        names = [metric.name for metric in metrics] if clients else []
        each = stacked((client_values.get(k, {}) for k in range(len(self.own_rows))), names)
        seen = EvaluationResult(float(on_test), float(losses), own, values=values, client_values=each)
        if self.owners.noise is not None:
            jobs = (job(k, rows, True) for k, rows in enumerate(self.own_rows))
            seen = self._noisy(seen, jobs, message, metrics if clients else ())
        return seen

    def _rows_of(self, client: int) -> NDArray[np.int64]:
        """Return the positions in `rows` of the rows that a client is compared on."""
        return self._own[self._bounds[client] : self._bounds[client + 1]]

    def values(self, metrics: Sequence[Metric], of: Predictions, right: float | None, strict: bool = False) -> Values:
        """Return the metrics: the accuracy as it was counted, the others from the predictions."""
        counted = {"accuracy": np.nan if right is None else float(right)}
        others = [metric for metric in metrics if metric.name not in counted]
        found = {**counted, **self.scoring.values(others, of, strict=strict)}
        return {metric.name: found[metric.name] for metric in metrics}

    def _of_clients(
        self, metrics: Sequence[Metric], predictions: Iterable[Predictions]
    ) -> dict[str, NDArray[np.float64]]:
        each = (self.values(metrics, one, accuracy(one.scores)) for one in predictions)
        return stacked(each, [metric.name for metric in metrics])

    def _class_tables(self, of: Predictions) -> dict[str, Any]:
        """Return the confusion matrix and the calibration curve, where there are classes."""
        context = self.scoring.context
        if context.task_name not in CLASSES:
            return {}
        confusion = confusion_counts(of, context.data.classes) if context.data.classes <= MANY_CLASSES else None
        return {"confusion": confusion, "calibration": calibration_bins(of)}

    def _own_accuracy(self, scores: Scores) -> NDArray[np.float64]:
        """Return the accuracy of each client on its own rows: integer counts, then one division each."""
        right, count = (np.concatenate([[0], np.cumsum(part[self._own])]) for part in (scores.right, scores.count))
        right, count = (np.diff(sums[self._bounds]) for sums in (right, count))
        return np.where(count > 0, right / np.maximum(count, 1), np.nan)

    def _noisy(
        self, found: EvaluationResult, jobs: Iterable[RuntimeTask], common: Broadcast, metrics: Sequence[Metric]
    ) -> EvaluationResult:
        """Return the result with each client evaluated on its own rows with its feature noise."""
        each = [
            self.scoring.predictions(rows, scores)
            for rows, scores in zip(self.own_rows, self.scores(jobs, common), strict=True)
        ]
        own = np.array([accuracy(one.scores) for one in each], dtype=np.float64)
        return replace(found, own=own, client_values=self._of_clients(metrics, each) if metrics else {})

    def scores(self, jobs: Iterable[RuntimeTask], common: Broadcast) -> Iterator[Scores]:
        """Run evaluations on the workers and yield their scores in order."""
        for scores in in_order(self.runtime.map(jobs, common)):
            if isinstance(scores, FailedTask):
                raise ClientFailed(f"evaluation failed: {scores.error}", remedy="if memory ran out, use --workers 1")
            yield scores


def accuracy(scores: Scores, rows: NDArray[np.int64] | slice = slice(None)) -> float | None:
    """Return the share of correct predictions on these rows: integer counts, then one division."""
    count = int(scores.count[rows].sum())
    return int(scores.right[rows].sum()) / count if count else None


def mean_loss(scores: Scores, rows: NDArray[np.int64] | slice = slice(None)) -> float:
    """Return the mean cross-entropy over labelled positions."""
    return float(scores.loss[rows].sum() / scores.count[rows].sum())
