"""Baselines of a federation that grows trees: boosting on all rows in one place, and every client alone."""

from __future__ import annotations

from dataclasses import dataclass

from fedarena.algorithms.base import Cohort, Model, Reply, Vector, Work
from fedarena.algorithms.baselines import EmptyUpdate
from fedarena.algorithms.histboost import HistBoost
from fedarena.algorithms.tree_algorithm import TreeAlgorithm
from fedarena.config.registry import register
from fedarena.trees.forest import Forest


@register("algorithm", "centralized_trees")
@dataclass(frozen=True)
class CentralizedTrees(HistBoost):
    """Gradient boosting on the union of all rows: the tree form of `centralized`, with the trees of `histboost`.

    >>> import fedarena as fa
    >>> federation = dict(rounds=5, clients=6, partition="iid", out=False)
    >>> run = fa.run("digits", algorithm=fa.CentralizedTrees(), **federation)
    >>> run.final.accuracy > 0.9
    True
    """

    everyone = True
    communicates = False
    pooled = True


@register("algorithm", "local_trees")
@dataclass(frozen=True)
class LocalTrees(TreeAlgorithm):
    """Every client grows a forest alone: the tree form of `local`, evaluated as that is. Nothing is sent.

    >>> import fedarena as fa
    >>> federation = dict(rounds=5, clients=6, partition="iid", out=False)
    >>> run = fa.run("digits", algorithm=fa.LocalTrees(), **federation)
    >>> run.final.accuracy > 0.7
    True
    """

    everyone = True
    communicates = False
    personal = True

    def remember(self, w: Vector) -> Vector:
        """Return the client's own forest, without trees."""
        return w

    def client(self, message: Model, own_w: Vector, work: Work) -> Reply:
        """Add a tree to the client's own forest and send nothing."""
        return Reply(EmptyUpdate(), keep=Forest.of(own_w).with_trees(self.grow(own_w, work)).vector)

    def server(self, state: Model, mean: EmptyUpdate, cohort: Cohort) -> Model:
        """Leave the server's forest as it is."""
        return state
