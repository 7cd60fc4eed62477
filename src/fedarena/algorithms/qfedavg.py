"""q-FedAvg: Li, Sanjabi, Beirami, Smith, "Fair Resource Allocation in Federated Learning", 2020, arXiv:1905.10497,
algorithm 2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Ge, Gt

from fedarena.algorithms.base import Algorithm, Cohort, Model, Reply, Vector, Work
from fedarena.config.registry import register

SMALLEST_LOSS = 1e-10  # F^(q - 1) is infinite at a loss of 0


@dataclass(frozen=True)
class FairStep:
    """F_k^q times the step of a client in units of gradients, and h_k, the estimate of its curvature."""

    delta: Vector
    h: float


@register("algorithm", "qfedavg", paper="Li et al. 2020, arXiv:1905.10497")
@dataclass(frozen=True)
class QFedAvg(Algorithm):
    """Clients with a larger loss count more, by its power q; the step size follows from an estimate of the curvature.

    >>> import fedarena as fa
    >>> federation = dict(rounds=5, clients=6, partition="iid", out=False)
    >>> run = fa.run("digits", algorithm=fa.QFedAvg(q=0.1), **federation)
    >>> run.final.accuracy > 0.8
    True
    """

    q: Annotated[float, Ge(0)] = 1.0
    lipschitz: Annotated[float, Gt(0)] | None = None  # L; none: 1 / the local rate

    beyond_steps = "the training loss of each client"

    def client(self, message: Model, client_state: None, work: Work) -> Reply:
        """Send F_k^q L (w_t - w_k), and h_k = q F_k^(q-1) |L (w_t - w_k)|^2 + L F_k^q, with F_k at w_t."""
        scale = self.lipschitz or 1 / work.lr
        loss = max(work.evaluate(message.w)[1], SMALLEST_LOSS)
        step = scale * (message.w - work.train(message.w).w)
        square = float(np.square(step, dtype=np.float64).sum())
        h = self.q * loss ** (self.q - 1) * square + scale * loss**self.q
        return Reply(FairStep(loss**self.q * step, h))

    def server(self, state: Model, mean: FairStep, cohort: Cohort) -> Model:
        """w_{t+1} = w_t - sum of F_k^q L (w_t - w_k) / sum of h_k."""
        return Model(state.w - mean.delta / mean.h)
