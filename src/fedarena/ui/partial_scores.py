"""What may be said of a comparison before it has ended, from the runs that have: by the score of its plan."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedarena.config.comparison_plan import Plan
from fedarena.reports.charts.posteriors import PosteriorPair
from fedarena.results.scoring import Scoring
from fedarena.statistics.bayes import posterior, verdict
from fedarena.statistics.metric_registry import all_metrics
from fedarena.statistics.repeats import repeat_posterior
from fedarena.ui.catalogue import ComparisonSummary, RunSummary

OVER = ("finished", "diverged")


@dataclass(frozen=True)
class Pairing:
    """Two contestants on the splits that both have finished."""

    pair: PosteriorPair
    splits: int


def scoring_of(plan: Plan) -> Scoring | None:
    """Return how runs become scores; None where the metric is not known here."""
    return Scoring(plan.score, plan.metric, plan.evaluate_on) if plan.metric in all_metrics() else None


def score(plan: Plan, sight: RunSummary) -> float | None:
    """Return the score of a run that has ended, by the plan; None where result.json does not have it."""
    if sight.state not in OVER:
        return None
    result = sight.result
    prefix = "validated_" if plan.score == "validated" else ""
    if plan.evaluate_on != "common":
        return _number(_table(result, f"{prefix}own_metrics").get(plan.metric)) if plan.evaluate_on == "own" else None
    followed = _number(result.get(f"{plan.score}_metric")) if result.get("metric") == plan.metric else None
    if plan.metric == "accuracy":
        known = _number(result.get(f"{plan.score}_accuracy"))
        return followed if known is None else known
    known = None if plan.score == "best" else _number(_table(result, f"{prefix}metrics").get(plan.metric))
    return followed if known is None else known


def _table(result: dict[str, Any], key: str) -> dict[str, Any]:
    value = result.get(key)
    return value if isinstance(value, dict) else {}


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < 1e300 else None  # NaN and infinity are no scores


def means(match: ComparisonSummary) -> dict[str, float | None]:
    """Return the mean score of every contestant over the runs that have ended.

    Before one has, and where the score is the accuracy on the common test samples, that of the runs under way. A
    contestant that failed on a split has none: a mean over the other splits would be of other samples.
    """
    plan = match.plan
    assert plan is not None
    follows = plan.metric == "accuracy" and plan.evaluate_on == "common"
    found: dict[str, float | None] = {}
    for label, row in match.cells.items():
        if any(sight.state == "failed" for sight in row):
            found[label] = None
            continue
        over = [known for sight in row if (known := score(plan, sight)) is not None]
        begun = [sight.accuracy for sight in row if sight.accuracy is not None and follows]
        values = over or begun
        found[label] = float(np.mean(values)) if values else None
    return found


def by_mean(match: ComparisonSummary) -> list[tuple[str, float | None]]:
    """Return every contestant with its mean score, the best first and those without one last."""
    assert match.plan is not None
    scoring = scoring_of(match.plan)
    sign = 1 if scoring is None else scoring.sign
    return sorted(means(match).items(), key=lambda item: math.inf if item[1] is None else -sign * item[1])


def judged(match: ComparisonSummary) -> list[str]:
    """Return the contestants that are compared, the best mean first."""
    assert match.plan is not None
    return [label for label, _ in by_mean(match) if label != match.plan.reference]


def pairing(match: ComparisonSummary, row: str, column: str) -> Pairing | None:
    """Return row against column, if they have at least two splits in common."""
    plan = match.plan
    assert plan is not None
    scoring = scoring_of(plan)
    both = zip(match.cells[row], match.cells[column], plan.splits, strict=True)
    scores = [(score(plan, a), score(plan, b), split.repeat) for a, b, split in both]
    known = [(a, b, repeat) for a, b, repeat in scores if a is not None and b is not None]
    if scoring is None or len(known) < 2:
        return None
    ours, theirs, repeats = [a for a, _, _ in known], [b for _, b, _ in known], [repeat for _, _, repeat in known]
    if plan.protocol != "shared" and plan.per_repeat and len(set(repeats)) > 1:
        found = repeat_posterior(theirs, ours, repeats, plan.rho)
    else:
        found = posterior(theirs, ours, plan.rho)
    pair = PosteriorPair(row, column, found, "?", scoring)
    sign = "?" if plan.undecidable else verdict(*pair.chances(plan.rope), plan.threshold)
    return Pairing(PosteriorPair(row, column, found, sign, scoring), len(known))
