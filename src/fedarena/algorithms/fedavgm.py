"""FedAvgM: Hsu, Qi, Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification", 2019, arXiv:1909.06335."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Ge, Gt, Lt

from fedarena.algorithms.base import Algorithm, Cohort, Model, Reply, Step, Vector, Work
from fedarena.registry import register


@dataclass(frozen=True)
class Moving:
    """Weights, and the velocity with which they move."""

    w: Vector
    v: Vector


@register("algorithm", "fedavgm", paper="Hsu et al. 2019, arXiv:1909.06335")
@dataclass(frozen=True)
class FedAvgM(Algorithm):
    """FedAvg whose server moves with momentum: v = beta v + mean step.

    A constant step ends up 1 / (1 - beta) times as long: with beta = 0.9, lower `server_lr` or the local rate.
    """

    beta: Annotated[float, Ge(0), Lt(1)] = 0.9
    server_lr: Annotated[float, Gt(0)] = 1.0
    nesterov: bool = False

    def init(self, w: Vector) -> Moving:
        """v_{-1} = 0."""
        return Moving(w, np.zeros_like(w))

    def client(self, got: Model, kept: None, work: Work) -> Reply:
        """As FedAvg."""
        return Reply(Step(got.w - work.train(got.w).w), weight=work.rows)

    def server(self, state: Moving, mean: Step, cohort: Cohort) -> Moving:
        """v_t = beta v_{t-1} + G_t; w_{t+1} = w_t - gamma v_t, or with Nesterov's look ahead gamma (G_t + beta v_t)."""
        v = self.beta * state.v + mean.delta
        step = mean.delta + self.beta * v if self.nesterov else v
        return Moving(state.w - self.server_lr * step, v)
