"""FedProx: Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated Optimization in Heterogeneous Networks", 2020,
arXiv:1812.06127, algorithm 2."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le

from fedarena.algorithms.base import (
    Algorithm,
    Cohort,
    Model,
    Pull,
    Reply,
    Setting,
    Step,
    Vector,
    Work,
    refuse_stiff_spring,
)
from fedarena.registry import register

STIFFER = 0.1  # how much mu changes at a time, and after how many better rounds it may soften (section 5.3.2)
PATIENCE = 5


@dataclass(frozen=True)
class Sprung:
    """Weights, and a spring that adapts: its stiffness, the last loss, and for how many rounds that has fallen."""

    w: Vector
    mu: float
    loss: float
    falls: int


@dataclass(frozen=True)
class Tied:
    """What clients hear where they cannot know mu: the model, and the stiffness of this round's spring."""

    w: Vector
    mu: float


@dataclass(frozen=True)
class Told:
    """A step, and the loss of the model it began with."""

    delta: Vector
    loss: float


@register("algorithm", "fedprox", paper="Li et al. 2020, arXiv:1812.06127")
@dataclass(frozen=True)
class FedProx(Algorithm):
    """A spring of stiffness mu ties every client to the global model while it trains.

    With `straggler_fraction`, that share of clients stops early, after a random number of epochs from `epochs_min` on,
    and is averaged all the same. With `schedule = "adaptive"` mu grows by 0.1 when the loss rises, and falls by 0.1 when
    it has fallen five rounds in a row.
    """

    mu: Annotated[float, Ge(0)] = 0.01
    schedule: Literal["constant", "adaptive"] = "constant"
    straggler_fraction: Annotated[float, Ge(0), Le(1)] = 0.0
    epochs_min: Annotated[int, Ge(0)] = 1

    def check(self, setting: Setting) -> None:
        """The spring's own gradient step diverges from eta mu = 2 on."""
        refuse_stiff_spring("fedprox", setting.lr, self.mu, "mu")

    def init(self, w: Vector) -> Sprung:
        """The spring as it is set."""
        return Sprung(w, self.mu, math.inf, 0)

    def broadcast(self, state: Sprung) -> Any:
        """The model, and mu where clients cannot know it."""
        return Tied(state.w, state.mu) if self.schedule == "adaptive" else Model(state.w)

    def client(self, got: Any, kept: None, work: Work) -> Reply:
        """Local SGD on F_k(w) + mu/2 |w - w_t|^2."""
        mu = got.mu if self.schedule == "adaptive" else self.mu
        out = work.train(got.w, adjust=Pull(mu, centre=got.w), epochs=self._epochs(work))
        delta = got.w - out.w
        send = Told(delta, work.evaluate(got.w)[1]) if self.schedule == "adaptive" else Step(delta)
        return Reply(send, weight=work.rows)

    def _epochs(self, work: Work) -> int:
        """E, or for a straggler E_k ~ U{epochs_min..E}."""
        if not self.straggler_fraction:
            return work.epochs
        rng = work.stream("straggler")
        slow = rng.random() < self.straggler_fraction
        return int(rng.integers(min(self.epochs_min, work.epochs), work.epochs + 1)) if slow else work.epochs

    def server(self, state: Sprung, mean: Any, cohort: Cohort) -> Sprung:
        """As FedAvg; then the spring."""
        w = state.w - mean.delta
        if self.schedule == "constant":
            return Sprung(w, self.mu, math.inf, 0)
        if mean.loss > state.loss:
            stiffest = 1.9 / cohort.lr  # eta mu = 2 would diverge
            return Sprung(w, min(state.mu + STIFFER, stiffest), mean.loss, 0)
        falls = state.falls + 1
        softer = falls == PATIENCE
        return Sprung(w, max(state.mu - STIFFER, 0.0) if softer else state.mu, mean.loss, 0 if softer else falls)
