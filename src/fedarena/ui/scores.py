"""What may be said of a comparison before it is over: from the cells that have ended, and never more than they tell."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedarena.statistics.bayes import Posterior, posterior, verdict
from fedarena.ui.catalogue import Match, Sight

OVER = ("finished", "diverged")


@dataclass(frozen=True)
class Pairing:
    """Two contestants on the splits that both have finished: the posterior of row minus column."""

    row: str
    column: str
    splits: int
    known: Posterior
    sign: str  # + = - ?


def score(sight: Sight) -> float | None:
    """The best accuracy of a run that is over."""
    return (sight.best or 0.0) if sight.state in OVER else None


def means(match: Match) -> dict[str, float | None]:
    """Of everybody's best accuracies: over the runs that are over, or, before there is one, over those under way.

    Who failed on a split has none: a mean over the others would not be of the same splits.
    """
    found: dict[str, float | None] = {}
    for label, row in match.cells.items():
        if any(sight.state == "failed" for sight in row):
            found[label] = None
            continue
        over = [known for known in map(score, row) if known is not None]
        begun = [sight.best for sight in row if sight.best is not None]
        values = over or begun
        found[label] = float(np.mean(values)) if values else None
    return found


def judged(match: Match) -> list[str]:
    """Those who are compared, the highest mean first."""
    assert match.plan is not None
    known = {label: mean for label, mean in means(match).items() if label != match.plan.reference}
    return sorted(known, key=lambda label: -(known[label] or 0.0))


def pairing(match: Match, row: str, column: str) -> Pairing | None:
    """Row against column, if they have at least two splits in common."""
    plan = match.plan
    assert plan is not None
    pairs = [(a, b) for a, b in zip(map(score, match.cells[row]), map(score, match.cells[column]), strict=True)]
    known = [(a, b) for a, b in pairs if a is not None and b is not None]
    if len(known) < 2:
        return None
    ours, theirs = zip(*known, strict=True)
    found = posterior(theirs, ours, plan.rho)
    worse, equal, better = found.regions(plan.rope)
    sign = "?" if plan.undecidable else verdict(better, equal, worse, plan.threshold)
    return Pairing(row, column, len(known), found, sign)
