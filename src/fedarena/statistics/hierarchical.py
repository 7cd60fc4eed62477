"""One pair of algorithms on several federations: the next federation, the average, and each one with shrinkage.

The mean difference d_j on federation j has the likelihood t(n_j - 1, delta_j, s_j) of the correlated t-test, where s_j is
the scale of its posterior. True differences vary between federations, delta_j ~ Normal(mu0, tau^2), with a flat prior for
mu0 and a half-Cauchy prior for tau whose scale is max(standard deviation of d_j, median s_j) (Gelman 2006).

Everything is integrated on a grid. Student's t is a mixture of normals over a precision w, so d_j given mu0 and tau is
a one-dimensional mixture, and delta_j given all of them is normal. log tau and log w are integrated by the trapezoidal
rule, mu0 on a grid around its mode for every tau whose step grows with the distance; for analytic functions that decay, as
these do, the rule converges exponentially (Trefethen & Weideman 2014), and its indefinite form by sine integrals
(Stenger 1993) gives the distribution function of mu0.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedarena.config.errors import BadValue
from fedarena.statistics.bayes import Posterior, Regions, check_rope
from fedarena.statistics.repeats import paired_posterior

Array = NDArray[np.float64]
Distribution = Callable[[float], float]
LEAST_FEDERATIONS = 3
NEGLIGIBLE = 1e-7  # grid points with a smaller share of the largest weight are left out
# a normal at least this many steps wide is summed on a grid to 1e-4 of its part; narrower ones are widened
SMOOTH = 0.7
FEW = 10_000  # parts of a mixture that say roughly where its quantiles are


class Estimate(NamedTuple):
    """A posterior mean, a central credible interval, and the probabilities of the three regions."""

    mean: float
    interval: tuple[float, float]
    regions: Regions


@dataclass(frozen=True)
class Hierarchy:
    """The posteriors of one pair of algorithms on several federations, as differences B minus A."""

    next: Estimate  # a further federation like these
    average: Estimate  # mu0, the mean over all federations like these
    federations: tuple[Estimate, ...]  # every federation, shrunk towards the others, in the order given
    tau: float  # posterior median of the standard deviation between federations


@dataclass(frozen=True, eq=False)
class _Grid:
    """Points of the posterior of (mu0, tau) and their weights, which add up to 1."""

    mode: Array  # tau: where the conditional density of mu0 is highest
    width: Array  # tau: mu0 = mode + width sinh(step k)
    step: Array  # tau
    mu0: Array  # tau x mu0
    tau: Array  # tau
    weight: Array  # tau x mu0

    @property
    def points(self) -> tuple[Array, Array, Array, Array]:
        """Return mu0, tau, weight and the distance to the next mu0 of all points that matter."""
        kept = self.weight > NEGLIGIBLE * self.weight.max()
        tau = np.broadcast_to(self.tau[:, None], kept.shape)[kept]
        distance = np.hypot(self.mu0 - self.mode[:, None], self.width[:, None]) * self.step[:, None]
        weight = self.weight[kept]
        return self.mu0[kept], tau, weight / weight.sum(), distance[kept]


def hierarchy(known: Sequence[Posterior], *, rope: float = 0.01, level: float = 0.9, fineness: int = 1) -> Hierarchy:
    """Return the hierarchical posterior of one pair from its posterior on each of at least 3 federations.

    `fineness` divides the steps of all grids; with 1 probabilities are accurate to about 1e-5.

    >>> found = hierarchy([Posterior(0.02, 0.01, 9), Posterior(0.04, 0.01, 9), Posterior(0.03, 0.01, 9)])
    >>> found.average.regions.right > 0.9, found.next.regions.right < found.average.regions.right
    (True, True)
    >>> 0.02 < found.federations[0].mean < 0.03  # shrunk towards the others
    True
    """
    if len(known) < LEAST_FEDERATIONS:
        raise BadValue(
            f"{len(known)} federations do not show how federations differ",
            remedy=f"compare on at least {LEAST_FEDERATIONS}",
        )
    d, s = np.array([p.mean for p in known]), np.array([p.scale for p in known])
    size = max(float(d.std(ddof=1)), float(np.median(s)))
    if size <= 8 * np.finfo(float).eps * float(np.abs(d).max()):  # the same everywhere, without spread
        same = _alone(Posterior(float(d.mean()), 0.0, 1), rope, level)
        return Hierarchy(same, same, tuple(_alone(p, rope, level) for p in known), 0.0)
    mixtures = [_Mixture.of(p, fineness) for p in known]
    grid = _integrate(mixtures, size, fineness)
    mean = float(np.sum(grid.weight * grid.mu0))
    spread = math.sqrt(np.sum(grid.weight * (grid.mu0 - mean) ** 2))
    further = math.sqrt(spread**2 + np.sum(grid.weight * grid.tau[:, None] ** 2))
    return Hierarchy(
        _estimate(_next(grid), mean, further, rope, level),
        _estimate(_average(grid), mean, spread, rope, level),
        tuple(_shrunk(grid, mixture, rope, level) for mixture in mixtures),
        _median_tau(grid),
    )


def shrunk_gains(
    differences: ArrayLike,
    rho: float = 0.0,
    *,
    rope: float = 0.01,
    level: float = 0.9,
    repeats: Sequence[int] | None = None,
    shrink: bool = True,
) -> list[Estimate]:
    """Return every client's gain (regions: loss, practically none, gain) from splits x clients of score differences.

    Clients are shrunk towards each other as federations are; fewer than 3 are not. A split without test samples of a client
    is NaN. P(gain > rope) is `regions.right`. `repeats` names the repeat of every split where its folds share something
    random; `shrink=False` uses only the splits of each client. A client whose difference is the same in all splits,
    as happens by chance with a few test samples, has the median spread of the clients that vary: it is not certain.

    >>> gains = shrunk_gains([[0.05, 0.01, 0.02], [0.07, 0.00, 0.04], [0.06, 0.02, 0.03], [0.06, 0.01, 0.03]])
    >>> [round(client.mean, 3) for client in gains]
    [0.058, 0.012, 0.03]
    """
    x = np.asarray(differences, dtype=np.float64)
    if x.ndim != 2 or x.shape[1] == 0:
        raise BadValue(f"differences of shape {x.shape}", remedy="give a matrix of splits x clients")
    known_splits = [np.flatnonzero(~np.isnan(column)) for column in x.T]
    few = next((client for client, splits in enumerate(known_splits) if len(splits) < 2), None)
    if few is not None:
        raise BadValue(f"client {few} has fewer than 2 splits with test samples", remedy="leave it out, or add splits")
    known = [
        paired_posterior(
            np.zeros(len(splits)),
            column[splits],
            rho,
            None if repeats is None else [repeats[i] for i in splits.tolist()],
        )
        for column, splits in zip(x.T, known_splits, strict=True)
    ]
    spreads = [p.scale for p in known if p.scale > 0]
    if spreads:
        known = [p if p.scale > 0 else Posterior(p.mean, float(np.median(spreads)), p.df) for p in known]
    if len(known) < LEAST_FEDERATIONS or not shrink:
        return [_alone(p, rope, level) for p in known]
    return list(hierarchy(known, rope=rope, level=level).federations)


@dataclass(frozen=True, eq=False)
class _Mixture:
    """The likelihood of one federation: a normal with these variances and weights around its mean difference."""

    mean: float
    variance: Array
    weight: Array

    @classmethod
    def of(cls, known: Posterior, fineness: int) -> _Mixture:
        """Integrate the precision w ~ Gamma(df/2, df/2) of a Student t on a grid of log w."""
        from scipy.special import gammaln

        if known.scale == 0:
            return cls(known.mean, np.zeros(1), np.ones(1))
        half = known.df / 2
        step = 0.7 / math.sqrt(half + 0.5) / fineness
        low = -(50 / (known.df + 1) + 9 / math.sqrt(half) + 3)
        log_w = np.arange(low, math.log1p(9 / math.sqrt(half) + 9 / half), step)
        log_weight = half * math.log(half) - gammaln(half) + half * (log_w - np.exp(log_w))
        weight = step * np.exp(log_weight)
        kept = weight > 0
        return cls(known.mean, known.scale**2 * np.exp(-log_w[kept]), weight[kept] / weight.sum())

    def density(self, mu0: Array, tau: Array) -> tuple[Array, Array]:
        """Return the density of the mean difference given mu0 and tau, and its mean precision, by row of tau."""
        variance = tau[:, None, None] ** 2 + self.variance
        parts = self.weight / np.sqrt(2 * math.pi * variance)
        parts = parts * np.exp(-((mu0 - self.mean) ** 2)[:, :, None] / (2 * variance))
        density = parts.sum(axis=2)
        return density, (parts / variance).sum(axis=2) / np.maximum(density, np.finfo(float).tiny)


def _log_posterior(mixtures: Sequence[_Mixture], mu0: Array, tau: Array) -> Array:
    with np.errstate(divide="ignore"):
        total: Array = sum((np.log(mixture.density(mu0, tau)[0]) for mixture in mixtures), np.zeros_like(mu0))
    return total


def _integrate(mixtures: Sequence[_Mixture], size: float, fineness: int) -> _Grid:
    """Return the grid of mu0 and tau that holds all but a negligible part of the posterior."""
    scales = np.array([math.sqrt(float(np.min(m.variance))) for m in mixtures])
    low = math.log(size * 1e-6 if scales.min() == 0 else max(1e-2 * scales.min(), 1e-9 * size))
    step = min(0.25, 1 / math.sqrt(2 * len(mixtures))) / fineness
    log_tau = np.arange(low, math.log(size) + 7, step)
    tau = np.exp(log_tau)
    step_weight = step * tau * 1 / (1 + (tau / size) ** 2)
    step_weight[0] /= 1 - math.exp(-step)  # below the first point the density is constant
    mode, width, height = _modes(mixtures, tau)
    rough = np.log(step_weight * width) + height
    kept = rough > rough.max() - 22
    tau, mode, width, step_weight = tau[kept], mode[kept], width[kept], step_weight[kept]
    d = np.array([mixture.mean for mixture in mixtures])
    reach = np.abs(d - mode[:, None]).max(axis=1) + 60 * np.sqrt(tau**2 + size**2)
    half = 60 * fineness
    t = np.arcsinh(reach / width)[:, None] * np.linspace(-1, 1, 2 * half + 1)
    mu0 = mode[:, None] + width[:, None] * np.sinh(t)
    log_weight = _log_posterior(mixtures, mu0, tau) + np.log(np.cosh(t))
    log_weight += np.log(step_weight * width * (t[:, 1] - t[:, 0]))[:, None]
    weight = np.exp(log_weight - log_weight.max())
    return _Grid(mode, width, t[:, 1] - t[:, 0], mu0, tau, weight / weight.sum())


def _modes(mixtures: Sequence[_Mixture], tau: Array) -> tuple[Array, Array, Array]:
    """Return the mode of mu0 for every tau, its width there and the log likelihood, by EM from the best federation."""
    d = np.array([mixture.mean for mixture in mixtures])
    starts = np.append(d, np.median(d))
    height = _log_posterior(mixtures, np.broadcast_to(starts, (len(tau), len(starts))), tau)
    mode = starts[height.argmax(axis=1)]
    for _ in range(30):
        precision = np.stack([m.density(mode[:, None], tau)[1][:, 0] for m in mixtures], axis=1)
        mode = (precision * d).sum(axis=1) / precision.sum(axis=1)
    return mode, 1 / np.sqrt(precision.sum(axis=1)), _log_posterior(mixtures, mode[:, None], tau)[:, 0]


def _next(grid: _Grid) -> Distribution:
    """Return the distribution function of the difference on a further federation."""
    from scipy.special import ndtr

    mu0, tau, weight, distance = grid.points
    width = np.maximum(tau, SMOOTH * distance)
    return lambda x: float(weight @ ndtr((x - mu0) / width))


def _average(grid: _Grid) -> Distribution:
    """Return the distribution function of mu0, integrating the grid up to a point by sine integrals."""
    from scipy.special import sici

    half = grid.mu0.shape[1] // 2
    index = np.arange(-half, half + 1)

    def below(x: float) -> float:
        at = np.arcsinh((x - grid.mode) / grid.width) / grid.step
        share = 0.5 + sici(math.pi * (at[:, None] - index))[0] / math.pi
        return float(np.sum(grid.weight * share))

    return below


def _shrunk(grid: _Grid, mixture: _Mixture, rope: float, level: float) -> Estimate:
    """Return the posterior of one federation: given mu0, tau and its precision it is normal."""
    from scipy.special import ndtr

    if not mixture.variance.any():
        return _alone(Posterior(mixture.mean, 0.0, 1), rope, level)
    mu0, tau, points, distance = (array[:, None] for array in grid.points)
    total = tau**2 + mixture.variance
    weight = mixture.weight / np.sqrt(total) * np.exp(-((mu0 - mixture.mean) ** 2) / (2 * total))
    weight *= points / weight.sum(axis=1, keepdims=True)
    used = weight > NEGLIGIBLE * weight.max()
    pull = mixture.variance / total  # towards mu0
    centre = (mixture.mean + pull * (mu0 - mixture.mean))[used]
    width = np.maximum(tau * np.sqrt(pull), SMOOTH * distance * pull)[used]
    weight = weight[used] / weight[used].sum()
    mean = float(weight @ centre)
    spread = math.sqrt(weight @ (width**2 + (centre - mean) ** 2))
    some = slice(None, None, math.ceil(len(weight) / FEW))
    part = weight[some] / weight[some].sum(), centre[some].copy(), width[some].copy()
    return _estimate(
        lambda x: float(weight @ ndtr((x - centre) / width)),
        mean,
        spread,
        rope,
        level,
        rough=lambda x: float(part[0] @ ndtr((x - part[1]) / part[2])),
    )


def _alone(known: Posterior, rope: float, level: float) -> Estimate:
    return Estimate(known.mean, known.interval(level), known.regions(rope))


def _estimate(
    below: Distribution, mean: float, spread: float, rope: float, level: float, rough: Distribution | None = None
) -> Estimate:
    """Return regions and interval of a distribution function with this mean and standard deviation.

    `rough` is nearly the same function and quicker: its quantiles say where those of the other one are.
    """
    check_rope(rope)
    left, right = below(-rope), 1 - below(rope)
    tail = (1 - level) / 2

    def quantile(share: float) -> float:
        start, reach, tolerance = mean, 2 * spread, 1e-6 * spread
        if rough is not None:
            start, reach = _quantile(rough, share, start, reach, tolerance), 0.01 * spread
        return _quantile(below, share, start, reach, tolerance)

    return Estimate(mean, (quantile(tail), quantile(1 - tail)), Regions(left, max(0.0, 1 - left - right), right))


def _quantile(below: Distribution, share: float, start: float, reach: float, tolerance: float) -> float:
    """Return where the distribution function has this value, searching from a point outwards."""
    from scipy.optimize import brentq

    below = functools.cache(below)  # the search begins with the ends of its interval
    low = high = reach
    while below(start - low) > share:
        low *= 2
    while below(start + high) < share:
        high *= 2
    return float(brentq(lambda x: below(x) - share, start - low, start + high, xtol=tolerance))


def _median_tau(grid: _Grid) -> float:
    weight = grid.weight.sum(axis=1)
    return float(np.exp(np.interp(0.5, np.cumsum(weight) - weight / 2, np.log(grid.tau))))
