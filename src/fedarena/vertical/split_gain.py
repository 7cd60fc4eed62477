"""What a split is worth, and what a leaf says.

Gains are compared in single precision, in XGBoost's order of operations: splits that differ by less are ties, and ties go
to the first candidate. The factor 1/2 of the paper is left out in comparisons and put back where gains are shown.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedarena.vertical.fixed_point import FixedPoint, Sums
from fedarena.vertical.settings import BoostSettings

Single = NDArray[np.float32]
SMALLEST = np.float32(1e-6)  # what XGBoost asks of a split at least


def _score(g: NDArray[np.float64], h: NDArray[np.float64], lambda_: float) -> Single:
    """G^2 / (H + lambda), divided in single precision, summed over outputs in double."""
    with np.errstate(divide="ignore", invalid="ignore"):
        each = np.where(h > 0, (g * g).astype(np.float32) / (h + lambda_).astype(np.float32), np.float32(0))
    total: Single = each.sum(axis=-1, dtype=np.float64).astype(np.float32)
    return total


def gains(
    settings: BoostSettings,
    point: FixedPoint,
    left: Sums,
    left_rows: NDArray[np.int64],
    total: Sums,
    total_rows: int,
) -> Single:
    """Twice the paper's gain of each candidate, before gamma; minus infinity where a child would be too small."""
    right = total - left
    (gl, hl), (gr, hr), (g, h) = point.values(left), point.values(right), point.values(total)
    lambda_ = settings.lambda_
    with np.errstate(over="ignore", invalid="ignore"):  # squares beyond single precision: such a gain is none
        gain = (_score(gl, hl, lambda_) + _score(gr, hr, lambda_)) - _score(g, h, lambda_)
    weight_left, weight_right = hl.mean(axis=-1), hr.mean(axis=-1)
    smallest = np.minimum(weight_left, weight_right)
    rows = np.minimum(left_rows, total_rows - left_rows)
    allowed = (smallest >= settings.min_child_weight) & (smallest > 0) & (rows >= settings.min_leaf_rows)
    return np.where(allowed & np.isfinite(gain), gain, np.float32(-np.inf))


def worth_it(settings: BoostSettings, gain: np.float32) -> bool:
    """A split is made for more than rounding, and for at least gamma."""
    return bool(gain > SMALLEST and gain >= np.float32(2 * settings.gamma))


def may_split(settings: BoostSettings, point: FixedPoint, total: Sums, rows: int) -> bool:
    """Whether a node has enough weight and rows for two children at all."""
    _, h = point.values(total)
    nearly = 1 - 1e-12  # two halves that are just enough may add up to a hair less
    return bool(h.mean() >= 2 * settings.min_child_weight * nearly and rows >= 2 * settings.min_leaf_rows)


def leaf_weights(settings: BoostSettings, point: FixedPoint, total: Sums) -> Single:
    """-G / (H + lambda), times the learning rate, for each output."""
    g, h = point.values(total)
    enough = (h >= settings.min_child_weight) & (h > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        weight = np.where(enough, -g / (h + settings.lambda_), 0.0).astype(np.float32)
    return weight * np.float32(settings.lr)
