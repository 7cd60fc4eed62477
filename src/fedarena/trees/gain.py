"""Gains of splits and weights of leaves.

Gains are compared in single precision, in XGBoost's order of operations: splits that differ by less are ties, and ties go
to the first candidate. The factor 1/2 of the paper is left out in comparisons and applied where gains are reported.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedarena.trees.fixed_point import FixedPoint, Sums
from fedarena.trees.settings import GainSettings

Float32Array = NDArray[np.float32]
MIN_GAIN = np.float32(1e-6)  # of XGBoost


def _score(g: NDArray[np.float64], h: NDArray[np.float64], lambda_: float) -> Float32Array:
    """Return G^2 / (H + lambda), divided in single precision, summed over outputs in double."""
    with np.errstate(divide="ignore", invalid="ignore"):
        each = np.where(h > 0, (g * g).astype(np.float32) / (h + lambda_).astype(np.float32), np.float32(0))
    total: Float32Array = each.sum(axis=-1, dtype=np.float64).astype(np.float32)
    return total


def split_gains(
    settings: GainSettings,
    point: FixedPoint,
    left: Sums,
    left_rows: NDArray[np.int64],
    total: Sums,
    total_rows: NDArray[np.int64] | int,
) -> Float32Array:
    """Return twice the paper's gain of each candidate, before gamma; minus infinity where a child would be too small."""
    right = total - left
    (gl, hl), (gr, hr), (g, h) = point.decode(left), point.decode(right), point.decode(total)
    lambda_ = settings.lambda_
    with np.errstate(over="ignore", invalid="ignore"):  # squares beyond single precision: their gain is -inf
        gain = (_score(gl, hl, lambda_) + _score(gr, hr, lambda_)) - _score(g, h, lambda_)
    weight_left, weight_right = hl.mean(axis=-1), hr.mean(axis=-1)
    smallest = np.minimum(weight_left, weight_right)
    allowed = (smallest >= settings.min_child_weight) & (smallest > 0)
    allowed &= np.minimum(left_rows, total_rows - left_rows) >= settings.min_leaf_rows
    return np.where(allowed & np.isfinite(gain), gain, np.float32(-np.inf))


def is_worth_splitting(settings: GainSettings, gains: Float32Array | np.float32) -> NDArray[np.bool_]:
    """Return which gains are more than rounding error, and at least gamma."""
    worth: NDArray[np.bool_] = np.logical_and(gains > MIN_GAIN, gains >= np.float32(2 * settings.gamma))
    return worth


def may_split(
    settings: GainSettings, point: FixedPoint, totals: Sums, rows: NDArray[np.int64] | int
) -> NDArray[np.bool_]:
    """Return which nodes have enough weight and rows for two children."""
    h = totals[..., 1] * point.units[1]
    nearly = 1 - 1e-12  # two children that are just heavy enough may add up to slightly less
    enough: NDArray[np.bool_] = h.sum(axis=-1) / h.shape[-1] >= 2 * settings.min_child_weight * nearly
    return enough & (rows >= 2 * settings.min_leaf_rows)


def leaf_weights(settings: GainSettings, point: FixedPoint, total: Sums) -> Float32Array:
    """Return -G / (H + lambda), times the learning rate, for each output."""
    g, h = point.decode(total)
    enough = (h >= settings.min_child_weight) & (h > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        weight = np.where(enough, -g / (h + settings.lambda_), 0.0).astype(np.float32)
    return weight * np.float32(settings.lr)
