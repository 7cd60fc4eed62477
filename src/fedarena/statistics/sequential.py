"""The stopping rule of comparisons that add repeats until they are decided.

It is decided when the smallest set with enough of P(best) has one member, or when all members of that set are within one
rope of each other with a joint probability that is high enough. Looking after every repeat finds chance differences that a
single look would not. With 5 folds a repeat, two equal algorithms and 9 looks at 10 to 50 splits, asking for 95 % at each
look names a best one in 1 % of comparisons whose folds are independent, in 5 % where those of a repeat correlate by 0.2 and
in 17 % where they correlate by 0.5. Asking for 99 % before 25 splits and for 97.5 % from then on stays at or below 5 % in all
three cases. Early looks are the ones that err: the scale of the posterior has a floor of rho / (1 - rho), the error of a mean
over independent repeats has none. Where the splits of different repeats correlate too, by the 0.2 that the test assumes, no
number of repeats averages that out: 7 % of such comparisons err with at most 50 splits, 10 % with at most 200 (19 % and 20 %
if each look asks for 95 %).

Without that floor, where all splits have the same test samples (rho = 0), late looks err too: the same levels name one of two
equal algorithms in 13 % of comparisons of at most 50 splits and in 25 % of at most 200. There a look asks for 99.5 %, and
from 25 splits on for a doubt that falls as 1/n: 3 % err with at most 50 splits, 4 % with at most 1000.
`stopping_errors` of `benchmarks/simulated_scores.py` computes such figures; `benchmarks/calibration.py` measures them on real
federations, whose splits repeat everything random and therefore correlate less than the worst of these cases.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from numpy.typing import ArrayLike

from fedarena.statistics.bayes import check_rope
from fedarena.statistics.joint import DRAWS, JointPosterior, joint_posterior, ranking, score_matrix
from fedarena.statistics.repeats import LEAST_REPEATS

FIRST_LOOK = 10
LATE = 25
# a smaller rho counts as none; 0.05 errs in 1 % of comparisons whose splits are independent, 0.01 in 8 %
LEAST_FLOOR = 0.05

RequiredLevel = Callable[[int, float, float], float]  # splits, threshold, rho -> the probability that a look needs


class Look(NamedTuple):
    """The state of a comparison after some splits: whether it is decided, and why or why not."""

    decided: bool
    reason: str
    best_set: tuple[str, ...] = ()  # the smallest set with `level` of P(best)
    p_equal: float = 0.0  # probability that all members of the set are within one rope of each other
    level: float = 0.95  # the probability that this look requires


def required_level(n: int, threshold: float = 0.95, rho: float = 0.2) -> float:
    """Return the probability that a decision needs after n splits: higher than the threshold of a single look.

    >>> [round(required_level(n), 3) for n in (10, 20, 25, 50)]
    [0.99, 0.99, 0.975, 0.975]
    >>> [round(required_level(n, rho=0.0), 4) for n in (10, 25, 50)]
    [0.995, 0.995, 0.9975]
    """
    if rho < LEAST_FLOOR:
        return 1 - (1 - threshold) / (10 * max(1.0, n / LATE))
    return 1 - (1 - threshold) / (5 if n < LATE else 2)


def look(
    scores: Mapping[str, ArrayLike],
    rho: float = 0.0,
    *,
    rope: float = 0.01,
    threshold: float = 0.95,
    required: RequiredLevel = required_level,
    repeats: Sequence[int] | None = None,
    draws: int = DRAWS,
    seed: int = 0,
) -> Look:
    """Return whether the scores so far decide which candidates are the best, at 10 splits or more.

    `threshold` is the probability that a single look would need; `required` returns the one that a look among several needs.

    >>> fedavg = [0.90, 0.91, 0.93, 0.92, 0.91] * 2
    >>> look({"fedavg": fedavg, "fednova": [score - 0.1 for score in fedavg]}, rho=0.2).reason
    'fedavg is the best with probability 1.000'
    >>> look({"fedavg": fedavg[:5], "fednova": fedavg[:5]}, rho=0.2).reason
    '5 splits: the first look is at 10'
    """
    check_rope(rope)
    labels, x = score_matrix(scores)
    needed = required(len(x), threshold, rho)
    if len(x) < FIRST_LOOK:
        return Look(False, f"{len(x)} splits: the first look is at {FIRST_LOOK}", level=needed)
    if repeats is not None and len(set(repeats)) < LEAST_REPEATS:
        return Look(False, f"{len(set(repeats))} repeats: the first look is at {LEAST_REPEATS}", level=needed)
    return _decide(labels, joint_posterior(x, rho, repeats), rope, needed, draws, seed)


def _decide(labels: Sequence[str], known: JointPosterior, rope: float, needed: float, draws: int, seed: int) -> Look:
    """Return whether a joint posterior of the candidates decides at a level."""
    gaps = known.gaps(draws, seed)
    found = ranking(labels, known, gaps, rope, needed)
    members = gaps[:, [labels.index(label) for label in found.best_set]]
    p_equal = float((members.max(axis=1) - members.min(axis=1) <= rope + known.tolerance).mean())
    best = found.best_set[0]
    named = f"{best} is the best with probability {found.standings[best].p_best:.3f}"
    if len(found.best_set) == 1:
        return Look(True, named, found.best_set, p_equal, needed)
    within = f"the {len(found.best_set)} that may be the best are within one rope with probability {p_equal:.3f}"
    decided = p_equal >= needed
    return Look(decided, within if decided else f"{named}, {within}", found.best_set, p_equal, needed)


def splits_to_decide(
    scores: Mapping[str, ArrayLike],
    rho: float = 0.0,
    *,
    rope: float = 0.01,
    threshold: float = 0.95,
    most: int = 1000,
    draws: int = 2**14,
    seed: int = 0,
) -> int | None:
    """Return at about how many splits a look would decide if means and spread persist; None if not with `most` splits.

    >>> fedavg = [0.90, 0.91, 0.93, 0.92, 0.91] * 2
    >>> splits_to_decide({"fedavg": fedavg, "fednova": [s - 0.1 for s in fedavg]}, rho=0.2)
    10
    >>> splits_to_decide({"fedavg": fedavg, "fednova": fedavg[::-1]}, rho=0.2, rope=0.0) is None
    True
    """
    labels, x = score_matrix(scores)
    known, n, floor = joint_posterior(x, rho), len(x), rho / (1 - rho)

    def decides(count: int) -> bool:
        shrunk = known.loadings * math.sqrt((1 / count + floor) / (1 / n + floor))
        later = JointPosterior(known.means, shrunk, count - 1, known.tolerance)
        return _decide(labels, later, rope, required_level(count, threshold, rho), draws, seed).decided

    low, high = n, max(n, FIRST_LOOK)
    while not decides(high):
        if high >= most:
            return None
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if decides(middle) else (middle, high)
    return high
