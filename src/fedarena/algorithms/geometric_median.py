"""RFA, the geometric median: Pillutla, Kakade, Harchaoui, "Robust Aggregation for Federated Learning", 2022,
arXiv:1912.13445."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Ge, Gt

from fedarena.algorithms.base import Vector
from fedarena.algorithms.robust import RobustAggregation, norms
from fedarena.config.registry import register

ENOUGH = 1e-10  # relative decrease of the sum of distances below which the iteration ends


@register("algorithm", "geometric_median", paper="Pillutla et al. 2022, arXiv:1912.13445")
@dataclass(frozen=True)
class GeometricMedian(RobustAggregation):
    """The point with the least sum of distances to the clients' steps, by Weiszfeld's iteration with smoothed distances.

    >>> import fedarena as fa
    >>> attack = {"name": "gaussian", "clients": [0, 1]}
    >>> federation = dict(clients=12, share=1.0, partition="iid", attack=attack, out=False)
    >>> run = fa.run("digits", algorithm=fa.GeometricMedian(), rounds=10, **federation)
    >>> run.final.accuracy > 0.5
    True
    """

    iterations: Annotated[int, Ge(1)] = 100
    smoothing: Annotated[float, Gt(0)] = 1e-6  # nu: distances below it count as nu

    def centre(self, deltas: Vector) -> Vector:
        """v <- sum b_k Delta_k / sum b_k with b_k = 1 / max(nu, |v - Delta_k|), from the mean, until v stays."""
        steps = deltas.astype(np.float64)
        v, before = steps.mean(axis=0), np.inf
        for _ in range(self.iterations):
            distances = norms(steps - v)
            total = distances.sum()
            if before - total <= ENOUGH * total:
                break
            weights = 1 / np.maximum(distances, self.smoothing)
            v, before = (weights[:, None] * steps).sum(axis=0) / weights.sum(), total
        centre: Vector = v.astype(deltas.dtype)
        return centre
