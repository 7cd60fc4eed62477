"""How many further splits would decide an undecided pair, if mean and spread stayed as they are.

More splits shrink the scale of the posterior, sqrt(1/n + rho / (1 - rho)) times the standard deviation of the differences,
but never below sqrt(rho / (1 - rho)) times it: splits of the same samples overlap. Some pairs therefore stay undecided for
any number of repeats.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from numpy.typing import ArrayLike

from fedarena.statistics.bayes import Posterior, posterior, verdict
from fedarena.statistics.repeats import LEAST_REPEATS, repeat_posterior

MOST = 2**40  # beyond this the scale is at its floor


class Outlook(NamedTuple):
    """How many more would decide (0: decided already; None: none would), and the sign that b would then have."""

    further: int | None
    sign: str


def more_splits(
    a: ArrayLike, b: ArrayLike, rho: float = 0.0, *, rope: float = 0.01, threshold: float = 0.95
) -> Outlook:
    """Return how many further splits would decide between a and b if mean and spread of b - a persist.

    >>> more_splits([0.80, 0.82, 0.81, 0.83], [0.83, 0.82, 0.84, 0.86])
    Outlook(further=2, sign='+')
    >>> more_splits([0.80, 0.82, 0.81, 0.83], [0.83, 0.82, 0.84, 0.86], rho=0.5)
    Outlook(further=None, sign='?')
    """
    known = posterior(a, b, rho)
    n, floor = known.df + 1, rho / (1 - rho)
    variance = known.scale**2 / (1 / n + floor)

    def later(count: int) -> Posterior:
        return Posterior(known.mean, math.sqrt((1 / count + floor) * variance), count - 1)

    return _outlook(later, n, n, rope, threshold)


def more_repeats(
    a: ArrayLike, b: ArrayLike, repeats: Sequence[int], rho: float = 0.0, *, rope: float = 0.01, threshold: float = 0.95
) -> Outlook:
    """Return how many further repeats would decide where a random effect per repeat is fitted.

    >>> more_repeats([0.80, 0.82] * 3, [0.83, 0.84, 0.83, 0.86, 0.84, 0.85], repeats=[0, 0, 1, 1, 2, 2])
    Outlook(further=2, sign='+')
    """
    known = repeat_posterior(a, b, repeats, rho)
    count = known.df + 1
    between = repeat_posterior(a, b, repeats, 0.0).scale ** 2 * count
    floor = max(0.0, known.scale**2 - between / count)

    def later(number: int) -> Posterior:
        return Posterior(known.mean, math.sqrt(between / number + floor), number - 1)

    return _outlook(later, count, LEAST_REPEATS, rope, threshold)


def _outlook(later: Callable[[int], Posterior], now: int, least: int, rope: float, threshold: float) -> Outlook:
    """Search the smallest number that decides; the probability of the region that holds the mean only grows with it."""

    def sign(count: int) -> str:
        worse, equal, better = later(count).regions(rope)
        return verdict(better, equal, worse, threshold)

    low = max(now, least)
    if sign(low) != "?":
        return Outlook(low - now, sign(low))
    high = 2 * low
    while sign(high) == "?":
        low, high = high, 2 * high
        if low > MOST:
            return Outlook(None, "?")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if sign(middle) == "?" else (low, middle)
    return Outlook(high - now, sign(high))
