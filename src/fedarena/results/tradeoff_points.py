"""The points of a sweep: the cost of privacy, bytes and attackers in accuracy."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
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
    attack_success: float | None = None  # mean over splits, of a backdoor
    success_sd: float = 0.0

    @property
    def success(self) -> TradeoffPoint:
        """Return the point with the success of the attack in place of the accuracy."""
        return replace(self, accuracy=self.attack_success or 0.0, sd=self.success_sd)


def points(result: Comparison) -> list[TradeoffPoint]:
    """Return the points in the order of the contestants; none without a sweep."""
    of = result.plan.sweep.get("of", {})
    return [_point(runs, **of[label]) for label, runs in result.runs.items() if label in of]


def _point(runs: list[Run], algorithm: str, value: Any) -> TradeoffPoint:
    final = [run.final.accuracy or 0.0 for run in runs]
    epsilons = (run.record_epsilon if run.epsilon is None else run.epsilon for run in runs)
    spent = [epsilon for epsilon in epsilons if epsilon is not None]
    success = [run.attack_success for run in runs if run.attack_success is not None]
    return TradeoffPoint(
        algorithm,
        value,
        float(np.mean(final)),
        _deviation(final),
        float(np.mean(spent)) if spent else None,
        float(np.mean([run.records[-1].bytes_up for run in runs])),
        float(np.mean(success)) if success else None,
        _deviation(success),
    )


def _deviation(values: list[float]) -> float:
    """Return the standard deviation over splits; 0 of a single one."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def is_of_attack(result: Comparison) -> bool:
    """Return whether the swept setting is one of the attack."""
    return str(result.plan.sweep.get("key", "")).startswith("attack.")


def axis_name(result: Comparison) -> str:
    """Return the swept setting of an attack as the name of an axis."""
    key = str(result.plan.sweep["key"])
    return "share of attackers" if key == "attack.share" else key


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
