"""FedAsync: Xie, Koyejo, Gupta, "Asynchronous Federated Optimization", 2019, arXiv:1903.03934, algorithm 1, with
polynomial staleness."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt, Le

from fedarena.algorithms.base import Asynchronous, AsyncState, Model, Pull, Reply, Setting, Work
from fedarena.algorithms.checks import check_proximal_weight
from fedarena.config.registry import register


@register("algorithm", "fedasync", paper="Xie et al. 2019, arXiv:1903.03934")
@dataclass(frozen=True)
class FedAsync(Asynchronous):
    """Every update is mixed into the server's model when it arrives, with a weight that decreases with its staleness.

    A proximal term of weight `rho` keeps a client near the model it fetched, as in FedProx.

    >>> import fedarena as fa
    >>> federation = dict(rounds=5, clients=6, partition="iid", out=False)
    >>> run = fa.run("digits", algorithm=fa.FedAsync(), **federation)
    >>> run.final.accuracy > 0.8
    True
    """

    alpha: Annotated[float, Gt(0), Le(1)] = 0.6
    a: Annotated[float, Ge(0)] = 0.5
    rho: Annotated[float, Ge(0)] = 0.005

    def check(self, setting: Setting) -> None:
        """Refuse a weight with which gradient steps on the proximal term diverge."""
        check_proximal_weight("fedasync", setting.lr, self.rho, "rho")

    def client(self, message: Model, client_state: None, work: Work) -> Reply:
        """Run local SGD on F_k(w) + rho/2 |w - w_fetched|^2."""
        return Reply(Model(work.train(message.w, adjust=Pull(self.rho, centre=message.w)).w))

    def share(self, d: int) -> float:
        """alpha_t = alpha (d + 1)^(-a)."""
        return float(self.alpha * (d + 1) ** -self.a)

    def merge(self, state: AsyncState, sent: Model, d: int) -> AsyncState:
        """w <- (1 - alpha_t) w + alpha_t w_k."""
        return state.mixed(sent.w, self.share(d))
