"""What privacy and bytes cost in accuracy: the points of a sweep."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedarena.common.grouping import group_by_key

if TYPE_CHECKING:
    from fedarena.results.comparison import Comparison
    from fedarena.results.run import Run


@dataclass(frozen=True)
class TradeoffPoint:
    """One algorithm at one value of the swept setting, over all splits."""

    algorithm: str
    value: Any
    accuracy: float  # mean of the final accuracies
    sd: float
    epsilon: float | None  # of a client, or of a record where only that is bounded; None: unbounded
    bytes_up: float


def points(result: Comparison) -> list[TradeoffPoint]:
    """Return the points in the order of the contestants; none without a sweep."""
    of = result.plan.sweep.get("of", {})
    return [_point(runs, **of[label]) for label, runs in result.runs.items() if label in of]


def _point(runs: list[Run], algorithm: str, value: Any) -> TradeoffPoint:
    final = [run.final.accuracy or 0.0 for run in runs]
    epsilons = (run.record_epsilon if run.epsilon is None else run.epsilon for run in runs)
    spent = [epsilon for epsilon in epsilons if epsilon is not None]
    return TradeoffPoint(
        algorithm,
        value,
        float(np.mean(final)),
        float(np.std(final, ddof=1)) if len(final) > 1 else 0.0,
        float(np.mean(spent)) if spent else None,
        float(np.mean([run.records[-1].bytes_up for run in runs])),
    )


def as_dict(result: Comparison) -> dict[str, Any] | None:
    """Return what `compare --json` prints of the sweep."""
    if not result.plan.sweep:
        return None
    return {"key": result.plan.sweep["key"], "points": [asdict(point) for point in points(result)]}


def by_algorithm(found: list[TradeoffPoint]) -> dict[str, list[TradeoffPoint]]:
    """Return the points of each algorithm, which form one line."""
    return group_by_key((point.algorithm, point) for point in found)


def levels(result: Comparison) -> dict[str, float]:
    """Return the mean accuracy of algorithms that were not swept, which are drawn as levels."""
    of = result.plan.sweep.get("of", {})
    return {
        label: float(np.mean([run.final.accuracy or 0.0 for run in runs]))
        for label, runs in result.runs.items()
        if label not in of
    }
