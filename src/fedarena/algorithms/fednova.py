"""FedNova: Wang, Liu, Liang, Joshi, Poor, "Tackling the Objective Inconsistency Problem in Heterogeneous Federated
Optimization", 2020, arXiv:2007.07481."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge, Gt, Lt

from fedarena.algorithms.base import Algorithm, Cohort, Model, Pull, Reply, Setting, Vector, Work
from fedarena.algorithms.checks import check_momentum_is_reset, check_plain_sgd, check_proximal_weight
from fedarena.algorithms.fedavgm import MomentumState
from fedarena.config.registry import register


@dataclass(frozen=True)
class NormalizedUpdate:
    """The displacement of one effective local step, and the number of effective steps."""

    d: Vector
    tau: float


@register("algorithm", "fednova", paper="Wang et al. 2020, arXiv:2007.07481")
@dataclass(frozen=True)
class FedNova(Algorithm):
    """Clients' steps are normalised by the amount of their local work, then multiplied by the mean amount.

    The work is ||a_k||_1, the displacement of the client's own solver under a unit gradient: the number of steps for plain
    SGD, and right for momentum, a proximal term `mu` and decaying rates as well. `tau_eff = "steps"` multiplies by plain
    step counts, as the published code does with a proximal term: see `variants.StepCountFedNova`.

    >>> import fedarena as fa
    >>> federation = dict(rounds=5, clients=6, partition="iid", out=False)
    >>> run = fa.run("digits", algorithm=fa.FedNova(), **federation)
    >>> run.final.accuracy > 0.8
    True
    """

    mu: Annotated[float, Ge(0)] = 0.0
    beta: Annotated[float, Ge(0), Lt(1)] = 0.0
    server_lr: Annotated[float, Gt(0)] = 1.0
    tau_eff: Literal["norm", "steps"] = "norm"

    proximal_setting = "mu"

    def check(self, setting: Setting) -> None:
        """Refuse other optimizers, momentum that is kept between rounds, and a proximal term that diverges."""
        check_plain_sgd("fednova", setting, "measures the local work as that of SGD")
        check_momentum_is_reset("fednova", setting)
        check_proximal_weight("fednova", setting.lr, self.mu, "mu")

    def init(self, w: Vector) -> MomentumState:
        """v = 0: the server has momentum beta, as FedAvgM."""
        return MomentumState(w, np.zeros_like(w))

    def client(self, message: Model, client_state: None, work: Work) -> Reply:
        """Send Delta_k / ||a_k||_1, and ||a_k||_1."""
        out = work.train(message.w, adjust=Pull(self.mu, centre=message.w))
        d = (message.w - out.w) / (out.effective_steps or 1.0)  # without steps there is no displacement
        return Reply(NormalizedUpdate(d, out.effective_steps), weight=work.rows)

    def server(self, state: MomentumState, mean: NormalizedUpdate, cohort: Cohort) -> MomentumState:
        """w_{t+1} = w_t - gamma tau_eff sum_k p_k Delta_k / ||a_k||_1, tau_eff = sum_k p_k ||a_k||_1."""
        v = self.beta * state.v + mean.tau * mean.d
        return MomentumState(state.w - self.server_lr * v, v)
