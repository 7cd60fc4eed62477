"""When a comparison that adds repeats until it is decided may stop.

It is decided when the smallest set with 95 % of P(best) has one member, or when all members of that set are within one rope
of each other with a joint probability of 95 %. Looking after every repeat finds chance differences that a single look would
not: with 5 folds a repeat, two equal algorithms and up to 9 looks, this rule names a best one in 1 % of comparisons whose
folds are independent, in 5 % where those of a repeat correlate by 0.2 and in 17 % where they correlate by 0.5. The `strict`
rule asks for 99 % before 25 splits and 97.5 % from then on, and stays below 5 % in all three cases. Early looks are the ones
that err: the scale of the posterior has a floor, the error of a mean over independent repeats has none.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from numpy.typing import ArrayLike

from fedarena.errors import BadValue
from fedarena.statistics.joint import DRAWS, candidates, joint_posterior, matrix, ranking
from fedarena.statistics.repeats import LEAST_REPEATS

FIRST_LOOK = 10
LATE = 25


class Look(NamedTuple):
    """The state of a comparison after some splits: whether it is decided, and why or why not."""

    decided: bool
    reason: str
    best_set: tuple[str, ...] = ()  # the smallest set with `level` of P(best)
    p_equal: float = 0.0  # probability that all members of the set are within one rope of each other
    level: float = 0.95  # the probability asked for at this look


def required_level(n: int, level: float = 0.95, *, strict: bool = False) -> float:
    """Return the probability that a decision needs after n splits; strict: a fifth of the doubt, from 25 splits on half.

    >>> [round(required_level(n, strict=True), 3) for n in (10, 20, 25)]
    [0.99, 0.99, 0.975]
    """
    if not strict:
        return level
    return 1 - (1 - level) / (5 if n < LATE else 2)


def look(
    scores: Mapping[str, ArrayLike],
    rho: float = 0.0,
    *,
    references: Collection[str] = (),
    rope: float = 0.01,
    level: float = 0.95,
    strict: bool = False,
    repeats: Sequence[int] | None = None,
    draws: int = DRAWS,
    seed: int = 0,
) -> Look:
    """Return whether the scores so far decide which candidates are the best, at 10 splits or more.

    >>> fedavg = [0.90, 0.91, 0.93, 0.92, 0.91] * 2
    >>> look({"fedavg": fedavg, "fednova": [score - 0.1 for score in fedavg]}, rho=0.2).reason
    'fedavg is the best with probability 1.000'
    >>> look({"fedavg": fedavg[:5], "fednova": fedavg[:5]}, rho=0.2).reason
    '5 splits: the first look is at 10'
    """
    if rope < 0:
        raise BadValue(f"rope = {rope}", remedy="give the largest difference that does not matter, e.g. 0.01")
    labels = candidates(scores, references)
    x = matrix({label: scores[label] for label in labels})
    if len(x) < FIRST_LOOK:
        return Look(False, f"{len(x)} splits: the first look is at {FIRST_LOOK}")
    if repeats is not None and len(set(repeats)) < LEAST_REPEATS:
        return Look(False, f"{len(set(repeats))} repeats: the first look is at {LEAST_REPEATS}")
    needed = required_level(len(x), level, strict=strict)
    known = joint_posterior(x, rho, repeats)
    gaps = known.gaps(draws, seed)
    found = ranking(labels, known, gaps, rope, needed)
    members = gaps[:, [labels.index(label) for label in found.best_set]]
    p_equal = float((members.max(axis=1) - members.min(axis=1) <= rope + known.tolerance).mean())
    if len(found.best_set) == 1:
        best = found.best_set[0]
        reason = f"{best} is the best with probability {found.standings[best].p_best:.3f}"
        return Look(True, reason, found.best_set, p_equal, needed)
    within = f"the {len(found.best_set)} that may be the best are within one rope with probability {p_equal:.3f}"
    return Look(p_equal >= needed, within, found.best_set, p_equal, needed)
