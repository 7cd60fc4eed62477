"""From the outputs of a model to its metrics, on the common test samples and on each client's own."""

from __future__ import annotations

import math
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedarena.config.errors import BadValue, UnknownName, suggest
from fedarena.data.dataset import PADDING
from fedarena.engine.context import ExperimentContext
from fedarena.models.task import Keep, Scores, predicted_classes
from fedarena.statistics.metric_registry import Direction, Metric, measure, measure_labels, metrics_of
from fedarena.statistics.metrics import reliability

MANY_CLASSES = 100  # from which a confusion matrix is not kept

Values = dict[str, float]


@dataclass(frozen=True)
class UnseenMetrics:
    """The metrics of clients that never trained, on their own test samples: at once, and after adapting on their own samples.

    `client_before` and `client_after` have the values of each client, NaN where undefined.
    """

    clients: tuple[str, ...]  # names, or numbers where they have no names
    steps: int  # of the adaptation
    samples: NDArray[np.int64]  # own test samples of each
    client_before: dict[str, NDArray[np.float64]]
    client_after: dict[str, NDArray[np.float64]]

    @property
    def before(self) -> Values:
        """Return the mean of each metric with what the clients received, weighted by their test samples."""
        return mean_over_clients(self.client_before, self.samples)[0]

    @property
    def after(self) -> Values:
        """Return the mean of each metric after the adaptation, weighted by their test samples."""
        return mean_over_clients(self.client_after, self.samples)[0]


@dataclass(frozen=True)
class FinalMetrics:
    """All metrics of a finished run; empty for a run of a version without metrics."""

    task: str = ""
    metric: str = "accuracy"  # that was followed round by round
    direction: Direction = "maximize"
    common: Values = field(default_factory=dict)  # on the common test samples
    own: Values = field(default_factory=dict)  # mean over clients, weighted by their own test samples
    undefined: dict[str, int] = field(default_factory=dict)  # clients that `own` is without, though they have samples
    clients: dict[str, NDArray[np.float64]] = field(default_factory=dict)  # of each client; NaN where undefined
    confusion: NDArray[np.int64] | None = None  # labels in rows, predicted classes in columns
    calibration: tuple[dict[str, float], ...] | None = None  # confidence, accuracy and samples of each bin in use
    class_names: tuple[str, ...] = ()
    bounds: dict[str, tuple[float, float]] = field(default_factory=dict)  # of `common`, where known up to an interval
    client_names: tuple[str, ...] = ()  # of all clients; their numbers where they have no names
    client_tests: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))  # own test rows of each
    unseen: UnseenMetrics | None = None  # of clients that never trained; None where all train


@dataclass(frozen=True)
class Predictions:
    """Labels of samples (one a row, or one a position of a row) and what a model predicted for them."""

    labels: NDArray[Any]
    predicted: NDArray[Any]  # classes, -1 where an output is not finite; numbers of a regression; risks
    probabilities: NDArray[np.float64] | None  # of classes, or of each of several labels
    scores: Scores

    def rows(self, at: NDArray[np.int64] | slice) -> Predictions:
        """Return the predictions for some of the rows."""
        scores = Scores(self.scores.right[at], self.scores.count[at], self.scores.loss[at])
        probabilities = None if self.probabilities is None else self.probabilities[at]
        return Predictions(self.labels[at], self.predicted[at], probabilities, scores)

    @property
    def samples(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return labels and predictions of all samples, without positions that have no label."""
        if self.labels.dtype.kind == "f":
            return self.labels, self.predicted
        known = self.labels != PADDING
        return self.labels[known], self.predicted[known]


class TaskMetrics:
    """The metrics that fit the task of an experiment."""

    def __init__(self, context: ExperimentContext) -> None:
        self.context = context
        self.metrics = list(metrics_of(context.task_name).values())
        self.failed: dict[str, str] = {}  # users' metrics that raised an error at the end of a run

    def keep(self, metrics: Sequence[Metric]) -> Keep:
        """Return which outputs these metrics need; sequences have too many positions to keep all logits."""
        needs = {metric.needs for metric in metrics} - {"loss"} if self.context.task_name != "custom" else set()
        if needs & {"probabilities", "values"} and not self.context.is_text:
            return "logits"
        return "classes" if needs & {"classes"} else ""

    def predictions(self, rows: NDArray[np.int64], scores: Scores) -> Predictions:
        """Return the outputs of an evaluation beside the labels of its rows."""
        labels, outputs, task = self.context.data.y[rows], scores.outputs, self.context.task_name
        if outputs is None:
            return Predictions(labels, np.full(labels.shape, -1), None, scores)
        if task == "multilabel":
            from scipy.special import expit  # its import takes a fifth as long as that of torch

            finite = np.isfinite(outputs)
            return Predictions(labels, np.where(finite, outputs > 0, -1), expit(outputs.astype(np.float64)), scores)
        if task in ("regression", "survival"):
            mean, deviation = self.context.label_scale
            return Predictions(labels, outputs[:, 0].astype(np.float64) * deviation + mean, None, scores)
        if outputs.shape == labels.shape:
            return Predictions(labels, outputs, None, scores)
        predicted = predicted_classes(torch.from_numpy(outputs), self.context.cut).numpy()
        return Predictions(labels, predicted, softmax(outputs), scores)

    def values(self, metrics: Sequence[Metric], of: Predictions, *, strict: bool = False) -> Values:
        """Return the value of each metric; errors of users' functions are noted, `strict` raises that of the followed one."""
        count = of.scores.count.sum()
        if not count:
            return {metric.name: math.nan for metric in metrics}
        by_loss = [m for m in metrics if m.needs == "loss" or (m.name == "log_loss" and of.probabilities is None)]
        found = {metric.name: float(of.scores.loss.sum() / count) for metric in by_loss}
        others = [metric for metric in metrics if metric.name not in found]
        if others:
            labels, predicted = of.samples
            built_in = [metric for metric in others if not metric.own]
            if self.context.task_name == "multilabel" and of.probabilities is not None:
                found |= measure_labels(built_in, labels, predicted, of.probabilities)
            else:
                found |= measure(built_in, labels, predicted, of.probabilities, self.context.positive)
            for metric in (metric for metric in others if metric.own):
                found[metric.name] = self._own(metric, labels, predicted, of.probabilities, strict)
        return found

    def _own(self, metric: Metric, labels: Any, predicted: Any, probabilities: Any, strict: bool) -> float:
        try:
            return measure([metric], labels, predicted, probabilities)[metric.name]
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            text = f"{type(error).__name__}: {error}"
            if strict and metric.name == self.context.metric.name:
                raise BadValue(
                    f"the metric '{metric.name}' failed: {text}",
                    remedy="fix the function, or choose another metric",
                    where=f"{place.filename}, line {place.lineno}",
                ) from error
            self.failed.setdefault(metric.name, text)
            return math.nan


def softmax(logits: NDArray[Any]) -> NDArray[np.float64]:
    """Return the probabilities of classes, in double precision; NaN where a logit is not finite."""
    with np.errstate(invalid="ignore", over="ignore"):
        shifted = logits.astype(np.float64)
        shifted -= shifted.max(axis=1, keepdims=True)
        np.exp(shifted, out=shifted)
        shifted /= shifted.sum(axis=1, keepdims=True)
    return shifted


def confusion_counts(of: Predictions, classes: int) -> NDArray[np.int64]:
    """Count samples by label and predicted class; an output that is not finite predicts none."""
    labels, predicted = of.samples
    known = predicted >= 0
    cells = np.bincount(labels[known] * classes + predicted[known], minlength=classes * classes)
    return cells.reshape(classes, classes)


def calibration_bins(of: Predictions) -> tuple[dict[str, float], ...] | None:
    """Return confidence, accuracy and number of samples of every bin that has samples."""
    if of.probabilities is None or (of.predicted < 0).any():
        return None
    confidence, right, samples = reliability(of.labels, of.probabilities)
    return tuple(
        {"confidence": float(confidence[k]), "accuracy": float(right[k]), "samples": float(samples[k])}
        for k in np.flatnonzero(samples)
    )


def mean_over_clients(
    values: dict[str, NDArray[np.float64]], samples: NDArray[np.int64]
) -> tuple[Values, dict[str, int]]:
    """Return means weighted by each client's samples, and how many values were undefined.

    A value that the labels of a client leave undefined is left out; one that is undefined because the model of a client
    diverged makes the mean undefined.
    """
    means, undefined = {}, {}
    for name, each in values.items():
        known = ~np.isnan(each) & (samples > 0)
        undefined[name] = int((samples > 0).sum() - known.sum())
        is_defined = known.any() and not lost_by_divergence(values, name, samples)
        means[name] = float(np.average(each[known], weights=samples[known])) if is_defined else math.nan
    return means, undefined


def lost_by_divergence(
    values: dict[str, NDArray[np.float64]], name: str, samples: NDArray[np.int64] | None = None
) -> bool:
    """Return whether a metric is undefined for a client whose loss is not finite: its model diverged."""
    if name not in values or "loss" not in values:
        return False
    lost = np.isnan(values[name]) & ~np.isfinite(values["loss"])
    if samples is None:  # a client without samples has no value of any metric
        samples = ~np.all([np.isnan(each) for each in values.values()], axis=0)
    return bool((lost & (samples > 0)).any())


def stacked(each: Iterable[Values], names: Sequence[str]) -> dict[str, NDArray[np.float64]]:
    """Return one array per metric from one table per client."""
    rows = list(each)
    return {name: np.array([row.get(name, math.nan) for row in rows], np.float64) for name in names}


def check_metric(context: ExperimentContext) -> None:
    """Refuse a metric, a positive class, a threshold or a target that does not fit the task."""
    chosen, names = context.experiment.evaluate, context.data.class_names or ("0", "1")
    metric, classes = context.metric, context.data.classes
    for key in ("positive", "threshold"):
        if getattr(chosen, key) is not None and (classes != 2 or context.task_name != "classification"):
            what = f"{classes} classes" if context.task_name == "classification" else f"the task '{context.task_name}'"
            raise BadValue(
                f"evaluate.{key} is for classification into two classes, not for {what}",
                remedy="leave it out",
                where=f"evaluate.{key}",
            )
    if chosen.positive is not None and str(chosen.positive) not in names:
        raise UnknownName(
            f"no class is called '{chosen.positive}'",
            remedy=suggest(str(chosen.positive), names, f"the classes are: {', '.join(names)}"),
            where="evaluate.positive",
        )
    low, high = metric.bounds
    if chosen.target is not None and not low <= chosen.target <= high:
        raise BadValue(
            f"evaluate.target = {chosen.target:g} can never be reached",
            remedy=f"{metric.name} lies between {low:g} and {high:g}",
            where="evaluate.target",
        )
