"""Cyclic boosting: the strategy FedXgbCyclic of Flower (Beutel et al. 2020, arXiv:2007.14390)."""

from __future__ import annotations

from dataclasses import dataclass

from fedarena.algorithms.base import Model, Reply, RequestSender, Vector, Work
from fedarena.algorithms.tree_algorithm import TreeAlgorithm
from fedarena.config.registry import register
from fedarena.trees.forest import Float32Array, Forest


@dataclass(frozen=True)
class CyclicState:
    """The forest as a vector, and the number of clients that were asked so far."""

    w: Vector
    turn: int


@dataclass(frozen=True)
class GrownTree:
    """The trees of one client, one for each output."""

    trees: Float32Array


@register("algorithm", "treecyclic", paper="Beutel et al. 2020, arXiv:2007.14390")
@dataclass(frozen=True)
class TreeCyclic(TreeAlgorithm):
    """One client a round, each in its turn, grows the next tree on its own rows. A client that is absent is passed over."""

    needs = "each update"
    in_turn = True
    everyone = True

    def init(self, w: Vector) -> CyclicState:
        """Start with the first client."""
        return CyclicState(w, 0)

    def client(self, message: Model, client_state: None, work: Work) -> Reply:
        """Grow a tree on the client's own rows, in bins of its own."""
        return Reply(GrownTree(self.grow(message.w, work)))

    def round(self, state: CyclicState, request: RequestSender) -> CyclicState:
        """Ask the next client for the next tree."""
        clients = request.clients_in_turn(shuffle=False)
        if not clients:
            return state
        found = request(Model(state.w), only=clients[state.turn % len(clients)])
        w = state.w if found is None else Forest.of(state.w).with_trees(found.trees).vector
        return CyclicState(w, state.turn + 1)
