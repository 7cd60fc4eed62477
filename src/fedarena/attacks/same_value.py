"""The same-value attack: Li, Xu, Chen, Giannakis, Ling, "RSA: Byzantine-Robust Stochastic Aggregation Methods for
Distributed Learning from Heterogeneous Datasets", 2019, arXiv:1811.03761."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedarena.attacks.base import Attack, SeenUpdates, Updates
from fedarena.config.registry import register


@register("attack", "same_value", paper="Li et al. 2019, arXiv:1811.03761")
@dataclass(frozen=True)
class SameValue(Attack):
    """All attackers send the same number for every weight."""

    value: float = 100.0

    def updates(self, seen: SeenUpdates, rng: np.random.Generator) -> Updates:
        """Delta -> (c, c, ..., c)."""
        return np.full_like(seen.own, self.value)
