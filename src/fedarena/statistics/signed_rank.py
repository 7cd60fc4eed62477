"""Federations as single observations: the Bayesian signed-rank test, and mean ranks.

The test (Benavoli, Mangili, Corani, Zaffalon & Ruggeri, ICML 2014; with a rope: Benavoli, Corani, Demšar & Zaffalon 2017)
assumes no distribution of the differences. A Dirichlet process with one prior observation at 0 weights the federations at
random; a draw goes to the region that holds the largest share of all weighted pairs of differences.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedarena.config.errors import BadValue
from fedarena.statistics.bayes import Regions, check_rope, check_scores, paired_scores

Array = NDArray[np.float64]
DRAWS = 100_000
PRIOR = 0.5
BLOCK = 2**22  # numbers held at once


def signed_rank(a: ArrayLike, b: ArrayLike, rope: float = 0.01, *, draws: int = DRAWS, seed: int = 0) -> Regions:
    """Return the probabilities that a is practically better, equal, or worse than b, from one score per federation.

    One prior observation of no difference has the weight of half a federation. Without a rope there
    are two answers; ties share.

    >>> tuple(round(p, 1) for p in signed_rank([0.80, 0.82, 0.81, 0.85], [0.85, 0.88, 0.84, 0.90]))
    (0.0, 0.0, 1.0)
    """
    x, y = paired_scores(a, b, "federation")
    check_scores(np.column_stack([x, y]), 0.0)
    check_rope(rope)
    d = np.append(0.0, y - x)
    sums = d[:, None] + d
    above, below = _exceeds(sums, 2 * rope), _exceeds(-sums, 2 * rope)
    rng = np.random.default_rng(seed)
    alpha = np.append(PRIOR, np.ones(len(x)))
    wins = np.zeros(3)
    left = draws
    while left:
        weights = rng.dirichlet(alpha, min(left, max(1, BLOCK // len(d))))
        wins += _wins(weights, below, above, with_rope=rope > 0)
        left -= len(weights)
    return Regions(*(wins / draws).tolist())


def _exceeds(values: Array, limit: float) -> Array:
    """Return 1 above the limit, 1/2 at the limit, 0 below it."""
    shares: Array = (values > limit) + 0.5 * (values == limit)
    return shares


def _wins(weights: Array, below: Array, above: Array, *, with_rope: bool) -> Array:
    """Return how many draws each region wins; regions that tie share a draw."""
    right = ((weights @ above) * weights).sum(axis=1)
    left = ((weights @ below) * weights).sum(axis=1) if with_rope else 1 - right
    shares = np.stack([left, 1 - left - right if with_rope else np.full(len(left), -1.0), right], axis=1)
    largest = shares >= shares.max(axis=1, keepdims=True) - 1e-12
    wins: Array = (largest / largest.sum(axis=1, keepdims=True)).sum(axis=0)
    return wins


def mean_ranks(scores: ArrayLike) -> Array:
    """Return the mean rank of every algorithm over federations x algorithms; 1 is the best, ties get their mean rank.

    >>> mean_ranks([[0.9, 0.8, 0.8], [0.7, 0.9, 0.6]]).tolist()
    [1.5, 1.75, 2.75]
    """
    from scipy.stats import rankdata

    x = np.asarray(scores, dtype=np.float64)
    if x.ndim != 2 or x.size == 0:
        raise BadValue(f"scores of shape {x.shape}", remedy="give a matrix of federations x algorithms")
    if not np.isfinite(x).all():
        raise BadValue("a score is not finite", remedy="use the score recorded when the run diverged")
    ranks: Array = rankdata(-x, axis=1).mean(axis=0)
    return ranks
