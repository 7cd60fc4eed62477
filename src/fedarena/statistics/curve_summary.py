"""Summaries of accuracy curves: rounds to a target, best so far, area. A curve is a list of (round, accuracy)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

Curve = Sequence[tuple[int, float]]


def monotone(curve: Curve) -> list[tuple[int, float]]:
    """Return the best accuracy so far at every round.

    >>> monotone([(1, 0.5), (2, 0.4), (3, 0.6)])
    [(1, 0.5), (2, 0.5), (3, 0.6)]
    """
    best = accumulate((a for _, a in curve), max)
    return [(t, a) for (t, _), a in zip(curve, best, strict=True)]


def rounds_to(curve: Curve, target: float, interpolate: bool = False) -> int | None:
    """Return the first round with at least this accuracy; None if there is none.

    With `interpolate`, linear between the two rounds that bracket it on the monotone curve, rounded up (McMahan et al.).

    >>> curve = [(10, 0.5), (20, 0.7), (30, 0.6)]
    >>> rounds_to(curve, 0.6), rounds_to(curve, 0.6, interpolate=True), rounds_to(curve, 0.9)
    (20, 15, None)
    """
    before: tuple[int, float] | None = None
    for t, a in monotone(curve):
        if a >= target:
            if not interpolate or before is None:
                return t
            t0, a0 = before
            between = t0 + (t - t0) * (target - a0) / (a - a0)
            return max(t0 + 1, math.ceil(between - 1e-9))  # the target was not reached at t0
        before = (t, a)
    return None


def area(curve: Curve) -> float:
    """Return the mean height of the accuracy curve over rounds, by the trapezoidal rule."""
    t, a = (np.array(values, dtype=float) for values in zip(*curve, strict=True))
    return float(np.trapezoid(a, t) / (t[-1] - t[0])) if len(t) > 1 else float(a[0])


def recalls(confusion: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the recall of each class; NaN for a class without samples."""
    rows = confusion.sum(axis=1)
    shares: NDArray[np.float64] = np.divide(np.diag(confusion), rows, out=np.full(len(rows), np.nan), where=rows > 0)
    return shares


def relative_accuracy(weighted: float, centralized: float) -> float:
    """Return the weighted accuracy divided by the centralized one (Hsu et al.); NaN if that is 0."""
    return weighted / centralized if centralized else math.nan
