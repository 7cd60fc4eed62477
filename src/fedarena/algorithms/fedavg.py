"""FedAvg: McMahan, Moore, Ramage, Hampson, Agüera y Arcas, "Communication-Efficient Learning of Deep Networks from
Decentralized Data", 2017, arXiv:1602.05629, algorithm 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Gt

from fedarena.algorithms.base import Algorithm, Cohort, Model, Reply, Step, Work
from fedarena.config.registry import register


@register("algorithm", "fedavg", paper="McMahan et al. 2017, arXiv:1602.05629")
@dataclass(frozen=True)
class FedAvg(Algorithm):
    """Clients train for some epochs, the server averages their models by number of rows.

    `denominator = "all"` and `literal_eta` take printed formulas literally: see `variants.LiteralFedAvg`.

    >>> import fedarena as fa
    >>> federation = dict(rounds=5, clients=6, partition="iid", out=False)
    >>> run = fa.run("digits", algorithm=fa.FedAvg(server_lr=1.0), **federation)
    >>> run.final.accuracy > 0.8
    True
    """

    server_lr: Annotated[float, Gt(0)] = 1.0
    denominator: Literal["selected", "all"] = "selected"
    literal_eta: bool = False

    def client(self, message: Model, client_state: None, work: Work) -> Reply:
        """w_k <- ClientUpdate(w_t); send Delta_k = w_t - w_k."""
        return Reply(Step(message.w - work.train(message.w).w), weight=work.rows)

    def server(self, state: Model, mean: Step, cohort: Cohort) -> Model:
        """w_{t+1} = w_t - gamma sum_k p_k Delta_k."""
        return Model(state.w - self.server_lr * mean.delta)
