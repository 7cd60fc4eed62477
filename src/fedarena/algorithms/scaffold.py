"""SCAFFOLD: Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, "SCAFFOLD: Stochastic Controlled Averaging for Federated
Learning", 2020, arXiv:1910.06378, algorithm 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from annotated_types import Gt

from fedarena.algorithms.base import Algorithm, Cohort, Model, Pull, Reply, Setting, Step, Vector, Work, summed
from fedarena.algorithms.checks import check_control_variates
from fedarena.config.registry import register


@dataclass(frozen=True)
class ScaffoldState(Model):
    """The weights, and the server's control variate c: an estimate of the gradient of the whole federation."""

    c: Vector


@dataclass(frozen=True)
class ScaffoldUpdate(Step):
    """The steps of the model, which are averaged, and of the control variate, which are summed."""

    dc: Vector = summed()


@register("algorithm", "scaffold", paper="Karimireddy et al. 2020, arXiv:1910.06378")
@dataclass(frozen=True)
class Scaffold(Algorithm):
    """Control variates cancel the drift of clients: each local step is corrected by c - c_k.

    `option` "i" takes c_k from the gradient at the global model, "ii" from the local path. With momentum, which is not in
    the paper, the correction enters the momentum and c_k is divided by ||a||_1. Other values of `control_weighting`,
    `momentum_form` and `start` are those of published code: see `variants.ScaffoldVariant`.

    >>> import fedarena as fa
    >>> federation = dict(rounds=5, clients=6, partition="iid", out=False)
    >>> run = fa.run("digits", algorithm=fa.Scaffold(), **federation)
    >>> run.final.accuracy > 0.8
    True
    """

    option: Literal["ii", "i"] = "ii"
    server_lr: Annotated[float, Gt(0)] = 1.0
    weights: Literal["rows", "uniform"] = "rows"
    control_weighting: Literal["uniform", "size", "cohort"] = "uniform"
    momentum_form: Literal["inside_norm", "outside_tau"] = "inside_norm"
    start: Literal["zero", "weights"] = "zero"

    def check(self, setting: Setting) -> None:
        """Refuse other optimizers, kept momentum, and a c_k of option (i) that would reveal private samples."""
        check_control_variates("scaffold", setting, from_gradient=self.option == "i")

    def init(self, w: Vector) -> ScaffoldState:
        """Start with the control variate c = 0."""
        return ScaffoldState(w, self.remember(w))

    def remember(self, w: Vector) -> Vector:
        """Start with the client's control variate c_k = 0."""
        return np.zeros_like(w)

    def broadcast(self, state: ScaffoldState) -> ScaffoldState:
        """Send both w and c to the clients."""
        return state

    def client(self, message: ScaffoldState, c_k: Vector, work: Work) -> Reply:
        """y <- y - eta (g(y) - c_k + c); c_k+ = grad F_k(w_t) (i) or c_k - c + (w_t - y) / (tau eta) (ii)."""
        out = work.train(message.w, adjust=Pull(b=message.c - c_k))
        delta, length = message.w - out.w, out.unit_displacement or 1.0  # tau eta, for any schedule of rates
        c_new = work.gradient(message.w) if self.option == "i" else c_k - message.c + delta / length
        return Reply(ScaffoldUpdate(delta, c_new - c_k), c_new, work.rows if self.weights == "rows" else 1.0)

    def server(self, state: ScaffoldState, mean: ScaffoldUpdate, cohort: Cohort) -> ScaffoldState:
        """w <- w - gamma sum p_k Delta_k; c <- c + 1/N sum Delta c_k, N being the whole population."""
        return ScaffoldState(state.w - self.server_lr * mean.delta, state.c + mean.dc / cohort.population)
