"""What clients send for the metrics of a task: sums that are added up over clients, and values of their own samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedarena.engine.task_metrics import MANY_CLASSES, Predictions
from fedarena.federation.metric_sums import BY_CLASS, BY_ORDER, BY_SUM, MetricLayout, MetricSums
from fedarena.federation.multilabel_sums import MultilabelLayout, MultilabelSums
from fedarena.federation.regression_sums import BY_ERROR, RegressionLayout, RegressionSums
from fedarena.statistics.metric_registry import all_metrics, measure, measure_labels

COUNTED = ("accuracy", "loss")  # follow from the counts and losses of every evaluation
SUMMED = ("classification", "multilabel", "regression")  # tasks with metrics that follow from other sums
OWN: dict[str, tuple[str, ...]] = {  # metrics that compare samples with each other, by task: sums do not give them
    "classification": tuple(BY_ORDER),
    "multilabel": tuple(BY_ORDER),
    "survival": ("c_index",),
}

SUMS_IN_WORDS = {  # over test samples, for the log of releases
    "classification": "confusion matrix, losses and bins of confidence over test samples",
    "multilabel": "confusion matrix, losses and bins of confidence of each label over test samples",
    "regression": "sums of errors and of labels over test samples",
}
OWN_IN_WORDS = {
    "classification": "AUC and average precision of this client",
    "multilabel": "AUC and average precision of this client, means over labels",
    "survival": "C-index of this client",
}

Layout = MetricLayout | MultilabelLayout | RegressionLayout
Sums = MetricSums | MultilabelSums | RegressionSums


def layout_of(context: Any, bins: int) -> Layout:
    """Return the layout for the task of an experiment."""
    if context.task_name == "regression":
        return RegressionLayout()
    if context.task_name == "multilabel":
        return MultilabelLayout(context.data.classes, bins)
    return MetricLayout(context.data.classes, bins, context.positive)


def sums_of(predictions: Predictions, layout: Layout) -> Sums:
    """Return the sums of one client's predictions."""
    if isinstance(layout, RegressionLayout):
        return RegressionSums.of(predictions)
    if isinstance(layout, MultilabelLayout):
        return MultilabelSums.of(predictions, layout)
    return MetricSums.of(predictions, layout)


def read_sums(integers: Sequence[int], layout: Layout) -> Sums:
    """Return the sums that integers stand for; raise ValueError if they stand for none."""
    if isinstance(layout, RegressionLayout):
        return RegressionSums.from_integers(integers)
    if isinstance(layout, MultilabelLayout):
        return MultilabelSums.from_integers(integers, layout)
    return MetricSums.from_integers(integers, layout)


def why_no_sums(context: Any) -> str:
    """Return why there are no sums for the models of an experiment, or an empty text."""
    if context.task_name == "survival":
        return "the C-index compares samples with each other"
    if context.task_name not in SUMMED:
        return "the model brings its own loss"
    if context.has_personal_models:
        return "every client has its own model"
    return f"there are more than {MANY_CLASSES} classes" if context.data.classes > MANY_CLASSES else ""


def followed_from(metric: str) -> str:
    """Return what a followed metric needs of every evaluation: "counts", "sums", "histograms", or "" for nothing."""
    if metric in (*COUNTED, "log_loss"):
        return "counts"
    if metric in (*BY_CLASS, *BY_SUM, *BY_ERROR):
        return "sums"
    return "histograms" if metric in BY_ORDER else ""


def own_values(predictions: Predictions, task: str, positive: int | None, least: int) -> dict[str, float | None]:
    """Return the metrics of one client's samples that sums do not give; None where undefined, or with few samples."""
    names, labels, predicted = OWN[task], predictions.labels, predictions.predicted
    if len(labels) < least:
        return dict.fromkeys(names)
    chosen = [all_metrics()[name] for name in names]
    if task == "multilabel" and predictions.probabilities is not None:
        found = measure_labels(chosen, labels, predicted, predictions.probabilities)
    else:
        found = measure(chosen, labels, predicted, predictions.probabilities, positive)
    return {name: None if np.isnan(value) else value for name, value in found.items()}
