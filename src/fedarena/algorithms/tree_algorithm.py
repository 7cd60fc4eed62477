"""The contract of algorithms whose model is a forest of boosted trees, with the settings of XGBoost."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Gt, Le
from numpy.typing import NDArray

from fedarena.algorithms.base import Algorithm, Setting, Vector, Work
from fedarena.config.errors import BadValue
from fedarena.trees.boosting import Boosting
from fedarena.trees.forest import Float32Array, Forest
from fedarena.trees.row_growth import RowGrowth

Penalty = Annotated[float, Ge(0), Le(1e9)]
LearningRate = Annotated[float, Gt(0), Le(1)]


@dataclass(frozen=True)
class TreeAlgorithm(Algorithm):
    """Boosted trees on the raw columns of tables; `model` and `local` are not used. Settings are XGBoost's.

    A round is a boosting step: one tree, or one for each class. `trees` is the number of rounds, in place of `rounds`.
    `base_score` is where predictions start: a probability for two classes, a number for a regression (default: the mean
    label). `label_max` is the agreed largest absolute label of a regression (default: that of the training samples).
    """

    trees: Annotated[int, Ge(1), Le(100_000)] | None = None
    depth: Annotated[int, Ge(1), Le(12)] = 6
    bins: Annotated[int, Ge(2), Le(1024)] = 64
    learning_rate: LearningRate = 0.3
    lambda_: Penalty = 1.0
    gamma: Penalty = 0.0
    min_child_weight: Penalty = 1.0
    subsample: Annotated[float, Gt(0), Le(1)] = 1.0
    base_score: float | None = None
    label_max: Annotated[float, Gt(0)] | None = None

    beyond_steps = "sums of gradients by column and bin"

    @property
    def own_rounds(self) -> int | None:
        """Return the number of trees, where it is set."""
        return self.trees

    def check(self, setting: Setting) -> None:
        """Refuse places without raw columns: companions and other frameworks."""
        if not setting.grows_trees:
            raise BadValue(
                f"{type(self).__name__} grows trees, which run in fedarena alone and without companions",
                remedy="run it with fedarena itself, without algorithm.with",
                where="algorithm.name",
            )

    def boosting(self, forest: Forest, scale: float = 1.0) -> Boosting:
        """Return the settings of one boosting step; leaves are multiplied by `scale` times the learning rate."""
        return Boosting(
            forest.objective, max(forest.outputs, 2), self.depth, self.learning_rate * scale, self.lambda_, self.gamma / 2,
            self.min_child_weight, float(forest.label_bound),
        )  # fmt: skip

    def chosen_rows(self, work: Work) -> NDArray[np.bool_] | None:
        """Return the rows of a client that this round's trees are grown from; None for all."""
        if self.subsample == 1:
            return None
        chosen: NDArray[np.bool_] = work.stream("algorithm").random(work.rows) < self.subsample
        return chosen

    def unseen_model(self, message: Any, client_state: Any, work: Work, steps: int) -> Vector:
        """Return the forest of the server with so many boosting steps more, on all samples of the client."""
        forest, alone = Forest.of(message.w), replace(self, subsample=1.0)
        if steps and forest.objective == "squared_error":  # the agreed bound does not hold for samples of others
            farthest = float(np.abs(work.boosted_rows.labels - forest.base).max()) * (1 + 1e-6)
            forest = replace(forest, label_bound=np.float32(max(float(forest.label_bound), farthest)))
        for _ in range(steps):
            forest = forest.with_trees(alone.grow(forest.vector, work))
        return forest.vector

    def grow(self, w: Vector, work: Work, scale: float = 1.0) -> Float32Array:
        """Return the trees of one boosting step on a client's own rows, in bins of its own, [outputs, nodes, 4]."""
        forest, rows = Forest.of(w), work.boosted_rows
        boosting, table = self.boosting(forest, scale), rows.own_cuts(self.bins).table
        point = boosting.point(work.rows)
        integers = rows.integers(w, boosting, point, self.chosen_rows(work))
        growth = RowGrowth(boosting, point, table)
        while len(growth.build):
            growth.advance(rows.sums(table, integers, growth.trees, growth.depth, growth.build))
        return growth.result()
