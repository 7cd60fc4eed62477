"""What each algorithm of a comparison gives to clients that never trained: at once, and after steps on their own samples.

The score of a split is the mean of the metric over its unseen clients, on their own test samples. All algorithms of a split
hold out the same clients, so scores are paired as those of the comparison are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedarena.engine.task_metrics import UnseenMetrics
from fedarena.statistics.bayes import Posterior, verdict
from fedarena.statistics.repeats import paired_posterior

if TYPE_CHECKING:
    from fedarena.results.comparison import Comparison

LEVEL = 0.9  # of the intervals


@dataclass(frozen=True)
class UnseenScore:
    """The scores of unseen clients with one algorithm, as means over splits; unknown values are None."""

    algorithm: str
    verdict: str  # + = - ?; empty for the best one, and for pooled training
    splits: int  # that count
    undefined: int  # splits whose samples leave the metric undefined
    before: float | None = None  # with what they receive
    before_sd: float | None = None
    after: float | None = None  # after the steps
    after_sd: float | None = None
    gain: float | None = None  # by the steps: with the sign of the metric, so that more is better
    interval: tuple[float, float] | None = None  # 90 % credible, of the gain
    # after the steps, against the algorithm with the best mean after the steps; unknown where there is no verdict
    p_better: float | None = None
    p_equal: float | None = None
    p_worse: float | None = None


@dataclass(frozen=True)
class UnseenScores:
    """The scores of unseen clients with all algorithms, in their order; pooled training last."""

    metric: str
    steps: int  # of the adaptation
    clients: float  # that never train in a split, in the mean
    rope: float
    best: str | None  # the algorithm with the best mean after the steps; pooled training does not count
    scores: tuple[UnseenScore, ...]


def unseen_scores(result: Comparison) -> UnseenScores | None:
    """Return the scores of the unseen clients of a comparison; None where all clients train."""
    plan, scoring = result.plan, result.scoring()
    labels = [label for label in (*result.labels, plan.reference) if label in result.runs]
    found = {label: [scoring.measured(run).unseen for run in result.runs[label]] for label in labels}
    known = {label: [one for one in each if one is not None] for label, each in found.items()}
    if not any(known.values()) or any(len(known[label]) != len(found[label]) for label in labels):
        return None
    values = {label: _values(result, each) for label, each in known.items()}
    undefined = _undefined(result, values)
    kept = {label: np.delete(each, [i for i in undefined if i < len(each)], axis=0) for label, each in values.items()}
    repeats = None
    if result.has_repeat_effect:
        repeats = [split.repeat for i, split in enumerate(plan.splits) if i not in undefined]
    ends = {
        label: scoring.sign * float(each[:, 1].mean())
        for label, each in kept.items()
        if len(each) and np.isfinite(each).all() and not result.runs[label][0].experiment.algorithm.made.pooled
    }
    best = max(ends, key=lambda label: ends[label], default=None)
    sets = [one for each in known.values() for one in each]
    return UnseenScores(
        plan.metric,
        max(one.steps for one in sets),
        float(np.mean([len(one.clients) for one in sets])),
        plan.rope,
        best,
        tuple(_score(result, label, best, kept, len(values[label]), repeats) for label in labels),
    )


def _values(result: Comparison, each: Sequence[UnseenMetrics]) -> NDArray[np.float64]:
    """Return the scores before and after the steps [splits, 2]; clients count as in the comparison."""
    metric, uniform = result.plan.metric, result.plan.evaluate_on == "own:uniform"

    def mean(one: UnseenMetrics, of: dict[str, float], clients: dict[str, NDArray[np.float64]]) -> float:
        if not uniform or metric not in clients:
            return of.get(metric, math.nan)
        known = clients[metric][~np.isnan(clients[metric])]
        return float(known.mean()) if len(known) else math.nan

    pairs = [(mean(one, one.before, one.client_before), mean(one, one.after, one.client_after)) for one in each]
    return np.array(pairs, np.float64).reshape(-1, 2)


def _undefined(result: Comparison, values: dict[str, NDArray[np.float64]]) -> list[int]:
    """Return the splits in which labels leave the metric undefined; those of a model that diverged do not count."""
    return sorted(
        {
            i
            for label, each in values.items()
            for i, run in enumerate(result.runs[label])
            if np.isnan(each[i]).any() and not run.diverged
        }
    )


def _score(
    result: Comparison,
    label: str,
    best: str | None,
    kept: dict[str, NDArray[np.float64]],
    splits: int,
    repeats: Sequence[int] | None,
) -> UnseenScore:
    """Return the scores of one algorithm, and what is known of its difference to the best one."""
    values, sign = kept[label], result.scoring().sign
    counts = len(values), splits - len(values)
    if not len(values) or not np.isfinite(values).all():
        return UnseenScore(label, "?", *counts)
    means, deviations = values.mean(axis=0), values.std(axis=0, ddof=1) if len(values) > 1 else np.zeros(2)
    gain = _posterior(sign * values[:, 0], sign * values[:, 1], result.plan.rho, repeats)
    other, is_pooled = None, result.runs[label][0].experiment.algorithm.made.pooled
    if best is not None and best != label and not is_pooled and len(kept[best]) == len(values):
        other = _posterior(sign * kept[best][:, 1], sign * values[:, 1], result.plan.rho, repeats)
    worse, equal, better = (None, None, None) if other is None else other.regions(result.plan.rope)
    decided = "" if label == best or is_pooled else "?"
    if worse is not None and equal is not None and better is not None and not result.plan.undecidable:
        decided = verdict(better, equal, worse, result.plan.threshold)
    return UnseenScore(
        label,
        decided,
        *counts,
        float(means[0]),
        float(deviations[0]),
        float(means[1]),
        float(deviations[1]),
        float(sign * (means[1] - means[0])),
        None if gain is None else gain.interval(LEVEL),
        better,
        equal,
        worse,
    )


def _posterior(
    one: NDArray[np.float64], two: NDArray[np.float64], rho: float, repeats: Sequence[int] | None
) -> Posterior | None:
    """Return the posterior of the mean difference, two minus one; None with fewer than two splits or repeats."""
    if len(one) < 2 or (repeats is not None and len(set(repeats)) < 2):
        return None
    return paired_posterior(one.tolist(), two.tolist(), rho, repeats)
