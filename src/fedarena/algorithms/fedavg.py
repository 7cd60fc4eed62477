"""FedAvg: McMahan, Moore, Ramage, Hampson, Agüera y Arcas, "Communication-Efficient Learning of Deep Networks from
Decentralized Data", 2017, arXiv:1602.05629, algorithm 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Gt

from fedarena.algorithms.base import Algorithm, Cohort, Model, Reply, Step, Work
from fedarena.registry import register


@register("algorithm", "fedavg", paper="McMahan et al. 2017, arXiv:1602.05629")
@dataclass(frozen=True)
class FedAvg(Algorithm):
    """Clients train for some epochs, the server averages their models by number of rows.

    `denominator = "all"` reads the printed sum over all K clients literally: who was not selected counts as w_t, and the
    step shrinks to the selected share of rows. `literal_eta` multiplies the step by the learning rate once more, as two
    of the printed algorithms do.
    """

    server_lr: Annotated[float, Gt(0)] = 1.0
    denominator: Literal["selected", "all"] = "selected"
    literal_eta: bool = False

    def client(self, got: Model, kept: None, work: Work) -> Reply:
        """w_k <- ClientUpdate(w_t); send w_t - w_k."""
        return Reply(Step(got.w - work.train(got.w).w), weight=work.rows)

    def server(self, state: Model, mean: Step, cohort: Cohort) -> Model:
        """w_{t+1} = w_t - gamma sum_k p_k Delta_k."""
        gamma = cohort.lr if self.literal_eta else self.server_lr
        if self.denominator == "all":
            gamma *= cohort.rows / cohort.total_rows
        return Model(state.w - gamma * mean.delta)
