"""The difference of two algorithms against a numeric setting that varies over federations: a straight line with its band.

The mean difference d_j on federation j is modelled as Normal(a + b z_j, tau^2 + v_j): z_j is the setting (or its logarithm),
tau the standard deviation between federations around the line, and v_j the variance of the normal distribution whose 90 %
interval is that of the federation's posterior. Priors: flat for a and b, half-Cauchy for tau with the scale that the
hierarchical test uses. Given tau the line is normal in closed form; tau is integrated by the trapezoidal rule on log tau.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedarena.config.errors import BadValue
from fedarena.statistics.bayes import Posterior, Regions

Array = NDArray[np.float64]
Distributions = Callable[[Array], Array]
Answer = Literal["left", "rope", "right"]
ANSWERS: tuple[Answer, ...] = ("left", "rope", "right")
LEAST_VALUES = 3  # different values of a setting that show a trend
WIDE_RANGE = 10.0  # largest to smallest value from which the axis is logarithmic
POINTS = 81  # of the line
STEPS = 160  # of log tau


@dataclass(frozen=True)
class Change:
    """A value of the setting at which the most probable answer changes, from below it to above it."""

    at: float
    before: Answer
    after: Answer


@dataclass(frozen=True, eq=False)
class Trend:
    """The fitted line at `x`: posterior mean, central credible interval and the probabilities of the three regions."""

    x: Array
    mean: Array
    low: Array
    high: Array
    regions: tuple[Regions, ...]
    logarithmic: bool  # the line is straight over log x

    @property
    def changes(self) -> list[Change]:
        """Return where the most probable of the three answers changes."""
        answers = [ANSWERS[int(np.argmax(regions))] for regions in self.regions]
        found = []
        for k in range(1, len(answers)):
            if answers[k] != answers[k - 1]:
                below, above = self.x[k - 1], self.x[k]
                middle = math.sqrt(below * above) if self.logarithmic else (below + above) / 2
                found.append(Change(float(middle), answers[k - 1], answers[k]))
        return found


def fit_trend(
    known: Sequence[Posterior], at: ArrayLike, *, rope: float = 0.01, level: float = 0.9, points: int = POINTS
) -> Trend:
    """Return the line through the differences of several federations over a setting with at least 3 different values.

    >>> line = fit_trend([Posterior(0.04, 0, 4), Posterior(0.02, 0, 4), Posterior(0.0, 0, 4)], [1, 2, 3])
    >>> [round(change.at, 1) for change in line.changes], line.changes[0].before, line.changes[0].after
    ([2.5], 'right', 'rope')
    """
    x = np.asarray(at, dtype=np.float64)
    if x.shape != (len(known),) or not np.isfinite(x).all() or len(np.unique(x)) < LEAST_VALUES:
        raise BadValue(
            "a trend needs one finite value per federation",
            remedy=f"give at least {LEAST_VALUES} different values",
        )
    logarithmic = bool(x.min() > 0 and x.max() / x.min() >= WIDE_RANGE)
    line = np.linspace(0.0, 1.0, points)
    z = np.log(x) if logarithmic else x
    start, width = float(z.min()), float(np.ptp(z))
    shown = start + width * line
    mean, covariance, weight = _lines((z - start) / width, known)
    design = np.stack([np.ones(points), line], axis=1)
    centres = mean @ design.T  # tau x points
    spreads = np.sqrt(np.maximum(np.einsum("pi,tij,pj->tp", design, covariance, design), 0.0))
    below = _mixtures(centres, spreads, weight)
    left, right = below(np.full(points, -rope)), 1 - below(np.full(points, rope))
    tail = (1 - level) / 2
    return Trend(
        np.exp(shown) if logarithmic else shown,
        weight @ centres,
        _quantiles(below, tail, centres, spreads),
        _quantiles(below, 1 - tail, centres, spreads),
        tuple(Regions(float(a), float(max(0.0, 1 - a - b)), float(b)) for a, b in zip(left, right, strict=True)),
        logarithmic,
    )


def _variances(known: Sequence[Posterior]) -> Array:
    """Return the variances of the normal distributions with the 90 % intervals of these posteriors."""
    from scipy import stats

    factor = [float(stats.t.ppf(0.95, p.df) / stats.norm.ppf(0.95)) for p in known]
    return np.array([(f * p.scale) ** 2 for f, p in zip(factor, known, strict=True)])


def _lines(z: Array, known: Sequence[Posterior]) -> tuple[Array, Array, Array]:
    """Return for every tau the mean (intercept and slope), its covariance and the weight of that tau."""
    d, v = np.array([p.mean for p in known]), _variances(known)
    design = np.stack([np.ones_like(z), z], axis=1)
    size = max(float(d.std(ddof=1)), float(np.median(np.sqrt(v))))
    if size <= 8 * np.finfo(float).eps * float(np.abs(d).max()):  # the same everywhere, without spread
        return np.array([[float(d.mean()), 0.0]]), np.zeros((1, 2, 2)), np.ones(1)
    log_tau = np.linspace(math.log(size) - 14, math.log(size) + 10, STEPS)
    tau = np.exp(log_tau)
    precision = 1 / (tau[:, None] ** 2 + v)
    information = np.einsum("ji,tj,jk->tik", design, precision, design)
    mean = np.linalg.solve(information, np.einsum("ji,tj,j->ti", design, precision, d)[:, :, None])[:, :, 0]
    residual = d - mean @ design.T
    log_weight = 0.5 * np.log(precision).sum(axis=1) - 0.5 * np.linalg.slogdet(information)[1]
    log_weight += -0.5 * (precision * residual**2).sum(axis=1) + log_tau - np.log1p((tau / size) ** 2)
    weight = np.exp(log_weight - log_weight.max())
    return mean, np.linalg.inv(information), weight / weight.sum()


def _mixtures(centres: Array, spreads: Array, weight: Array) -> Distributions:
    """Return the distribution functions of mixtures of normals over tau, one for every point of the line."""
    from scipy.special import ndtr

    widths = np.maximum(spreads, np.finfo(float).tiny)

    def below(at: Array) -> Array:
        with np.errstate(over="ignore"):
            shares: Array = weight @ ndtr((at - centres) / widths)
        return shares

    return below


def _quantiles(below: Distributions, share: float, centres: Array, spreads: Array) -> Array:
    """Return where the distribution functions reach this share, by bisection."""
    low, high = (centres - 50 * spreads).min(axis=0), (centres + 50 * spreads).max(axis=0)
    middle: Array = (low + high) / 2
    for _ in range(200):
        under = below(middle) < share
        low, high = np.where(under, middle, low), np.where(under, high, middle)
        middle = (low + high) / 2
    return middle
