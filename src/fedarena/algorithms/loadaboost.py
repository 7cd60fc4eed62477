"""LoAdaBoost: Huang, Yin, Fu, Zhang, Deng, Liu, "LoAdaBoost: loss-based AdaBoost federated machine learning with reduced
computational complexity on IID and non-IID intensive care data", 2020, arXiv:1811.12629; poster of Pfitzner & Arnrich."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge

from fedarena.algorithms.base import Algorithm, Cohort, Reply, Setting, Vector, Work, collected
from fedarena.algorithms.checks import check_counts_epochs
from fedarena.config.registry import register


@dataclass(frozen=True)
class LoAdaBoostState:
    """The weights, and the median of the clients' losses in the previous round."""

    w: Vector
    median: float


@dataclass(frozen=True)
class LoAdaBoostUpdate:
    """A step, the epochs it took, and the loss that enters the median."""

    delta: Vector
    epochs: float
    loss: float = collected()


@register("algorithm", "loadaboost", paper="Huang et al. 2020, arXiv:1811.12629")
@dataclass(frozen=True)
class LoAdaBoost(Algorithm):
    """Clients train for half the epochs; those whose loss is above the last median continue.

    `direction = "below"` takes the poster's printed comparison literally; `trial_start = 1` and `half` its other
    ambiguities. The cap of 3E/2 epochs is checked before a retraining, so it may be overshot unless `hard_cap`.

    >>> import fedarena as fa
    >>> federation = dict(rounds=5, clients=6, partition="iid", out=False)
    >>> run = fa.run("digits", algorithm=fa.LoAdaBoost(), **federation)
    >>> run.final.accuracy > 0.8
    True
    """

    direction: Literal["above", "below"] = "above"
    trial_start: Annotated[int, Ge(0)] = 0
    half: Literal["floor", "ceil", "round", "fractional"] = "floor"
    initial_median: float | None = None  # None: no client retrains in round 0
    median_of: Literal["first", "final"] = "first"
    loss_on: Literal["last_epoch", "rows"] = "last_epoch"
    hard_cap: bool = False

    needs = "each update"  # every loss, for the median
    beyond_steps = "the training loss of each client"

    def check(self, setting: Setting) -> None:
        """Refuse steps in place of epochs."""
        check_counts_epochs("loadaboost", setting, "divides the epochs of a round")

    def init(self, w: Vector) -> LoAdaBoostState:
        """L_med = +inf for `above`, -inf for `below`."""
        never = math.inf if self.direction == "above" else -math.inf
        return LoAdaBoostState(w, never if self.initial_median is None else self.initial_median)

    def broadcast(self, state: LoAdaBoostState) -> LoAdaBoostState:
        """Send the model and the median."""
        return state

    def client(self, message: LoAdaBoostState, client_state: None, work: Work) -> Reply:
        """Train E/2 epochs, then E/2 - r + 1 more for r = 1, 2, ... while the loss is on the wrong side of the median."""
        half = self._half(work.epochs)
        cap = 1.5 * work.epochs
        w, loss = self._train(message.w, half, work)
        first, total, trial = loss, half, self.trial_start
        while self._retrains(loss, message.median) and total < cap:
            more = max(half - trial, 1)
            more = min(more, cap - total) if self.hard_cap else more
            w, loss = self._train(w, more, work)
            total, trial = total + more, trial + 1
        sent = first if self.median_of == "first" else loss
        return Reply(LoAdaBoostUpdate(message.w - w, total, sent), weight=work.rows)

    def _half(self, epochs: int) -> float:
        """Return E/2 as an integer of at least 1, or as it is."""
        if self.half == "fractional" or epochs == 0:
            return epochs / 2
        whole = {"floor": math.floor(epochs / 2), "ceil": math.ceil(epochs / 2), "round": round(epochs / 2)}
        return max(whole[self.half], 1)

    def _train(self, w: Vector, epochs: float, work: Work) -> tuple[Vector, float]:
        out = work.train(w, epochs=epochs)
        loss = work.evaluate(out.w)[1] if self.loss_on == "rows" else out.losses[-1] if out.losses else math.nan
        return out.w, loss

    def _retrains(self, loss: float, median: float) -> bool:
        return loss > median if self.direction == "above" else loss < median

    def server(self, state: LoAdaBoostState, mean: LoAdaBoostUpdate, cohort: Cohort) -> LoAdaBoostState:
        """Average as FedAvg; L_med <- median of the L_k."""
        return LoAdaBoostState(state.w - mean.delta, float(np.median(mean.loss)))
