"""Inner product manipulation: Xie, Koyejo, Gupta, "Fall of Empires: Breaking Byzantine-Tolerant SGD by Inner Product
Manipulation", 2019, arXiv:1903.03936."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Gt

from fedarena.attacks.base import Attack, SeenUpdates, Updates
from fedarena.config.registry import register


@register("attack", "ipm", paper="Xie et al. 2019, arXiv:1903.03936")
@dataclass(frozen=True)
class InnerProductManipulation(Attack):
    """All attackers send -epsilon times the mean of the updates they know.

    A mean points backwards for epsilon > (n - m) / m; a small epsilon hides among the honest updates from defences by
    distance.
    """

    epsilon: Annotated[float, Gt(0)] = 0.5

    def updates(self, seen: SeenUpdates, rng: np.random.Generator) -> Updates:
        """Delta -> -epsilon mu."""
        return seen.each(-self.epsilon * seen.known.mean(axis=0))
