"""Several runs of one algorithm as one curve: the mean over splits, and their range."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedarena.common.formatting import unit_of
from fedarena.engine.record import RoundRecord
from fedarena.results.run import Run

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Axis:
    """The horizontal axis of a curve: rounds, or one of the costs."""

    name: str
    label: str
    of: Callable[[RoundRecord], float]


@dataclass(frozen=True)
class SplitCurve:
    """One point for each round that was evaluated; over costs, it stands at the mean cost of that round."""

    x: Values
    mean: Values
    low: Values
    high: Values
    best: Values  # mean of the best so far, by the direction of the metric


def axes(runs: Sequence[Run]) -> list[Axis]:
    """Return the rounds and the costs of these runs; a cost that no run has is left out."""
    known = [Axis("rounds", "round", lambda r: r.round), Axis("uploads", "uploads", lambda r: r.uploads)]
    most = max(run.bytes for run in runs)
    size, unit = unit_of(most)
    known.append(Axis("bytes", f"{unit} sent, up and down", lambda r: (r.bytes_up + r.bytes_down) / size))
    longest = max(run.records[-1].clock for run in runs)
    second, clock = next(
        p for p in ((3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds")) if longest >= 3 * p[0] or p[0] == 1
    )
    known.append(Axis("simulated time", f"simulated {clock}", lambda r: r.clock / second))
    return [axis for axis in known if any(axis.of(run.records[-1]) > 0 for run in runs)]


def curve(runs: Sequence[Run], axis: Axis) -> SplitCurve:
    """Return the curve over all runs, aligned by round; a run that stopped early keeps its last value."""
    rounds = np.unique([r.round for run in runs for r in run.evaluations])
    x, y, best = (np.full((len(runs), len(rounds)), np.nan) for _ in range(3))
    for k, run in enumerate(runs):
        seen = run.evaluations
        at = np.searchsorted([r.round for r in seen], rounds, side="right") - 1
        began = at >= 0
        values = np.array([value for _, value in run.metric_curve], dtype=float)
        so_far = np.maximum if run.measured.direction == "maximize" else np.minimum
        x[k, began] = np.array([axis.of(r) for r in seen], dtype=float)[at[began]]
        y[k, began] = values[at[began]]
        best[k, began] = so_far.accumulate(values)[at[began]]
    return SplitCurve(
        np.nanmean(x, axis=0),
        np.nanmean(y, axis=0),
        np.nanmin(y, axis=0),
        np.nanmax(y, axis=0),
        np.nanmean(best, axis=0),
    )


def cut(curves: Sequence[SplitCurve], rising: bool = True) -> float | None:
    """Return where to cut the axis so that steep beginnings do not flatten what matters; None where they do not.

    It is the lower end of a metric that rises, and the upper end of one that falls.
    """
    sign = 1.0 if rising else -1.0
    values = np.concatenate([sign * c.mean for c in curves])
    first = min(float((sign * end).min()) for c in curves for end in (c.low, c.high))
    low, high = float(np.quantile(values, 0.15)), float(values.max())
    far = 0.1 if rising else high - low  # most of the height would show the first rounds
    return sign * low if low - first > far else None
