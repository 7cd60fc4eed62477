"""FedDyn: Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama, "Federated Learning Based on Dynamic
Regularization", 2021, arXiv:2111.04263, algorithm 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Gt

from fedarena.algorithms.base import Algorithm, Cohort, Model, Pull, Reply, Setting, Step, Vector, Work
from fedarena.errors import BadValue
from fedarena.registry import register


@dataclass(frozen=True)
class Leaning:
    """Weights, and h: the sum of what all clients lean away from them."""

    w: Vector
    h: Vector


@register("algorithm", "feddyn", paper="Acar et al. 2021, arXiv:2111.04263")
@dataclass(frozen=True)
class FedDyn(Algorithm):
    """Each client's loss is bent so that its optimum is the federation's: a spring, and a linear term that remembers."""

    alpha: Annotated[float, Gt(0)] = 0.1

    def check(self, setting: Setting) -> None:
        """The spring's own gradient step diverges from eta alpha = 2 on."""
        if setting.lr * self.alpha >= 2:
            raise BadValue(
                f"feddyn diverges: local.lr x alpha = {setting.lr * self.alpha:g}, and must stay below 2",
                remedy=f"use alpha below {2 / setting.lr:g}, or a smaller local.lr",
                where="algorithm.alpha",
            )

    def init(self, w: Vector) -> Leaning:
        """h = 0."""
        return Leaning(w, np.zeros_like(w))

    def remember(self, w: Vector) -> Vector:
        """The gradient at its own last optimum, 0 at first."""
        return np.zeros_like(w)

    def client(self, got: Model, g_k: Vector, work: Work) -> Reply:
        """argmin F_k(w) - <g_k, w> + alpha/2 |w - w_t|^2; then g_k <- g_k - alpha (w_k - w_t)."""
        out = work.train(got.w, adjust=Pull(self.alpha, centre=got.w, b=-g_k))
        delta = got.w - out.w
        return Reply(Step(delta), keep=g_k + self.alpha * delta)

    def server(self, state: Leaning, mean: Step, cohort: Cohort) -> Leaning:
        """h <- h - alpha/N sum (w_k - w_t); w <- mean of w_k - h / alpha."""
        h = state.h + self.alpha * cohort.share * mean.delta
        return Leaning(state.w - mean.delta - h / self.alpha, h)
