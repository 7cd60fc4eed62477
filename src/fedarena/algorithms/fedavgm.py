"""FedAvgM: Hsu, Qi, Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification", 2019, arXiv:1909.06335."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Ge, Gt, Lt

from fedarena.algorithms.base import Algorithm, Cohort, Model, Reply, Step, Vector, Work
from fedarena.config.registry import register


@dataclass(frozen=True)
class MomentumState:
    """The weights and the velocity of the server's momentum."""

    w: Vector
    v: Vector


@register("algorithm", "fedavgm", paper="Hsu et al. 2019, arXiv:1909.06335")
@dataclass(frozen=True)
class FedAvgM(Algorithm):
    """FedAvg with momentum on the server: v = beta v + mean step.

    A constant step ends up 1 / (1 - beta) times as long: with beta = 0.9, lower `server_lr` or the local rate.

    >>> import fedarena as fa
    >>> federation = dict(rounds=5, clients=6, partition="iid", out=False)
    >>> run = fa.run("digits", algorithm=fa.FedAvgM(beta=0.5), **federation)
    >>> run.final.accuracy > 0.8
    True
    """

    beta: Annotated[float, Ge(0), Lt(1)] = 0.9
    server_lr: Annotated[float, Gt(0)] = 1.0
    nesterov: bool = False

    def init(self, w: Vector) -> MomentumState:
        """Start with velocity v_{-1} = 0."""
        return MomentumState(w, np.zeros_like(w))

    def client(self, message: Model, client_state: None, work: Work) -> Reply:
        """Train and send w_t - w_k, as FedAvg."""
        return Reply(Step(message.w - work.train(message.w).w), weight=work.rows)

    def server(self, state: MomentumState, mean: Step, cohort: Cohort) -> MomentumState:
        """v_t = beta v_{t-1} + G_t; w_{t+1} = w_t - gamma v_t, or w_t - gamma (G_t + beta v_t) with Nesterov's momentum."""
        v = self.beta * state.v + mean.delta
        step = mean.delta + self.beta * v if self.nesterov else v
        return MomentumState(state.w - self.server_lr * step, v)
