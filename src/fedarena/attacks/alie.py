"""A little is enough: Baruch, Baruch, Goldberg, "A Little Is Enough: Circumventing Defenses For Distributed Learning",
2019, arXiv:1902.06156."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Ge

from fedarena.attacks.base import Attack, SeenUpdates, Updates
from fedarena.config.registry import register


@register("attack", "alie", paper="Baruch et al. 2019, arXiv:1902.06156")
@dataclass(frozen=True)
class ALittleIsEnough(Attack):
    """All attackers send mean - z std of the updates they know, weight by weight: further from the mean than any defence
    would notice if `z` follows from the numbers of clients and attackers."""

    z: Annotated[float, Ge(0)] | None = None  # none: largest_deviation

    def updates(self, seen: SeenUpdates, rng: np.random.Generator) -> Updates:
        """Delta -> mu - z sigma."""
        z = largest_deviation(seen.clients, seen.attackers) if self.z is None else self.z
        return seen.each(seen.known.mean(axis=0) - z * seen.known.std(axis=0))


def largest_deviation(clients: int, attackers: int) -> float:
    """Return z = Phi^-1((n - m - s) / (n - m)), s = floor(n / 2 + 1) - m being the honest clients needed for a majority.

    Attackers that are a majority already count as needing one; without honest clients z is 0.

    >>> largest_deviation(10, 2), round(largest_deviation(50, 12), 4)
    (0.0, 0.336)
    """
    from scipy.special import ndtri  # its import takes a fifth as long as that of torch

    honest, needed = clients - attackers, max(clients // 2 + 1 - attackers, 1)
    return float(ndtri((honest - needed) / honest)) if honest > needed else 0.0
