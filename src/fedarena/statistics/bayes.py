"""The correlated Bayesian t-test for paired scores (Corani & Benavoli 2015), with a region of practical equivalence, the
rope (Benavoli, Corani, Demšar, Zaffalon 2017, arXiv:1606.04316).

Scores of cross-validation are not independent, because their training sets overlap: `rho`, the share of samples in a test
fold, is their correlation. Repetitions that share nothing have rho = 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedarena.config.errors import BadValue

ROUNDING = 4 * np.finfo(float).eps  # a range of differences below this share of the largest score is rounding


class Regions(NamedTuple):
    """Probabilities that A is practically better, that both are practically equal, that B is practically better."""

    left: float
    rope: float
    right: float


@dataclass(frozen=True)
class Posterior:
    """The posterior of the mean difference, B minus A: Student's t, or a single point where `scale` is 0."""

    mean: float
    scale: float
    df: int
    samples: float = math.inf  # independent test samples behind a single point, where the scores are shares of samples

    def regions(self, rope: float = 0.01) -> Regions:
        """Return the probabilities of the three regions; a point on the border counts as equal.

        >>> tuple(round(p, 3) for p in Posterior(-0.00689, 0.009898, 14).regions(0.01))  # Nilsson et al. 2018, Figure 2
        (0.379, 0.566, 0.055)
        """
        check_rope(rope)
        if self.scale == 0:
            return Regions(float(self.mean < -rope), float(abs(self.mean) <= rope), float(self.mean > rope))
        from scipy.special import stdtr

        left = float(stdtr(self.df, (-rope - self.mean) / self.scale))
        right = float(stdtr(self.df, (self.mean - rope) / self.scale))
        return Regions(left, max(0.0, 1.0 - left - right), right)

    def interval(self, level: float = 0.9) -> tuple[float, float]:
        """Return the central credible interval.

        All splits may agree because both algorithms were right on the same test samples. An event that N independent
        samples do not show has a probability of at most 1 - alpha^(1/N) with confidence 1 - alpha, about 3/N for
        alpha = 0.05 ("rule of three", Hanley & Lippman-Hand 1983). The interval of a single point reaches that far to
        both sides.

        >>> Posterior(0.0, 0.0, 4, samples=800).interval(0.9)[1]  # 3/800 = 0.00375
        0.003737...
        """
        if self.scale == 0:
            reach = 1 - ((1 - level) / 2) ** (1 / self.samples)
            return self.mean - reach, self.mean + reach
        from scipy.special import stdtrit

        low, high = (float(stdtrit(self.df, (1 + sign * level) / 2)) * self.scale + self.mean for sign in (-1, 1))
        return low, high

    def density(self, at: ArrayLike) -> NDArray[np.float64]:
        """Return the density at these differences; a point has none."""
        z = (np.asarray(at, dtype=np.float64) - self.mean) / self.scale
        at_mean = math.exp(math.lgamma((self.df + 1) / 2) - math.lgamma(self.df / 2)) / math.sqrt(self.df * math.pi)
        heights: NDArray[np.float64] = at_mean / self.scale * (1 + z**2 / self.df) ** (-(self.df + 1) / 2)
        return heights


def posterior(
    a: Sequence[float] | ArrayLike, b: Sequence[float] | ArrayLike, rho: float = 0.0, samples: float = math.inf
) -> Posterior:
    """Return the posterior of the mean of b - a, from pairs of scores on the same splits.

    `samples` is the number of test samples of a split where the scores are shares of them, such as accuracies.

    >>> posterior([0.9, 0.8, 0.7], [0.9, 0.8, 0.7], rho=1 / 3).regions()
    Regions(left=0.0, rope=1.0, right=0.0)
    """
    x, y = paired_scores(a, b)
    check_scores(np.column_stack([x, y]), rho)
    d = y - x
    # Two equal series may differ by a rounding each; a variance of that size is none.
    variance = float(d.var(ddof=1)) if np.ptp(d) > ROUNDING * max(np.abs(x).max(), np.abs(y).max()) else 0.0
    per_split = 1 / len(d) + rho / (1 - rho)  # the variance of the mean, where that of a split is 1
    return Posterior(float(d.mean()), math.sqrt(per_split * variance), len(d) - 1, samples / per_split)


def paired_scores(a: ArrayLike, b: ArrayLike, unit: str = "split") -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return both lists of scores as arrays, or raise if they have different lengths."""
    x, y = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if x.ndim != 1 or x.shape != y.shape:
        raise BadValue(
            f"scores of shapes {x.shape} and {y.shape} are not paired",
            remedy=f"give one score per {unit} for both, in order",
        )
    return x, y


def check_rope(rope: float) -> None:
    """Raise `BadValue` if the rope is negative."""
    if rope < 0:
        raise BadValue(f"rope = {rope}", remedy="give the largest difference that does not matter, e.g. 0.01")


def check_scores(scores: NDArray[np.float64], rho: float) -> None:
    """Raise `BadValue` unless there are two splits (rows), all scores are finite and rho is a correlation below 1."""
    if len(scores) < 2:
        raise BadValue(f"{len(scores)} splits are too few", remedy="give at least 2: more folds, repeats or seeds")
    if not np.isfinite(scores).all():
        raise BadValue(
            "a score is not finite", remedy="use the accuracy recorded when the run diverged; do not drop the pair"
        )
    if not 0 <= rho < 1:
        raise BadValue(f"rho = {rho}", remedy="give the share of test samples, 1 / folds, or 0 without folds")


def verdict(better: float, equal: float, worse: float, threshold: float = 0.95) -> str:
    """Return the sign of a verdict: + better, - worse, = practically equal, ? undecided."""
    signs = [sign for sign, p in zip("+=-", (better, equal, worse), strict=True) if p > threshold]
    return signs[0] if signs else "?"
