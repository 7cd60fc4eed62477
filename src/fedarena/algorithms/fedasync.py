"""FedAsync: Xie, Koyejo, Gupta, "Asynchronous Federated Optimization", 2019, arXiv:1903.03934, algorithm 1, with
polynomial staleness."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt, Le

from fedarena.algorithms.base import Aged, Asynchronous, Model, Pull, Reply, Setting, Work, refuse_stiff_spring
from fedarena.registry import register


@register("algorithm", "fedasync", paper="Xie et al. 2019, arXiv:1903.03934")
@dataclass(frozen=True)
class FedAsync(Asynchronous):
    """Every answer is mixed into the server's model at once, the less the older the model it began with.

    A spring of stiffness `rho` ties a client to the model it fetched, as in FedProx.
    """

    alpha: Annotated[float, Gt(0), Le(1)] = 0.6
    a: Annotated[float, Ge(0)] = 0.5
    rho: Annotated[float, Ge(0)] = 0.005

    def check(self, setting: Setting) -> None:
        """The spring must not throw clients about."""
        refuse_stiff_spring("fedasync", setting.lr, self.rho, "rho")

    def client(self, got: Model, kept: None, work: Work) -> Reply:
        """Local SGD on F_k(w) + rho/2 |w - w_fetched|^2."""
        return Reply(Model(work.train(got.w, adjust=Pull(self.rho, centre=got.w)).w))

    def share(self, d: int) -> float:
        """alpha_t = alpha (d + 1)^(-a)."""
        return float(self.alpha * (d + 1) ** -self.a)

    def merge(self, state: Aged, sent: Model, d: int) -> Aged:
        """w <- (1 - alpha_t) w + alpha_t w_k."""
        return state.mixed(sent.w, self.share(d))
