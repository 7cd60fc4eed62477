"""Bulyan: El Mhamdi, Guerraoui, Rouault, "The Hidden Vulnerability of Distributed Learning in Byzantium", 2018,
arXiv:1802.07927."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Ge

from fedarena.algorithms.base import Setting, Vector
from fedarena.algorithms.krum import nearest_sums, squared_distances
from fedarena.algorithms.robust import RobustAggregation
from fedarena.config.errors import BadValue
from fedarena.config.registry import register


@register("algorithm", "bulyan", paper="El Mhamdi et al. 2018, arXiv:1802.07927")
@dataclass(frozen=True)
class Bulyan(RobustAggregation):
    """Krum chooses n - 2 f steps one by one, and every weight takes the mean of those of their values nearest the median.

    >>> import fedarena as fa
    >>> attack = {"name": "gaussian", "clients": [0, 1]}
    >>> federation = dict(clients=12, share=1.0, partition="iid", attack=attack, out=False)
    >>> run = fa.run("digits", algorithm=fa.Bulyan(attackers=2), rounds=10, **federation)
    >>> run.final.accuracy > 0.5
    True
    """

    attackers: Annotated[int, Ge(0)] | None = None  # f; none: as many as the clients of the round allow, (n - 3) // 4

    def check(self, setting: Setting) -> None:
        """Refuse fewer than 4 f + 3 clients in a round."""
        attackers, clients = self.attackers or 0, setting.participants
        if clients < 4 * attackers + 3:
            fewer = f"at most {(clients - 3) // 4} attackers, or " if clients >= 3 else ""
            raise BadValue(
                f"bulyan against {attackers} attackers needs {4 * attackers + 3} clients in a round, and it has {clients}",
                remedy=f"give {fewer}more clients or a larger share of them",
                where="algorithm.attackers",
            )

    def centre(self, deltas: Vector) -> Vector:
        """Return the mean of the n - 4 f values (at least one) nearest the median of the chosen steps, weight by weight."""
        chosen = deltas[self.chosen(deltas)]
        distance = np.abs(chosen - np.median(chosen, axis=0))
        count = max(len(chosen) - 2 * self.tolerated(len(deltas)), 1)
        nearest = np.sort(distance.argsort(axis=0, kind="stable")[:count], axis=0)
        mean: Vector = np.take_along_axis(chosen, nearest, axis=0).mean(axis=0)
        return mean

    def tolerated(self, clients: int) -> int:
        """Return f for a round with n answers."""
        return max((clients - 3) // 4, 0) if self.attackers is None else self.attackers

    def chosen(self, deltas: Vector) -> list[int]:
        """Return the n - 2 f clients that Krum chooses, each among those that are left, in the order of clients."""
        squares, left, attackers = squared_distances(deltas), list(range(len(deltas))), self.tolerated(len(deltas))
        found: list[int] = []
        for _ in range(max(len(deltas) - 2 * attackers, 1)):
            sums = nearest_sums(squares[np.ix_(left, left)], attackers)
            found.append(left.pop(int(sums.argmin())))
        return sorted(found)
