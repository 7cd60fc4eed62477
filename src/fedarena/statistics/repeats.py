"""Verdicts where the folds of a repeat share something random: their partition, initial weights or schedule.

The difference of two algorithms on fold f of repeat r is modelled as

    d_rf = mu + g + b_r + e_rf

b_r ~ Normal(0, sigma_b^2) is the effect of all that the folds of repeat r share. g ~ Normal(0, rho sigma^2) and
e_rf ~ Normal(0, (1 - rho) sigma^2) are the error of cross-validation: training sets overlap, so any two splits correlate
by rho, those of different repeats too (the assumption of the correlated t-test, Nadeau & Bengio 2003). With R repeats of
k folds, s_R^2 the sample variance of the R repeat means and s_w^2 the pooled variance within repeats,

    E[s_R^2] = sigma_b^2 + (1 - rho) sigma^2 / k,     E[s_w^2] = (1 - rho) sigma^2,
    Var(mean) = rho sigma^2 + (sigma_b^2 + (1 - rho) sigma^2 / k) / R = E[s_R^2 / R + rho / (1 - rho) s_w^2].

The mean, s_R^2 and s_w^2 are independent, and the last two are scaled chi-squares with R - 1 and R (k - 1) degrees of
freedom: the statistic is that of Behrens and Fisher. Its tails are never heavier than those of Student's t with the
smaller of the two numbers of degrees (Mickey & Brown 1966, Annals of Mathematical Statistics 37), so that

    mu ~ t(R - 1, mean, sqrt(s_R^2 / R + rho / (1 - rho) s_w^2))

covers at least as often as it claims, for any sigma_b. Repeats of unequal size weigh equally.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from fedarena.statistics.bayes import Posterior, paired_scores, posterior
from fedarena.statistics.joint import joint_posterior

LEAST_REPEATS = 5


def repeat_posterior(a: ArrayLike, b: ArrayLike, repeats: Sequence[int], rho: float = 0.0) -> Posterior:
    """Return the posterior of the mean of b - a with a random effect per repeat; `repeats` names that of every split.

    >>> known = repeat_posterior([0.5] * 4, [0.51, 0.53, 0.55, 0.57], repeats=[0, 0, 1, 1], rho=0.5)
    >>> round(known.mean, 4), round(known.scale, 4), known.df
    (0.04, 0.0245, 1)
    """
    return joint_posterior(np.column_stack(paired_scores(a, b)), rho, repeats).pair(0, 1)


def paired_posterior(
    a: ArrayLike, b: ArrayLike, rho: float = 0.0, repeats: Sequence[int] | None = None, samples: float = math.inf
) -> Posterior:
    """Return the posterior of the mean of b - a; `repeats`, if given, adds a random effect per repeat."""
    known = posterior(a, b, rho, samples)
    return known if repeats is None else replace(repeat_posterior(a, b, repeats, rho), samples=known.samples)
