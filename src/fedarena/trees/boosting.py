"""The settings of horizontal boosting in the terms of the shared tree code, and the fixed point that follows from them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedarena.trees.fixed_point import FixedPoint, bounded_fixed_point
from fedarena.trees.objectives import Objective, make_objective
from fedarena.trees.settings import ObjectiveName

RESIDUAL_ROOM = 4.0  # how many times its first bound a residual of squared error may reach
TINY = 1e-30  # a bound where all labels are equal


@dataclass(frozen=True)
class Boosting:
    """How trees are grown from gradients; `gamma` is half of XGBoost's, as everywhere in `trees`."""

    objective: ObjectiveName
    classes: int
    depth: int
    lr: float
    lambda_: float
    gamma: float
    min_child_weight: float
    label_bound: float = 0.0  # of |label - base|, for squared error
    min_leaf_rows: int = 0  # rows are not counted: only sums of g and h are known

    @property
    def outputs(self) -> int:
        """Return the number of margins of a row, which is the number of trees of a boosting step."""
        return self.classes if self.objective == "softmax" else 1

    @property
    def loss(self) -> Objective:
        """Return the loss with its derivatives."""
        return make_objective(self)

    @property
    def bounds(self) -> tuple[float, float]:
        """Return bounds of |g| and h that hold for every sample: of the loss, or of the agreed largest label."""
        if self.objective == "squared_error":
            return RESIDUAL_ROOM * max(self.label_bound, TINY), 1.0
        return 1.0, 0.25 if self.objective == "logistic" else 0.5

    def point(self, rows: int) -> FixedPoint:
        """Return the fixed point in which sums over at most so many rows are exact."""
        return bounded_fixed_point(*self.bounds, rows)


def base_margin(objective: ObjectiveName, base_score: float) -> np.float32:
    """Return the margin that all predictions start from; `base_score` is a probability for two classes, as in XGBoost.

    >>> float(base_margin("logistic", 0.5)), float(base_margin("squared_error", 2.5))
    (0.0, 2.5)
    """
    return np.float32(math.log(base_score / (1 - base_score)) if objective == "logistic" else base_score)
