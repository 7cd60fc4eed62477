"""Cyclic boosting: the strategy FedXgbCyclic of Flower (Beutel et al. 2020, arXiv:2007.14390)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedarena.algorithms.base import Cohort, Model, Reply, RequestSender, Work
from fedarena.algorithms.tree_algorithm import LearningRate, TreeAlgorithm
from fedarena.config.registry import register
from fedarena.trees.forest import Float32Array, Forest


@dataclass(frozen=True)
class ClientTree:
    """The trees of one client, one for each output."""

    trees: Float32Array


@register("algorithm", "treecyclic", paper="Beutel et al. 2020, arXiv:2007.14390")
@dataclass(frozen=True)
class TreeCyclic(TreeAlgorithm):
    """The forest travels: each selected client adds a tree grown on its own rows and passes it on to the next one.

    A round is one cycle, in the order of the clients' numbers or, with `order = "random"`, in a new random order each
    round. A client that does not answer is passed over. Flower calls the turn of a single client a round. A cycle has as
    many trees as clients, so the learning rate is that of Flower's example, a third of XGBoost's default.

    >>> import fedarena as fa
    >>> federation = dict(rounds=5, clients=6, partition="iid", out=False)
    >>> run = fa.run("digits", algorithm=fa.TreeCyclic(), **federation)
    >>> run.final.accuracy > 0.9
    True
    """

    learning_rate: LearningRate = 0.1
    order: Literal["fixed", "random"] = "fixed"

    needs = "each update"
    in_turn = True

    def client(self, message: Model, client_state: None, work: Work) -> Reply:
        """Grow a tree on the client's own rows, in bins of its own."""
        return Reply(ClientTree(self.grow(message.w, work)))

    def round(self, state: Model, request: RequestSender) -> Model:
        """Let the forest pass through the selected clients, one exchange with each."""
        for client in request.clients_in_turn(shuffle=self.order == "random"):
            grown = request(state, only=client)
            state = state if grown is None else self.server(state, grown, request.cohort)
        return state

    def server(self, state: Model, mean: ClientTree, cohort: Cohort) -> Model:
        """Add the client's trees to the forest."""
        return Model(Forest.of(state.w).with_trees(mean.trees).vector)
