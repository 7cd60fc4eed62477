"""Min-Max and Min-Sum: Shejwalkar, Houmansadr, "Manipulating the Byzantine: Optimizing Model Poisoning Attacks and
Defenses for Federated Learning", NDSS 2021."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedarena.attacks.base import Attack, SeenUpdates, Updates
from fedarena.config.registry import register


@dataclass(frozen=True)
class BoundedDistance(Attack):
    """All attackers send mean + gamma p of the updates they know, with the largest gamma that a distance allows."""

    # p is minus their standard deviation, minus their mean scaled to length 1, or minus the sign of their mean
    direction: Literal["std", "unit", "sign"] = "std"

    def updates(self, seen: SeenUpdates, rng: np.random.Generator) -> Updates:
        """Delta -> mu + gamma p."""
        known, mean = seen.known, seen.known.mean(axis=0)
        ways = {"std": known.std(axis=0), "unit": mean / (np.linalg.norm(mean) or 1.0), "sign": np.sign(mean)}
        p = -ways[self.direction]
        return seen.each(mean + self.largest_step(known, mean, p) * p)

    def largest_step(self, known: Updates, mean: NDArray[np.float64], p: NDArray[np.float64]) -> float:
        """Return the largest gamma that the attack allows itself."""
        raise NotImplementedError


@register("attack", "min_max", paper="Shejwalkar and Houmansadr 2021, NDSS")
@dataclass(frozen=True)
class MinMax(BoundedDistance):
    """All attackers send mean + gamma p, no further from any known update than the two furthest of these are apart."""

    def largest_step(self, known: Updates, mean: NDArray[np.float64], p: NDArray[np.float64]) -> float:
        """Return the least over i of the gamma with |mu + gamma p - u_i| = max |u_j - u_k|."""
        furthest = squared_distances(known).max()
        return min(_root(p, mean - u, furthest) for u in known)


@register("attack", "min_sum", paper="Shejwalkar and Houmansadr 2021, NDSS")
@dataclass(frozen=True)
class MinSum(BoundedDistance):
    """All attackers send mean + gamma p, with no larger sum of squared distances to the known updates than one of these."""

    def largest_step(self, known: Updates, mean: NDArray[np.float64], p: NDArray[np.float64]) -> float:
        """Return the gamma with sum |mu + gamma p - u_i|^2 = max over k of sum |u_k - u_i|^2."""
        allowed = squared_distances(known).sum(axis=1).max() - ((known - mean) ** 2).sum()  # p (mu - u_i) sums to 0
        square = len(known) * (p**2).sum()
        return float(np.sqrt(max(allowed, 0.0) / square)) if square else 0.0


def squared_distances(updates: Updates) -> Updates:
    """Return the squared distances between all pairs of updates."""
    return np.stack([((updates - one) ** 2).sum(axis=1) for one in updates])


def _root(p: NDArray[np.float64], start: NDArray[np.float64], square: float) -> float:
    """Return the gamma >= 0 with |start + gamma p|^2 = square."""
    a, b, c = (p**2).sum(), (p * start).sum(), (start**2).sum() - square
    return float((-b + np.sqrt(max(b * b - a * c, 0.0))) / a) if a else 0.0
