"""The metrics by name: for which task each exists, which direction is better, its rope, its bounds, and users' own."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedarena.config.errors import BadValue, check_known
from fedarena.statistics import metrics as functions

TaskName = Literal["classification", "next_symbol", "regression", "multilabel", "survival", "custom"]
Direction = Literal["maximize", "minimize"]
Needs = Literal["loss", "classes", "probabilities", "values"]
F = TypeVar("F", bound=Callable[..., float])

TASKS: tuple[TaskName, ...] = ("classification", "next_symbol", "regression", "multilabel", "survival", "custom")
CLASSES: tuple[TaskName, ...] = ("classification", "next_symbol")
DISCRETE: tuple[TaskName, ...] = (*CLASSES, "multilabel")  # labels are right or wrong: there is an accuracy
OPTIMISTIC = "optimistic: chosen on test samples"  # shown with every best round
RESERVED = ("client", "name", "rows", "test_rows", "classes")  # other columns of clients.parquet
RESERVED_PREFIX = "validated_"  # of the columns of the validated round


@dataclass(frozen=True)
class Metric:
    """A registered metric with its function, tasks, direction and rope."""

    name: str
    function: Callable[..., float] | None  # None: the loss that was trained on, which only the model knows
    tasks: tuple[TaskName, ...]
    direction: Direction = "maximize"
    rope: float = 0.01  # differences up to this do not matter in practice
    bounds: tuple[float, float] = (0.0, 1.0)
    needs: Needs = "classes"  # what `function` takes beside the labels
    # value of a model whose output is not finite; None: every such sample counts as wrong
    diverged: float | None = None
    takes_positive: bool = False  # `function` has a parameter for the positive class of two
    own: bool = False  # registered by a user

    @property
    def maximize(self) -> bool:
        """Whether a larger value is better."""
        return self.direction == "maximize"

    @property
    def has_units(self) -> bool:
        """Whether the metric is never negative and has no upper bound, so that ratios are compared (rmse, log_loss)."""
        return self.bounds == (0.0, math.inf)

    def describe(self) -> dict[str, Any]:
        """Return what `fedarena list metrics --json` prints."""
        text = (self.function.__doc__ or "") if self.function else "Return the mean loss of the model on test samples."
        plain = {name: getattr(self, name) for name in ("name", "tasks", "direction", "rope", "bounds")}
        return {**plain, "summary": " ".join(text.split("\n\n")[0].split()).removeprefix("Return ")}

    def better(self, value: float, other: float) -> bool:
        """Return whether `value` is strictly better than `other`."""
        return is_better(self.direction, value, other)

    def reaches(self, value: float, target: float) -> bool:
        """Return whether `value` is at least as good as `target`."""
        return value >= target if self.maximize else value <= target


def is_better(direction: Direction, value: float, other: float) -> bool:
    """Return whether `value` is strictly better than `other`; every number is better than NaN."""
    if math.isnan(other):
        return not math.isnan(value)
    return value > other if direction == "maximize" else value < other


_UNBOUNDED = (0.0, math.inf)
_BY_CLASS: Any = {"tasks": DISCRETE, "takes_positive": True}
_BY_SCORE: Any = {"tasks": ("classification", "multilabel"), "needs": "probabilities"}

_TASKS_OF_NEEDS: dict[str, tuple[TaskName, ...]] = {  # of users' functions
    "classes": CLASSES,
    "probabilities": ("classification",),
    "values": ("regression",),
}

_known: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("accuracy", functions.accuracy, DISCRETE),
        Metric("balanced_accuracy", functions.balanced_accuracy, DISCRETE),
        Metric("auc", functions.auc, diverged=0.5, takes_positive=True, **_BY_SCORE),
        Metric("f1", functions.f1, **_BY_CLASS),
        Metric("precision", functions.precision, **_BY_CLASS),
        Metric("recall", functions.recall, **_BY_CLASS),
        Metric("log_loss", functions.log_loss, DISCRETE, "minimize", 0.01, _UNBOUNDED, "probabilities", math.nan),
        Metric("brier", functions.brier, direction="minimize", bounds=(0.0, 2.0), diverged=1.0, **_BY_SCORE),
        Metric("ece", functions.ece, direction="minimize", diverged=1.0, **_BY_SCORE),
        Metric("average_precision", functions.average_precision, diverged=0.0, takes_positive=True, **_BY_SCORE),
        Metric("rmse", functions.rmse, ("regression",), "minimize", 0.0, _UNBOUNDED, "values", math.nan),
        Metric("mae", functions.mae, ("regression",), "minimize", 0.0, _UNBOUNDED, "values", math.nan),
        Metric("r2", functions.r2, ("regression",), "maximize", 0.01, (-math.inf, 1.0), "values", math.nan),
        Metric("c_index", functions.c_index, ("survival",), needs="values", diverged=0.5),
        Metric("loss", None, TASKS, "minimize", 0.01, (-math.inf, math.inf), "loss", math.nan),
    )
}


def metric(
    *,
    direction: Direction = "maximize",
    rope: float = 0.01,
    name: str | None = None,
    needs: Literal["classes", "probabilities", "values"] = "classes",
    bounds: tuple[float, float] = (-math.inf, math.inf),
) -> Callable[[F], F]:
    """Register a function `f(y_true, y_pred) -> float` as a metric, under its own name.

    `y_pred` are predicted classes, or with `needs="probabilities"` an array with one column per class, or with
    `needs="values"` the numbers that a regression predicts.

    >>> import fedarena as fa
    >>> @fa.metric(direction="minimize", rope=0.02)
    ... def error_rate(y_true, y_pred):
    ...     return (y_true != y_pred).mean()
    >>> run = fa.run("digits", rounds=2, evaluate={"metric": "error_rate"}, out=False)
    >>> abs(run.metrics["error_rate"] + run.metrics["accuracy"] - 1) < 1e-12
    True
    """
    where = "metric"
    if direction not in ("maximize", "minimize") or needs not in _TASKS_OF_NEEDS or not rope >= 0:
        raise BadValue(
            f"direction = {direction!r}, needs = {needs!r}, rope = {rope!r}",
            remedy='direction: "maximize" or "minimize"; needs: "classes", "probabilities" or "values"; rope: 0 or more',
            where=where,
        )

    def register(function: F) -> F:
        called = str(name or getattr(function, "__name__", ""))
        built_in = called in _known and not _known[called].own
        reserved = called in RESERVED or called.startswith(RESERVED_PREFIX)
        if not called.isidentifier() or built_in or reserved:
            raise BadValue(
                f"a metric cannot be called '{called}'" + (": there is one of that name" if built_in else ""),
                remedy='give it a name of its own: fa.metric(name="...")',
                where=where,
            )
        _known[called] = Metric(
            called, function, _TASKS_OF_NEEDS[needs], direction, rope, bounds, needs, math.nan, own=True
        )
        return function

    return register


def adopt_metrics(own: Iterable[Metric]) -> None:
    """Register the metrics that a user registered in another process."""
    for one in own:
        _known.setdefault(one.name, one)


def own_metrics() -> list[Metric]:
    """Return the metrics that a user registered."""
    return [one for one in _known.values() if one.own]


def all_metrics() -> dict[str, Metric]:
    """Return every metric by name."""
    return dict(_known)


def metrics_of(task: TaskName) -> dict[str, Metric]:
    """Return the metrics that exist for a task, by name."""
    return {name: one for name, one in _known.items() if task in one.tasks}


def default_metric(task: TaskName) -> Metric:
    """Return the metric by which models of a task are compared where an experiment names none."""
    return _known[{"regression": "rmse", "survival": "c_index", "custom": "loss"}.get(task, "accuracy")]


def find_metric(name: str | None, task: TaskName, where: str = "evaluate.metric") -> Metric:
    """Return the metric of that name, or raise if there is none or if it does not exist for the task."""
    if name is None:
        return default_metric(task)
    more = "`fedarena list metrics` shows them all; give --file FILE.py if it is yours"
    check_known(name, _known, f"no metric is called '{name}'", more, where)
    if task not in _known[name].tasks:
        kind = "a model with its own loss" if task == "custom" else f"the task '{task}'"
        raise BadValue(
            f"the metric '{name}' does not exist for {kind}",
            remedy=f"use one of: {', '.join(metrics_of(task))}",
            where=where,
        )
    return _known[name]


def measure(
    chosen: Sequence[Metric],
    labels: NDArray[Any],
    predicted: NDArray[Any],
    probabilities: NDArray[Any] | None,
    positive: int | None = None,
) -> dict[str, float]:
    """Return the value of each metric on these samples; a predicted class of -1 is an output that is not finite."""
    whole = predicted.dtype.kind in "iu"
    diverged = bool((predicted < 0).any()) if whole else not bool(np.isfinite(predicted).all())
    values = {}
    for one in chosen:
        outputs = probabilities if one.needs == "probabilities" else predicted
        if one.function is None or outputs is None or not len(labels):
            values[one.name] = np.nan
        elif diverged and one.diverged is not None:
            values[one.name] = one.diverged
        else:
            extra = {"positive": positive} if one.takes_positive else {}
            values[one.name] = float(one.function(labels, outputs, **extra))
    return values


def measure_labels(
    chosen: Sequence[Metric], labels: NDArray[Any], predicted: NDArray[Any], probabilities: NDArray[Any]
) -> dict[str, float]:
    """Return the mean of each metric over several labels of 0 and 1, without labels that leave it undefined.

    >>> truth, p = np.array([[1, 0], [0, 1]]), np.array([[0.9, 0.2], [0.2, 0.4]])
    >>> measure_labels([find_metric("recall", "multilabel")], truth, (p > 0.5).astype(int), p)
    {'recall': 0.5}
    """
    each = [
        measure(chosen, labels[:, k].astype(np.int64), predicted[:, k], np.column_stack([1 - p, p]), positive=1)
        for k, p in enumerate(probabilities.T)
    ]
    found = {one.name: np.array([values[one.name] for values in each]) for one in chosen}
    return {name: float(np.nanmean(v)) if not np.isnan(v).all() else math.nan for name, v in found.items()}
