"""Norm bounding: Sun, Kairouz, Suresh, McMahan, "Can You Really Backdoor Federated Learning?", 2019, arXiv:1911.07963."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Gt

from fedarena.algorithms.base import Model, RequestSender, Vector
from fedarena.algorithms.robust import RobustAggregation, norms, shortened
from fedarena.config.registry import register
from fedarena.config.seeds import stream


@register("algorithm", "norm_bound", paper="Sun et al. 2019, arXiv:1911.07963")
@dataclass(frozen=True)
class NormBound(RobustAggregation):
    """The mean of the clients' steps, each shortened to `bound`, by default the median of their lengths, with noise.

    `noise` is the standard deviation of the Gaussian noise on the sum of the steps, in units of the bound.

    >>> import fedarena as fa
    >>> attack = {"name": "gaussian", "clients": [0, 1]}
    >>> federation = dict(clients=12, share=1.0, partition="iid", attack=attack, out=False)
    >>> run = fa.run("digits", algorithm=fa.NormBound(), rounds=10, **federation)
    >>> run.final.accuracy > 0.5
    True
    """

    bound: Annotated[float, Gt(0)] | None = None
    noise: Annotated[float, Ge(0)] = 0.0

    def bound_of(self, deltas: Vector) -> float:
        """Return the largest length of a step."""
        return float(np.median(norms(deltas))) if self.bound is None else self.bound

    def centre(self, deltas: Vector) -> Vector:
        """Return the mean of Delta_k min(1, bound / |Delta_k|)."""
        mean: Vector = shortened(deltas, self.bound_of(deltas)).mean(axis=0)
        return mean

    def round(self, state: Model, request: RequestSender) -> Any:
        """Run a round as FedAvg does, and add noise to the new weights."""
        mean = request(self.broadcast(state))
        if mean is None:
            return state
        after = self.server(state, mean, request.cohort)
        if not self.noise:
            return after
        deltas = np.stack(list(mean.delta))
        rng = stream(int(request.coin() * 2**53), "algorithm")  # the random number of the round as a seed
        sd = self.noise * self.bound_of(deltas) / len(deltas)
        return Model(after.w + (sd * rng.standard_normal(len(after.w))).astype(after.w.dtype))
