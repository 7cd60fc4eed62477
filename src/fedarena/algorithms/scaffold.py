"""SCAFFOLD: Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, "SCAFFOLD: Stochastic Controlled Averaging for Federated
Learning", 2020, arXiv:1910.06378, algorithm 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from annotated_types import Gt

from fedarena.algorithms.base import (
    Algorithm,
    Cohort,
    Outcome,
    Pull,
    Reply,
    Setting,
    Vector,
    Work,
    refuse_kept_momentum,
    summed,
)
from fedarena.errors import BadValue
from fedarena.registry import register


@dataclass(frozen=True)
class Controlled:
    """Weights, and the control variate: an estimate of the federation's gradient."""

    w: Vector
    c: Vector


@dataclass(frozen=True)
class Drift:
    """Steps of the model, averaged, and of the control variate, added up."""

    delta: Vector
    dc: Vector = summed()


@register("algorithm", "scaffold", paper="Karimireddy et al. 2020, arXiv:1910.06378")
@dataclass(frozen=True)
class Scaffold(Algorithm):
    """Control variates cancel the drift of clients: each step is corrected by c - c_k, what the others would add.

    `option` "i" takes c_k from the gradient at the global model, "ii" from the path just gone. With momentum, outside the
    paper, the correction goes inside it and c_k is scaled by ||a||_1 (`inside_norm`), or both as published code does
    (`outside_tau`); other pairs are wrong. Weighting models by rows but controls uniformly leads to the optimum of the
    uniform mean; `control_weighting = "size"` leads to that of the mean by rows; "cohort" divides by those who answered,
    not by all, as some published code does: c is N / |S_t| times too large then. Controls start at 0; some published code
    starts them from weights (`start = "weights"`, those of the first model), which the paper does not say.
    """

    option: Literal["ii", "i"] = "ii"
    server_lr: Annotated[float, Gt(0)] = 1.0
    weights: Literal["rows", "uniform"] = "rows"
    control_weighting: Literal["uniform", "size", "cohort"] = "uniform"
    momentum_form: Literal["inside_norm", "outside_tau"] = "inside_norm"
    start: Literal["zero", "weights"] = "zero"

    def check(self, setting: Setting) -> None:
        """Outside momentum, c_k must be 1 / (1 - rho) times a gradient; option (i) gives the gradient itself."""
        refuse_kept_momentum("scaffold", setting)
        if setting.momentum and self.option == "i" and self.momentum_form == "outside_tau":
            raise BadValue(
                "scaffold with momentum cannot correct outside of it (outside_tau) by plain gradients (option i)",
                remedy='use momentum_form = "inside_norm", or option = "ii"',
                where="algorithm.momentum_form",
            )

    def init(self, w: Vector) -> Controlled:
        """c = 0."""
        return Controlled(w, self.remember(w))

    def remember(self, w: Vector) -> Vector:
        """c_k = 0."""
        return w.copy() if self.start == "weights" else np.zeros_like(w)

    def broadcast(self, state: Controlled) -> Controlled:
        """Clients hear both."""
        return state

    def client(self, got: Controlled, c_k: Vector, work: Work) -> Reply:
        """y <- y - eta (g(y) - c_k + c); then a new c_k."""
        outside = self.momentum_form == "outside_tau"
        out = work.train(got.w, adjust=Pull(b=got.c - c_k, outside=outside))
        delta = got.w - out.w
        c_new = work.gradient(got.w) if self.option == "i" else c_k - got.c + self._path(delta, out)
        dc = (c_new - c_k) * work.rows if self.control_weighting == "size" else c_new - c_k
        return Reply(Drift(delta, dc), keep=c_new, weight=work.rows if self.weights == "rows" else 1.0)

    def _path(self, delta: Vector, out: Outcome) -> Vector:
        """The mean gradient along the path: (w_t - y) / (tau eta), for any schedule of rates."""
        length = out.lr_sum if self.momentum_form == "outside_tau" else out.unit_displacement
        return delta / (length or 1.0)

    def server(self, state: Controlled, mean: Drift, cohort: Cohort) -> Controlled:
        """w <- w - gamma sum p_k Delta_k; c <- c + 1/N sum Delta c_k, N being the whole population."""
        whole = {"uniform": cohort.population, "size": cohort.total_rows, "cohort": len(cohort.answered)}
        return Controlled(state.w - self.server_lr * mean.delta, state.c + mean.dc / whole[self.control_weighting])
