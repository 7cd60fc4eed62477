"""Krum and Multi-Krum: Blanchard, El Mhamdi, Guerraoui, Stainer, "Machine Learning with Adversaries: Byzantine Tolerant
Gradient Descent", 2017, arXiv:1703.02757."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Ge

from fedarena.algorithms.base import Vector
from fedarena.algorithms.robust import RobustAggregation
from fedarena.config.registry import register


@register("algorithm", "krum", paper="Blanchard et al. 2017, arXiv:1703.02757")
@dataclass(frozen=True)
class Krum(RobustAggregation):
    """The step of the client that is nearest to its m - f - 2 nearest others; f = `attackers` of m clients are tolerated.

    >>> import fedarena as fa
    >>> attack = {"name": "gaussian", "clients": [0, 1]}
    >>> federation = dict(clients=12, share=1.0, partition="iid", attack=attack, out=False)
    >>> run = fa.run("digits", algorithm=fa.Krum(attackers=2), rounds=10, **federation)
    >>> run.final.accuracy > 0.5
    True
    """

    attackers: Annotated[int, Ge(0)] = 1

    renamed: ClassVar[dict[str, str]] = {"liars": "attackers"}  # in experiments of earlier versions

    def centre(self, deltas: Vector) -> Vector:
        """Return the step with the least sum of squared distances; of several, that of the lowest client."""
        chosen: Vector = deltas[int(krum_scores(deltas, self.attackers).argmin())]
        return chosen


@register("algorithm", "multikrum", paper="Blanchard et al. 2017, arXiv:1703.02757")
@dataclass(frozen=True)
class MultiKrum(RobustAggregation):
    """The mean of the `keep` steps that Krum prefers, by default of all m clients but f = `attackers`.

    >>> import fedarena as fa
    >>> attack = {"name": "gaussian", "clients": [0, 1]}
    >>> federation = dict(clients=12, share=1.0, partition="iid", attack=attack, out=False)
    >>> run = fa.run("digits", algorithm=fa.MultiKrum(attackers=2), rounds=10, **federation)
    >>> run.final.accuracy > 0.5
    True
    """

    attackers: Annotated[int, Ge(0)] = 1
    keep: Annotated[int, Ge(1)] | None = None

    def centre(self, deltas: Vector) -> Vector:
        """Return the mean of the steps with the least sums of squared distances, added in the order of clients."""
        keep = max(len(deltas) - self.attackers, 1) if self.keep is None else self.keep
        chosen = np.sort(krum_scores(deltas, self.attackers).argsort(kind="stable")[:keep])
        mean: Vector = deltas[chosen].mean(axis=0)
        return mean


def krum_scores(deltas: Vector, attackers: int) -> Vector:
    """Return for each step the sum of its squared distances to its m - f - 2 nearest others, at least one."""
    return nearest_sums(squared_distances(deltas), attackers)


def squared_distances(deltas: Vector) -> Vector:
    """Return the squared distances of all pairs of steps, in double precision."""
    return np.stack([((deltas - delta) ** 2).sum(axis=1, dtype=np.float64) for delta in deltas])


def nearest_sums(squares: Vector, attackers: int) -> Vector:
    """Return the sum of each row's least m - f - 2 distances, at least one, without the distance to itself, 0."""
    nearest = np.sort(squares, axis=1)[:, 1 : max(len(squares) - attackers - 2, 1) + 1]
    sums: Vector = nearest.sum(axis=1)
    return sums
