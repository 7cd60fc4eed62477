"""Random updates: the Gaussian attack of Blanchard, El Mhamdi, Guerraoui, Stainer, "Machine Learning with Adversaries:
Byzantine Tolerant Gradient Descent", 2017, arXiv:1703.02757."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Ge

from fedarena.attacks.base import Attack, SeenUpdates, Updates
from fedarena.config.registry import register


@register("attack", "gaussian", paper="Blanchard et al. 2017, arXiv:1703.02757")
@dataclass(frozen=True)
class Gaussian(Attack):
    """Every attacker sends independent Gaussian noise of mean 0 and standard deviation `sd` in place of its update."""

    sd: Annotated[float, Ge(0)] = 200.0

    def updates(self, seen: SeenUpdates, rng: np.random.Generator) -> Updates:
        """Delta -> N(0, sd^2)."""
        return self.sd * rng.standard_normal(seen.own.shape)
