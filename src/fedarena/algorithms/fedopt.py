"""FedAdagrad, FedAdam, FedYogi: Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan, "Adaptive Federated
Optimization", 2021, arXiv:2003.00295, algorithm 2. The three differ in one line of the server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Ge, Gt, Lt

from fedarena.algorithms.base import Algorithm, Cohort, Model, Reply, Step, Vector, Work
from fedarena.config.registry import register


@dataclass(frozen=True)
class FedOptState:
    """The weights, and the running first and second moments of the mean step."""

    w: Vector
    m: Vector
    v: Vector


@dataclass(frozen=True)
class AdaptiveServer(Algorithm):
    """An adaptive optimizer on the server takes the mean step as its gradient: w - server_lr m / (sqrt(v) + tau)."""

    server_lr: Annotated[float, Gt(0)] = 0.03
    beta_1: Annotated[float, Ge(0), Lt(1)] = 0.9
    beta_2: Annotated[float, Ge(0), Lt(1)] = 0.99
    tau: Annotated[float, Gt(0)] = 1e-3

    def init(self, w: Vector) -> FedOptState:
        """Start with moments m = 0 and v = tau^2."""
        return FedOptState(w, np.zeros_like(w), np.full_like(w, self.tau**2))

    def client(self, message: Model, client_state: None, work: Work) -> Reply:
        """Train and send w_t - w_k, as FedAvg."""
        return Reply(Step(message.w - work.train(message.w).w), weight=work.rows)

    def second_moment(self, v: Vector, g2: Vector) -> Vector:
        """Return the new second moment: the line in which the three algorithms differ."""
        raise NotImplementedError

    def server(self, state: FedOptState, mean: Step, cohort: Cohort) -> FedOptState:
        """m = beta_1 m + (1 - beta_1) G; v by its rule; w <- w - server_lr m / (sqrt(v) + tau)."""
        m = self.beta_1 * state.m + (1 - self.beta_1) * mean.delta
        v = self.second_moment(state.v, mean.delta**2)
        return FedOptState(state.w - self.server_lr * m / (np.sqrt(v) + self.tau), m, v)


@register("algorithm", "fedadagrad", paper="Reddi et al. 2021, arXiv:2003.00295")
@dataclass(frozen=True)
class FedAdagrad(AdaptiveServer):
    """FedAvg's mean step, taken by Adagrad on the server: steps shrink where much has moved.

    >>> import fedarena as fa
    >>> federation = dict(rounds=30, clients=6, partition="iid", out=False)
    >>> run = fa.run("digits", algorithm=fa.FedAdagrad(server_lr=0.1), **federation)
    >>> run.final.accuracy > 0.7
    True
    """

    beta_1: Annotated[float, Ge(0), Lt(1)] = 0.0

    def second_moment(self, v: Vector, g2: Vector) -> Vector:
        """Return Adagrad's moment, v + G^2."""
        return v + g2


@register("algorithm", "fedadam", paper="Reddi et al. 2021, arXiv:2003.00295")
@dataclass(frozen=True)
class FedAdam(AdaptiveServer):
    """FedAvg's mean step, taken by Adam on the server: every weight moves at its own scale.

    >>> import fedarena as fa
    >>> federation = dict(rounds=5, clients=6, partition="iid", out=False)
    >>> run = fa.run("digits", algorithm=fa.FedAdam(server_lr=0.03), **federation)
    >>> run.final.accuracy > 0.8
    True
    """

    def second_moment(self, v: Vector, g2: Vector) -> Vector:
        """beta_2 v + (1 - beta_2) G^2."""
        return self.beta_2 * v + (1 - self.beta_2) * g2


@register("algorithm", "fedyogi", paper="Reddi et al. 2021, arXiv:2003.00295")
@dataclass(frozen=True)
class FedYogi(AdaptiveServer):
    """FedAvg's mean step, taken by Yogi on the server: as Adam, but the scale grows and shrinks additively.

    >>> import fedarena as fa
    >>> federation = dict(rounds=5, clients=6, partition="iid", out=False)
    >>> run = fa.run("digits", algorithm=fa.FedYogi(server_lr=0.03), **federation)
    >>> run.final.accuracy > 0.8
    True
    """

    def second_moment(self, v: Vector, g2: Vector) -> Vector:
        """v - (1 - beta_2) G^2 sign(v - G^2)."""
        change: Vector = (1 - self.beta_2) * g2 * np.sign(v - g2)
        return v - change
