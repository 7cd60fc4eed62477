"""FedDyn: Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama, "Federated Learning Based on Dynamic
Regularization", 2021, arXiv:2111.04263, algorithm 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Gt

from fedarena.algorithms.base import Algorithm, Cohort, Model, Pull, Reply, Setting, Step, Vector, Work
from fedarena.algorithms.checks import check_proximal_weight
from fedarena.config.registry import register


@dataclass(frozen=True)
class FedDynState:
    """The weights, and h: the negative sum of alpha (w_k - w_t) over all rounds, divided by N."""

    w: Vector
    h: Vector


@register("algorithm", "feddyn", paper="Acar et al. 2021, arXiv:2111.04263")
@dataclass(frozen=True)
class FedDyn(Algorithm):
    """A proximal and a linear term in each client's loss, updated every round, make its optimum that of the federation.

    >>> import fedarena as fa
    >>> federation = dict(rounds=5, clients=6, partition="iid", out=False)
    >>> run = fa.run("digits", algorithm=fa.FedDyn(alpha=0.1), **federation)
    >>> run.final.accuracy > 0.85
    True
    """

    alpha: Annotated[float, Gt(0)] = 0.1

    proximal_setting = "alpha"

    def check(self, setting: Setting) -> None:
        """Refuse a weight with which gradient steps on the proximal term diverge."""
        check_proximal_weight("feddyn", setting.lr, self.alpha, "alpha")

    def init(self, w: Vector) -> FedDynState:
        """Start with h = 0 on the server."""
        return FedDynState(w, np.zeros_like(w))

    def remember(self, w: Vector) -> Vector:
        """g_k = 0; later the gradient of F_k at the client's last optimum."""
        return np.zeros_like(w)

    def client(self, message: Model, g_k: Vector, work: Work) -> Reply:
        """argmin F_k(w) - <g_k, w> + alpha/2 |w - w_t|^2; then g_k <- g_k - alpha (w_k - w_t)."""
        out = work.train(message.w, adjust=Pull(self.alpha, centre=message.w, b=-g_k))
        delta = message.w - out.w
        return Reply(Step(delta), keep=g_k + self.alpha * delta)

    def server(self, state: FedDynState, mean: Step, cohort: Cohort) -> FedDynState:
        """h <- h - alpha/N sum (w_k - w_t); w <- mean of w_k - h / alpha."""
        h = state.h + self.alpha * cohort.share * mean.delta
        return FedDynState(state.w - mean.delta - h / self.alpha, h)
