"""Sign flipping: Li, Xu, Chen, Giannakis, Ling, "RSA: Byzantine-Robust Stochastic Aggregation Methods for Distributed
Learning from Heterogeneous Datasets", 2019, arXiv:1811.03761."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Gt

from fedarena.attacks.base import Attack, SeenUpdates, Updates
from fedarena.config.registry import register


@register("attack", "sign_flip", paper="Li et al. 2019, arXiv:1811.03761")
@dataclass(frozen=True)
class SignFlip(Attack):
    """Every attacker sends -s times its own update, which makes the loss larger."""

    scale: Annotated[float, Gt(0)] = 10.0

    def updates(self, seen: SeenUpdates, rng: np.random.Generator) -> Updates:
        """Delta -> -s Delta."""
        return -self.scale * seen.own
