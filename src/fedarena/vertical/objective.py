"""Losses, as first and second derivatives of each row's margin.

All of it is in single precision and in the order of operations that XGBoost uses, so that its trees can be met split by
split. The exponential alone is taken in double precision and rounded once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedarena.config.errors import BadValue
from fedarena.vertical.settings import BoostSettings

Single = NDArray[np.float32]
Double = NDArray[np.float64]

TINY = np.float32(1e-16)


class Objective(Protocol):
    """What a loss must answer; margins are [rows, outputs]."""

    def start(self, y: Double, w: Double) -> float:
        """The margin before the first tree."""

    def gradients(self, margins: Single, y: Double, w: Single) -> tuple[Single, Single]:
        """g and h, [rows, outputs]."""

    def loss(self, margins: Single, y: Double, w: Double) -> float:
        """The mean that early stopping watches; smaller is better."""

    def predictions(self, margins: Single) -> Single:
        """Probabilities [rows, classes], or values [rows]."""


def _exp(x: Single) -> Single:
    return np.exp(x.astype(np.float64)).astype(np.float32)


@dataclass(frozen=True)
class Logistic:
    """Two classes, labels 0 and 1."""

    def start(self, y: Double, w: Double) -> float:
        """Even odds."""
        return 0.0

    def probability(self, margins: Single) -> Single:
        """Of class 1."""
        return np.float32(1) / (_exp(np.minimum(-margins, np.float32(88.7))) + np.float32(1))

    def gradients(self, margins: Single, y: Double, w: Single) -> tuple[Single, Single]:
        """p - y and p (1 - p)."""
        p = self.probability(margins)
        label = y.astype(np.float32)[:, None]
        return (p - label) * w[:, None], np.maximum(p * (np.float32(1) - p), TINY) * w[:, None]

    def loss(self, margins: Single, y: Double, w: Double) -> float:
        """Cross entropy."""
        m = margins[:, 0].astype(np.float64)
        return float(np.average(np.logaddexp(0, np.where(y > 0, -m, m)), weights=w))

    def predictions(self, margins: Single) -> Single:
        """Probabilities of both classes."""
        p = self.probability(margins[:, 0])
        return np.stack([np.float32(1) - p, p], axis=1)


@dataclass(frozen=True)
class Softmax:
    """Several classes, labels 0, 1, 2, ..."""

    classes: int

    def start(self, y: Double, w: Double) -> float:
        """Even odds."""
        return 0.0

    def predictions(self, margins: Single) -> Single:
        """Probabilities of all classes."""
        e = _exp(margins - margins.max(axis=1, keepdims=True))
        total: Single = e.sum(axis=1, keepdims=True, dtype=np.float64).astype(np.float32)
        return e / total

    def gradients(self, margins: Single, y: Double, w: Single) -> tuple[Single, Single]:
        """p - [class is y] and 2 p (1 - p): XGBoost's factor of two is kept."""
        p = self.predictions(margins)
        is_label = (np.arange(self.classes) == y[:, None]).astype(np.float32)
        h = np.maximum(np.float32(2) * p * (np.float32(1) - p) * w[:, None], TINY)
        return (p - is_label) * w[:, None], h

    def loss(self, margins: Single, y: Double, w: Double) -> float:
        """Cross entropy."""
        m = margins.astype(np.float64)
        top = m.max(axis=1)
        total = top + np.log(np.exp(m - top[:, None]).sum(axis=1))
        return float(np.average(total - m[np.arange(len(y)), y.astype(np.intp)], weights=w))


@dataclass(frozen=True)
class SquaredError:
    """Regression."""

    def start(self, y: Double, w: Double) -> float:
        """The mean label, in single precision."""
        return float(np.float32(np.average(y, weights=w)))

    def gradients(self, margins: Single, y: Double, w: Single) -> tuple[Single, Single]:
        """The residual and one."""
        g = (margins - y.astype(np.float32)[:, None]) * w[:, None]
        return g, np.broadcast_to(w[:, None], g.shape)

    def loss(self, margins: Single, y: Double, w: Double) -> float:
        """Root mean squared error."""
        return float(np.sqrt(np.average((margins[:, 0].astype(np.float64) - y) ** 2, weights=w)))

    def predictions(self, margins: Single) -> Single:
        """The margin itself."""
        return margins[:, 0]


def objective_of(settings: BoostSettings) -> Objective:
    """The loss that these settings name."""
    if settings.objective == "logistic":
        return Logistic()
    return Softmax(settings.classes) if settings.objective == "softmax" else SquaredError()


def checked_labels(y: NDArray[np.floating], settings: BoostSettings, training: NDArray[np.bool_]) -> Double:
    """Labels that this objective can learn from, or an error that says why not."""
    labels = np.asarray(y, dtype=np.float64).reshape(-1)
    if not np.isfinite(labels).all():
        raise BadValue(
            f"{np.count_nonzero(~np.isfinite(labels))} labels are missing or infinite",
            remedy="remove those rows before the training",
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
            f"all training labels are {present[0]:g}: there is nothing to tell apart",
            remedy="give rows of at least two classes",
            where="labels",
        )
    return labels


def checked_weights(w: NDArray[np.floating] | None, rows: int) -> Double:
    """One weight per row, none negative; all 1 if there are none."""
    if w is None:
        return np.ones(rows)
    weights = np.asarray(w, dtype=np.float64).reshape(-1)
    if len(weights) != rows:
        raise BadValue(f"{len(weights)} weights for {rows} rows", remedy="give one weight per row", where="weights")
    if not np.isfinite(weights).all() or (weights < 0).any() or not weights.any():
        raise BadValue(
            "weights are negative, missing or all zero", remedy="give finite weights of at least 0", where="weights"
        )
    return weights


def auc(y: Double, score: NDArray[np.floating], w: Double | None = None) -> float:
    """The area under the ROC curve: the share of (positive, negative) pairs in the right order, ties counted half.

    A pair weighs what its rows weigh, multiplied.

    >>> auc(np.array([0.0, 0, 1, 1]), np.array([0.1, 0.4, 0.35, 0.8]))
    0.75
    """
    _, place = np.unique(score, return_inverse=True)
    weight = np.ones(len(y)) if w is None else w
    positive = np.bincount(place, weight * (y > 0))
    negative = np.bincount(place, weight * (y <= 0))
    pairs = positive.sum() * negative.sum()
    if not pairs:
        return float("nan")
    below = np.cumsum(negative) - negative / 2
    return float((positive * below).sum() / pairs)


def scores(settings: BoostSettings, margins: Single, y: Double, w: Double) -> dict[str, float]:
    """What a person wants to know of these rows: auc, accuracy or rmse, and the loss."""
    objective = objective_of(settings)
    loss = objective.loss(margins, y, w)
    if settings.objective == "squared_error":
        return {"rmse": loss, "loss": loss}
    if settings.objective == "softmax":
        right = margins.argmax(axis=1) == y
        return {"accuracy": float(np.average(right, weights=w)), "loss": loss}
    return {"auc": auc(y, margins[:, 0], w), "loss": loss}
