"""FedNova: Wang, Liu, Liang, Joshi, Poor, "Tackling the Objective Inconsistency Problem in Heterogeneous Federated
Optimization", 2020, arXiv:2007.07481."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge, Gt, Lt

from fedarena.algorithms.base import (
    Algorithm,
    Cohort,
    Model,
    Pull,
    Reply,
    Setting,
    Vector,
    Work,
    refuse_kept_momentum,
    refuse_stiff_spring,
)
from fedarena.algorithms.fedavgm import Moving
from fedarena.registry import register


@dataclass(frozen=True)
class Pace:
    """How far one effective step went, and how many there were."""

    d: Vector
    tau: float


@register("algorithm", "fednova", paper="Wang et al. 2020, arXiv:2007.07481")
@dataclass(frozen=True)
class FedNova(Algorithm):
    """Clients' steps are normalised by how much work they are, then the mean pace is restored.

    Work is ||a_k||_1, the displacement of the client's own solver under a unit gradient: the number of steps for plain
    SGD, and right for momentum, a proximal term `mu` and decaying rates as well. `tau_eff = "steps"` restores the pace
    by plain step counts, as the published code does with a proximal term.
    """

    mu: Annotated[float, Ge(0)] = 0.0
    beta: Annotated[float, Ge(0), Lt(1)] = 0.0
    server_lr: Annotated[float, Gt(0)] = 1.0
    tau_eff: Literal["norm", "steps"] = "norm"

    def check(self, setting: Setting) -> None:
        """The work of a round is measured from rest; the spring must not throw clients about."""
        refuse_kept_momentum("fednova", setting)
        refuse_stiff_spring("fednova", setting.lr, self.mu, "mu")

    def init(self, w: Vector) -> Moving:
        """With server momentum beta, as FedAvgM."""
        return Moving(w, np.zeros_like(w))

    def client(self, got: Model, kept: None, work: Work) -> Reply:
        """Delta_k / ||a_k||_1, and the work it stands for."""
        out = work.train(got.w, adjust=Pull(self.mu, centre=got.w))
        a = out.effective_steps or 1.0  # no steps, no displacement
        tau = out.effective_steps if self.tau_eff == "norm" else float(out.steps)
        return Reply(Pace((got.w - out.w) / a, tau), weight=work.rows)

    def server(self, state: Moving, mean: Pace, cohort: Cohort) -> Moving:
        """w_{t+1} = w_t - gamma tau_eff sum_k p_k Delta_k / ||a_k||_1, tau_eff = sum_k p_k ||a_k||_1."""
        v = self.beta * state.v + mean.tau * mean.d
        return Moving(state.w - self.server_lr * v, v)
