"""Bagged boosting: the strategy FedXgbBagging of Flower (Beutel et al. 2020, arXiv:2007.14390)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedarena.algorithms.base import Cohort, Model, Reply, Work, collected
from fedarena.algorithms.tree_algorithm import TreeAlgorithm
from fedarena.config.registry import register
from fedarena.trees.forest import WEIGHT, Float32Array, Forest


@dataclass(frozen=True)
class ClientTrees:
    """The trees that each client has grown, one for each output."""

    trees: list[Float32Array] = collected()


@register("algorithm", "treebag", paper="Beutel et al. 2020, arXiv:2007.14390")
@dataclass(frozen=True)
class TreeBag(TreeAlgorithm):
    """Each selected client grows a tree on its own rows from the same forest, and the forest takes all of them.

    A tree is grown as if it were the only one of its round. With `scaled` the trees of m clients are divided by m, so that
    together they make one step; without it they are added as they are, and the step grows with the number of clients.

    >>> import fedarena as fa
    >>> federation = dict(rounds=5, clients=6, partition="iid", out=False)
    >>> run = fa.run("digits", algorithm=fa.TreeBag(), **federation)
    >>> run.final.accuracy > 0.85
    True
    """

    scaled: bool = True

    needs = "each update"

    def client(self, message: Model, client_state: None, work: Work) -> Reply:
        """Grow a tree on the client's own rows, in bins of its own."""
        return Reply(ClientTrees([self.grow(message.w, work)]))

    def server(self, state: Model, mean: ClientTrees, cohort: Cohort) -> Model:
        """Add the trees of all clients to the forest."""
        grown: Float32Array = np.concatenate([np.asarray(trees, np.float32) for trees in mean.trees[0]])
        if self.scaled:
            grown[:, :, WEIGHT] /= np.float32(len(cohort.answered))
        return Model(Forest.of(state.w).with_trees(grown).vector)
