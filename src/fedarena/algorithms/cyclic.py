"""Cyclic weight transfer: Chang, Balachandar, Lam, Yi, Brown, Beers, Rosen, Rubin, Kalpathy-Cramer, "Distributed deep
learning networks among institutions for medical imaging", 2018; in the comparison of FLamby, arXiv:2210.04620."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedarena.algorithms.base import Algorithm, Cohort, Model, Reply, RequestSender, Vector, Work
from fedarena.config.registry import register


@register("algorithm", "cyclic", paper="Chang et al. 2018; Ogier du Terrail et al. 2022, arXiv:2210.04620")
@dataclass(frozen=True)
class Cyclic(Algorithm):
    """One model travels: each selected client trains it and passes it on to the next one.

    A round is one cycle: every selected client trains once, in a new random order each round or, with `order = "fixed"`,
    in the order of the clients' numbers. Nothing is averaged. A client that does not answer is passed over.
    `pass_on = false` is `variants.SeparateCyclic`, which imitates published code.

    >>> import fedarena as fa
    >>> federation = dict(rounds=5, clients=6, partition="iid", out=False)
    >>> run = fa.run("digits", algorithm=fa.Cyclic(), **federation)
    >>> run.final.accuracy > 0.9
    True
    """

    order: Literal["random", "fixed"] = "random"
    pass_on: bool = True

    needs = "each update"  # each client's model by itself, which the next one gets
    in_turn = True

    def client(self, message: Model, client_state: Vector | None, work: Work) -> Reply:
        """w <- ClientUpdate(w); send w."""
        return Reply(Model(work.train(message.w).w))

    def round(self, state: Model, request: RequestSender) -> Model:
        """Let the model pass through the selected clients, one exchange with each."""
        for client in request.clients_in_turn(shuffle=self.order == "random"):
            trained = request(state, only=client)
            state = state if trained is None else self.server(state, trained, request.cohort)
        return state

    def server(self, state: Model, mean: Model, cohort: Cohort) -> Model:
        """Take the client's model as it is."""
        return mean
