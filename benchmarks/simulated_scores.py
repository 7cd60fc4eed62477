"""Simulated comparisons with a known truth: how often the statistics of fedarena are right.

Scores follow the model that a function assumes, or one that breaks its assumptions in a stated way. The calibration study and
the tests call these functions; every result is deterministic for a seed.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedarena.statistics.bayes import posterior
from fedarena.statistics.hierarchical import hierarchy
from fedarena.statistics.repeats import repeat_posterior
from fedarena.statistics.sequential import FIRST_LOOK, RequiredLevel, look, required_level

Array = NDArray[np.float64]
Shared = Literal["repeat", "all"]  # which splits correlate: those of one repeat, or all of them
FOLDS = 5


def correlated_noise(rng: np.random.Generator, repeats: int, columns: int, rho: float, shared: Shared) -> Array:
    """Return repeats x folds rows of standard normal noise, correlated by rho within repeats or everywhere.

    >>> correlated_noise(np.random.default_rng(0), repeats=3, columns=2, rho=0.2, shared="repeat").shape
    (15, 2)
    """
    groups = repeats if shared == "repeat" else 1
    common = rng.standard_normal((groups, 1, columns))
    own = rng.standard_normal((groups, repeats * FOLDS // groups, columns))
    noise: Array = math.sqrt(rho) * common + math.sqrt(1 - rho) * own
    return noise.reshape(-1, columns)


class SuiteCoverage(NamedTuple):
    """Shares of simulated suites in which an interval held the truth; federations are counted one by one."""

    next: float
    average: float
    federations: float
    unshrunk: float  # of the interval of a federation alone


def suite_coverage(
    suites: int = 500,
    *,
    federations: int = 6,
    repeats: int = 2,
    rho: float = 0.2,
    tau: float = 0.01,
    spread: float = 0.02,
    level: float = 0.9,
    seed: int = 0,
) -> SuiteCoverage:
    """Return the coverage of the hierarchical posterior on simulated suites.

    True differences are normal with standard deviation `tau`; scores of 5-fold splits have standard deviations around
    `spread` (log-normal, a factor of 1.5) and correlate by `rho`.

    >>> suite_coverage(suites=2, federations=3).federations >= 0
    True
    """
    rng = np.random.default_rng(seed)
    hits: list[tuple[bool, bool, float, float]] = []
    for _ in range(suites):
        truth, further = rng.normal(0.0, tau, federations), rng.normal(0.0, tau)
        sizes = spread * np.exp(math.log(1.5) * rng.standard_normal(federations))
        scores = [
            d + s * correlated_noise(rng, repeats, 1, rho, "all")[:, 0] for d, s in zip(truth, sizes, strict=True)
        ]
        known = [posterior(np.zeros(len(d)), d, rho) for d in scores]
        found = hierarchy(known, level=level)
        shrunk = [_holds(e.interval, t) for e, t in zip(found.federations, truth, strict=True)]
        alone = [_holds(p.interval(level), t) for p, t in zip(known, truth, strict=True)]
        hits.append(
            (
                _holds(found.next.interval, further),
                _holds(found.average.interval, 0.0),
                float(np.mean(shrunk)),
                float(np.mean(alone)),
            )
        )
    return SuiteCoverage(*np.mean(hits, axis=0).tolist())


def _holds(interval: tuple[float, float], truth: float) -> bool:
    return bool(interval[0] <= truth <= interval[1])


def repeat_coverage(
    comparisons: int = 1000,
    *,
    repeats: int = 5,
    rho: float = 0.2,
    effect: float = 1.0,
    level: float = 0.9,
    seed: int = 0,
) -> tuple[float, float]:
    """Return the coverage of the intervals with and without a random effect per repeat.

    `effect` is the standard deviation of what the folds of a repeat share, in standard deviations of a score.

    >>> with_effect, without = repeat_coverage(200, effect=2.0)
    >>> with_effect > without
    True
    """
    rng = np.random.default_rng(seed)
    names = np.repeat(np.arange(repeats), FOLDS)
    zeros = np.zeros(len(names))
    hits = np.zeros(2)
    for _ in range(comparisons):
        d = correlated_noise(rng, repeats, 1, rho, "all")[:, 0] + effect * rng.standard_normal(repeats)[names]
        fitted = repeat_posterior(zeros, d, names.tolist(), rho)
        hits += [_holds(fitted.interval(level), 0.0), _holds(posterior(zeros, d, rho).interval(level), 0.0)]
    with_effect, without = hits / comparisons
    return float(with_effect), float(without)


class StoppingErrors(NamedTuple):
    """Shares of simulated comparisons, and the mean number of splits at the end."""

    named: float  # one algorithm was named the best
    wrong_best: float  # ... that is not the best one, or not the only one
    wrong_equal: float  # algorithms more than one rope apart were called equal
    decided: float
    splits: float


def single_look_level(n: int, threshold: float, rho: float) -> float:
    """Return the probability that a single look needs, which is too low where there are several looks."""
    return threshold


def stopping_errors(
    comparisons: int = 500,
    *,
    differences: tuple[float, ...] = (0.0, 0.0),
    spread: float = 0.02,
    true_rho: float = 0.2,
    shared: Shared = "repeat",
    assumed_rho: float = 0.2,
    rope: float = 0.01,
    required: RequiredLevel = required_level,
    most_repeats: int = 10,
    draws: int = 2**11,
    seed: int = 0,
) -> StoppingErrors:
    """Return how often stopping when decided ends in a wrong decision; `differences` are the true mean scores.

    The test assumes a correlation of `assumed_rho` (1/5 with 5 folds); the scores have `true_rho`. `required` is the rule for
    the probability that a look needs; `single_look_level` shows why it is not the same at every look.

    >>> stopping_errors(2, differences=(0.0, 0.5)).wrong_best
    0.0
    """
    rng = np.random.default_rng(seed)
    means = np.asarray(differences)
    labels = [str(i) for i in range(len(means))]
    ends = np.zeros(5)
    for _ in range(comparisons):
        noise = correlated_noise(rng, most_repeats, len(means), true_rho, shared)
        scores = means + spread / math.sqrt(2) * noise  # differences of two have this spread
        for n in range(FIRST_LOOK, len(scores) + 1, FOLDS):
            seen = look(
                dict(zip(labels, scores[:n].T, strict=True)),
                assumed_rho,
                rope=rope,
                required=required,
                draws=draws,
                seed=seed,
            )
            if seen.decided:
                break
        chosen = means[[labels.index(label) for label in seen.best_set]]
        named = seen.decided and len(chosen) == 1
        only_best = chosen[0] == means.max() and (means == means.max()).sum() == 1
        called_equal = seen.decided and not named
        ends += [named, named and not only_best, called_equal and np.ptp(chosen) > rope, seen.decided, n]
    return StoppingErrors(*(ends / comparisons).tolist())
