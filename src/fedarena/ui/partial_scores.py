"""Scores and pairwise posteriors of a comparison that is under way, from the runs that have ended."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from fedarena.common.formatting import format_percent
from fedarena.config.comparison_plan import Plan
from fedarena.reports.charts.posteriors import PosteriorPair
from fedarena.results.scoring import Scoring
from fedarena.statistics.bayes import posterior, verdict
from fedarena.statistics.metric_registry import all_metrics
from fedarena.statistics.repeats import repeat_posterior
from fedarena.ui.round_log import finite
from fedarena.ui.summaries import ComparisonSummary, RunSummary, part_table

OVER = ("finished", "diverged")


def scoring_of(plan: Plan) -> Scoring | None:
    """Return how runs become scores; None where the metric is not registered."""
    return Scoring(plan.score, plan.metric, plan.evaluate_on) if plan.metric in all_metrics() else None


def score_name(plan: Plan) -> str:
    """Return how pages name the score of a plan."""
    scoring = scoring_of(plan)
    return plan.metric if scoring is None else scoring.labelled


def format_score(scoring: Scoring | None, value: float | None) -> str:
    """Write a score in its unit; a percentage where the metric is not registered, a dash where there is no score."""
    if value is None:
        return "–"
    return format_percent(value) if scoring is None else scoring.shown(value)


def score(plan: Plan, run: RunSummary) -> float | None:
    """Return the score of a run that has ended, by the plan; None where result.json does not have it."""
    if run.state not in OVER:
        return None
    result = run.result
    prefix = "validated_" if plan.score == "validated" else ""
    if plan.evaluate_on != "common":
        return finite(part_table(result, f"{prefix}own_metrics").get(plan.metric)) if plan.evaluate_on == "own" else None
    followed = finite(result.get(f"{plan.score}_metric")) if result.get("metric") == plan.metric else None
    if plan.metric == "accuracy":
        known = finite(result.get(f"{plan.score}_accuracy"))
        return followed if known is None else known
    known = None if plan.score == "best" else finite(part_table(result, f"{prefix}metrics").get(plan.metric))
    return followed if known is None else known


def means(comparison: ComparisonSummary) -> dict[str, float | None]:
    """Return the mean score of every contestant over the runs that have ended.

    Until one has ended it is the mean of the runs under way, if the score is the accuracy on the common test samples. A
    contestant that failed on a split has no mean: the one over the other splits would be of other samples.
    """
    plan = comparison.known_plan
    follows = plan.metric == "accuracy" and plan.evaluate_on == "common"
    found: dict[str, float | None] = {}
    for label, row in comparison.cells.items():
        if any(run.state == "failed" for run in row):
            found[label] = None
            continue
        over = [known for run in row if (known := score(plan, run)) is not None]
        begun = [run.accuracy for run in row if run.accuracy is not None and follows]
        values = over or begun
        found[label] = float(np.mean(values)) if values else None
    return found


def by_mean(comparison: ComparisonSummary) -> list[tuple[str, float | None]]:
    """Return every contestant with its mean score, the best first and those without one last."""
    scoring = scoring_of(comparison.known_plan)
    sign = 1 if scoring is None else scoring.sign
    return sorted(means(comparison).items(), key=lambda item: math.inf if item[1] is None else -sign * item[1])


def judged(comparison: ComparisonSummary) -> list[str]:
    """Return the contestants that are compared, the best mean first."""
    return [label for label, _ in by_mean(comparison) if label != comparison.known_plan.reference]


def common_splits(comparison: ComparisonSummary, row: str, column: str) -> tuple[PosteriorPair, int] | None:
    """Return row against column and the number of splits that both have finished; None with fewer than two."""
    plan = comparison.known_plan
    scoring = scoring_of(plan)
    cells = zip(comparison.cells[row], comparison.cells[column], plan.splits, strict=True)
    scores = [(score(plan, a), score(plan, b), split.repeat) for a, b, split in cells]
    known = [(a, b, repeat) for a, b, repeat in scores if a is not None and b is not None]
    if scoring is None or len(known) < 2:
        return None
    ours, theirs, repeats = [a for a, _, _ in known], [b for _, b, _ in known], [repeat for _, _, repeat in known]
    if plan.protocol != "shared" and plan.per_repeat and len(set(repeats)) > 1:
        found = repeat_posterior(theirs, ours, repeats, plan.rho)
    else:
        found = posterior(theirs, ours, plan.rho)
    pair = PosteriorPair(row, column, found, "?", scoring)
    sign = "?" if plan.undecidable else verdict(*pair.probabilities(plan.rope), plan.threshold)
    return replace(pair, sign=sign), len(known)
