"""FedProx with an adaptive mu: Li et al. 2020, arXiv:1812.06127, section 5.3.2. `FedProx(schedule="adaptive")` is this."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from fedarena.algorithms.base import Cohort, Model, Pull, Reply, Step, Vector, Work
from fedarena.algorithms.fedprox import FedProx
from fedarena.config.variant_selection import variant_of

MU_STEP = 0.1  # by which mu changes at a time
PATIENCE = 5  # rounds of falling loss after which mu decreases


@dataclass(frozen=True)
class FedProxState(Model):
    """The weights, the current mu, the loss of the last round, and for how many rounds the loss has fallen."""

    mu: float
    loss: float
    falls: int


@dataclass(frozen=True)
class FedProxMessage(Model):
    """The model and the mu of this round, which clients cannot know."""

    mu: float


@dataclass(frozen=True)
class FedProxUpdate(Step):
    """A step, and the loss of the model that it started from."""

    loss: float


@variant_of(FedProx, schedule=("adaptive",))
@dataclass(frozen=True)
class AdaptiveFedProx(FedProx):
    """FedProx whose mu grows by 0.1 when the loss rises, and falls by 0.1 when it has fallen five rounds in a row.

    >>> import fedarena as fa
    >>> algorithm = fa.FedProx(mu=0.1, schedule="adaptive")
    >>> type(algorithm).__name__
    'AdaptiveFedProx'
    >>> run = fa.run("digits", algorithm=algorithm, rounds=5, clients=6, partition="iid", out=False)
    >>> run.final.accuracy > 0.8
    True
    """

    beyond_steps = "the training loss of each client"

    def __post_init__(self) -> None:
        object.__setattr__(self, "schedule", "adaptive")  # also where this class is created directly

    def init(self, w: Vector) -> FedProxState:
        """Start with mu as it is set; any loss of the first round is a fall."""
        return FedProxState(w, self.mu, math.inf, 0)

    def broadcast(self, state: FedProxState) -> FedProxMessage:
        """Send the model and the mu of this round."""
        return FedProxMessage(state.w, state.mu)

    def client(self, message: Any, client_state: None, work: Work) -> Reply:
        """Train as FedProx with the mu of this round; also send F_k(w_t)."""
        out = work.train(message.w, adjust=Pull(message.mu, centre=message.w))
        update = FedProxUpdate(message.w - out.w, work.evaluate(message.w)[1])
        return Reply(update, weight=work.rows)

    def server(self, state: Any, mean: Any, cohort: Cohort) -> FedProxState:
        """Average as FedAvg; then adapt mu to the change of the loss."""
        w = state.w - mean.delta
        if mean.loss > state.loss:
            largest = 1.9 / cohort.lr  # lr x mu = 2 would diverge
            return FedProxState(w, min(state.mu + MU_STEP, largest), mean.loss, 0)
        falls = state.falls + 1
        if falls < PATIENCE:
            return FedProxState(w, state.mu, mean.loss, falls)
        return FedProxState(w, max(state.mu - MU_STEP, 0.0), mean.loss, 0)
