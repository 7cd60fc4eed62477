"""What may be said of a comparison before it is over: from the cells that have ended, and never more than they tell."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedarena.results.comparison import Comparison
from fedarena.results.scoring import Score
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


def accuracy(sight: Sight, which: Score) -> float | None:
    """Return the accuracy of the round that counts; before the validated round is known, of the last one."""
    if which == "validated" and sight.validated is not None:
        return sight.validated
    return sight.best if which == "best" else sight.accuracy


def score(sight: Sight, which: Score) -> float | None:
    """Return the accuracy that counts of a run that is over, by the score of its comparison."""
    return (accuracy(sight, which) or 0.0) if sight.state in OVER else None


def means(match: Match) -> dict[str, float | None]:
    """Return mean accuracies by the score: over the runs that are over or, before there is one, over those under way.

    Who failed on a split has none: a mean over the others would not be of the same splits.
    """
    found: dict[str, float | None] = {}
    which: Score = "final" if match.plan is None else match.plan.score
    for label, row in match.cells.items():
        if any(sight.state == "failed" for sight in row):
            found[label] = None
            continue
        over = [known for sight in row if (known := score(sight, which)) is not None]
        begun = [known for sight in row if (known := accuracy(sight, which)) is not None]
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
    pairs = zip(match.cells[row], match.cells[column], strict=True)
    scores = [(score(a, plan.score), score(b, plan.score)) for a, b in pairs]
    known = [(a, b) for a, b in scores if a is not None and b is not None]
    if len(known) < 2:
        return None
    ours, theirs = zip(*known, strict=True)
    found = posterior(theirs, ours, plan.rho)
    worse, equal, better = found.regions(plan.rope)
    sign = "?" if plan.undecidable else verdict(better, equal, worse, plan.threshold)
    return Pairing(row, column, len(known), found, sign)


def final_pairing(result: Comparison, row: str, column: str) -> Pairing | None:
    """Return row against column of a finished comparison; None where no posterior exists because a model diverged."""
    duel = result.duel(row, column)
    if math.isnan(duel.mean):
        return None
    rising = result.scoring().sign > 0  # a positive difference says that the row is better
    known = result.posterior(row, column) if rising else result.posterior(column, row)
    return Pairing(row, column, len(result.scores()[row]), known, duel.verdict)
