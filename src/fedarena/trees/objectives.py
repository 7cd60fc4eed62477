"""Losses with the first and second derivative of each row's margin.

They are computed in single precision and in XGBoost's order of operations, so that the trees are the same split by
split. Only the exponential is computed in double precision and rounded once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedarena.config.errors import BadValue
from fedarena.statistics.metrics import auc
from fedarena.trees.settings import ObjectiveSettings

Float32Array = NDArray[np.float32]
Float64Array = NDArray[np.float64]

TINY = np.float32(1e-16)


def _exp(x: Float32Array) -> Float32Array:
    return np.exp(x.astype(np.float64)).astype(np.float32)


@dataclass(frozen=True)
class Logistic:
    """Log loss of two classes with labels 0 and 1."""

    def start(self, y: Float64Array, w: Float64Array) -> float:
        """Return the margin of equal probabilities."""
        return 0.0

    def probability(self, margins: Float32Array) -> Float32Array:
        """Return the probability of class 1."""
        return np.float32(1) / (_exp(np.minimum(-margins, np.float32(88.7))) + np.float32(1))

    def gradients(self, margins: Float32Array, y: Float64Array, w: Float32Array) -> tuple[Float32Array, Float32Array]:
        """Return g = p - y and h = p (1 - p)."""
        p = self.probability(margins)
        label = y.astype(np.float32)[:, None]
        return (p - label) * w[:, None], np.maximum(p * (np.float32(1) - p), TINY) * w[:, None]

    def loss(self, margins: Float32Array, y: Float64Array, w: Float64Array) -> float:
        """Return the mean cross entropy."""
        m = margins[:, 0].astype(np.float64)
        return float(np.average(np.logaddexp(0, np.where(y > 0, -m, m)), weights=w))

    def predictions(self, margins: Float32Array) -> Float32Array:
        """Return the probabilities of both classes."""
        p = self.probability(margins[:, 0])
        return np.stack([np.float32(1) - p, p], axis=1)


@dataclass(frozen=True)
class Softmax:
    """Cross entropy of several classes with labels 0, 1, 2, ..."""

    classes: int

    def start(self, y: Float64Array, w: Float64Array) -> float:
        """Return the margin of equal probabilities."""
        return 0.0

    def predictions(self, margins: Float32Array) -> Float32Array:
        """Return the probabilities of all classes."""
        e = _exp(margins - margins.max(axis=1, keepdims=True))
        total: Float32Array = e.sum(axis=1, keepdims=True, dtype=np.float64).astype(np.float32)
        return e / total

    def gradients(self, margins: Float32Array, y: Float64Array, w: Float32Array) -> tuple[Float32Array, Float32Array]:
        """Return g = p - [class is y] and h = 2 p (1 - p), with the factor two of XGBoost."""
        p = self.predictions(margins)
        is_label = (np.arange(self.classes) == y[:, None]).astype(np.float32)
        h = np.maximum(np.float32(2) * p * (np.float32(1) - p) * w[:, None], TINY)
        return (p - is_label) * w[:, None], h

    def loss(self, margins: Float32Array, y: Float64Array, w: Float64Array) -> float:
        """Return the mean cross entropy."""
        m = margins.astype(np.float64)
        top = m.max(axis=1)
        total = top + np.log(np.exp(m - top[:, None]).sum(axis=1))
        return float(np.average(total - m[np.arange(len(y)), y.astype(np.intp)], weights=w))


@dataclass(frozen=True)
class SquaredError:
    """Squared error, for regression."""

    def start(self, y: Float64Array, w: Float64Array) -> float:
        """Return the mean label, in single precision."""
        return float(np.float32(np.average(y, weights=w)))

    def gradients(self, margins: Float32Array, y: Float64Array, w: Float32Array) -> tuple[Float32Array, Float32Array]:
        """Return g, the residual, and h, the weight."""
        g = (margins - y.astype(np.float32)[:, None]) * w[:, None]
        return g, np.broadcast_to(w[:, None], g.shape)

    def loss(self, margins: Float32Array, y: Float64Array, w: Float64Array) -> float:
        """Return the root mean squared error."""
        return float(np.sqrt(np.average((margins[:, 0].astype(np.float64) - y) ** 2, weights=w)))

    def predictions(self, margins: Float32Array) -> Float32Array:
        """Return the margins as predicted values."""
        return margins[:, 0]


Objective = Logistic | Softmax | SquaredError


def make_objective(settings: ObjectiveSettings) -> Objective:
    """Return the objective that these settings name."""
    if settings.objective == "logistic":
        return Logistic()
    return Softmax(settings.classes) if settings.objective == "softmax" else SquaredError()


def check_labels(y: NDArray[np.floating], settings: ObjectiveSettings, training: NDArray[np.bool_]) -> Float64Array:
    """Return the labels as floats, and refuse labels that this objective cannot learn from."""
    labels = np.asarray(y, dtype=np.float64).reshape(-1)
    if not np.isfinite(labels).all():
        raise BadValue(
            f"{np.count_nonzero(~np.isfinite(labels))} labels are missing or infinite",
            remedy="remove those rows before training",
            where="labels",
        )
    if settings.objective == "squared_error":
        return labels
    classes = settings.classes if settings.objective == "softmax" else 2
    if not np.isin(labels, np.arange(classes)).all():
        raise BadValue(
            f"labels are not classes 0 to {classes - 1}: {np.unique(labels)[:5].tolist()}",
            remedy="number the classes from 0, or choose objective squared_error",
            where="labels",
        )
    present = np.unique(labels[training])
    if len(present) < 2:
        raise BadValue(
            f"all training labels are {present[0]:g}: a single class cannot be learned",
            remedy="train on rows of at least two classes",
            where="labels",
        )
    return labels


def check_weights(w: NDArray[np.floating] | None, rows: int) -> Float64Array:
    """Return one weight per row, all 1 by default, and refuse negative weights."""
    if w is None:
        return np.ones(rows)
    weights = np.asarray(w, dtype=np.float64).reshape(-1)
    if len(weights) != rows:
        raise BadValue(f"{len(weights)} weights for {rows} rows", remedy="use one weight per row", where="weights")
    if not np.isfinite(weights).all() or (weights < 0).any() or not weights.any():
        raise BadValue(
            "weights are negative, missing or all zero", remedy="use finite weights of at least 0", where="weights"
        )
    return weights


def scores(settings: ObjectiveSettings, margins: Float32Array, y: Float64Array, w: Float64Array) -> dict[str, float]:
    """Return the metric of these rows (auc, accuracy or rmse) and the loss."""
    objective = make_objective(settings)
    loss = objective.loss(margins, y, w)
    if settings.objective == "squared_error":
        return {"rmse": loss, "loss": loss}
    if settings.objective == "softmax":
        right = margins.argmax(axis=1) == y
        return {"accuracy": float(np.average(right, weights=w)), "loss": loss}
    return {"auc": auc(y, margins[:, 0], w), "loss": loss}
