"""The next step for a comparison that is not decided: the command that adds splits, where that is a fair test."""

from __future__ import annotations

import math
import shlex

from fedarena.results.comparison import Comparison
from fedarena.statistics.sequential import splits_to_decide

MOST_SPLITS = 1000  # that a comparison may have


def next_step(comparison: Comparison) -> str:
    """Return how to add splits, in one sentence; empty where it is decided or further splits would not help.

    A comparison that adds repeats until it is decided continues with a higher limit: its looks stay as they are. One with a
    fixed number of splits is not continued, because only undecided ones would be; another seed begins a new test.
    """
    plan, last = comparison.plan, comparison.plan.stopped
    if len(comparison.labels) < 2 or plan.undecidable or plan.sweep or plan.protocol == "shared":
        return ""
    if plan.at_most is None:
        return _begin_again(comparison)
    if last is None or last.decided or not last.is_comparable or comparison.dir is None:
        return ""
    found = _splits_to_decide(comparison)
    if found is None:
        return f"If means and spread persist, no number of splits up to {MOST_SPLITS} would decide it."
    limit = math.ceil(found / (plan.folds or 1)) * (plan.folds or 1)
    return f"To add further splits: fedarena compare --resume {shlex.quote(str(comparison.dir))} --at-most {limit}"


def _splits_to_decide(comparison: Comparison) -> int | None:
    """Return at about how many splits a look would decide; twice as many as now where repeats have an effect."""
    plan, scores = comparison.plan, comparison.candidate_scores()
    n = len(plan.splits)
    if plan.per_repeat:
        return 2 * n if 2 * n <= MOST_SPLITS else None
    found = splits_to_decide(scores, plan.rho, rope=plan.rope, threshold=plan.threshold, most=MOST_SPLITS)
    return None if found is None else max(found, n + 1)


def _begin_again(comparison: Comparison) -> str:
    """Return the advice for a fixed number of splits that leave open which algorithm is the best."""
    ranking = comparison.ranking
    if ranking is None:
        return ""
    first, *others = ranking.best_set
    is_open = any(comparison.duel(first, other).verdict == "?" for other in others)
    if not is_open or _splits_to_decide(comparison) is None:
        return ""
    return "To add splits until it is decided, compare again with --until-decided and another seed (--set seed=...)."
