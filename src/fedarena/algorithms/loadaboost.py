"""LoAdaBoost: Huang, Yin, Fu, Zhang, Deng, Liu, "LoAdaBoost: loss-based AdaBoost federated machine learning with reduced
computational complexity on IID and non-IID intensive care data", 2020, arXiv:1811.12629; poster of Pfitzner & Arnrich."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge

from fedarena.algorithms.base import Algorithm, Cohort, Reply, Vector, Work, collected
from fedarena.registry import register


@dataclass(frozen=True)
class Judged:
    """Weights, and the median of the clients' losses in the round before."""

    w: Vector
    median: float


@dataclass(frozen=True)
class Effort:
    """A step, the loss it is judged by, and the epochs it took."""

    delta: Vector
    epochs: float
    loss: float = collected()


@register("algorithm", "loadaboost", paper="Huang et al. 2020, arXiv:1811.12629")
@dataclass(frozen=True)
class LoAdaBoost(Algorithm):
    """Clients train for half the epochs; those whose loss is above the last median train on.

    `direction = "below"` takes the poster's printed comparison literally; `trial_start = 1` and `half` its other
    ambiguities. The cap of 3E/2 epochs is checked before a retraining, so it may be overshot unless `hard_cap`.
    """

    direction: Literal["above", "below"] = "above"
    trial_start: Annotated[int, Ge(0)] = 0
    half: Literal["floor", "ceil", "round", "fractional"] = "floor"
    initial_median: float | None = None  # None: nobody retrains in round 0
    median_of: Literal["first", "final"] = "first"
    loss_on: Literal["last_epoch", "rows"] = "last_epoch"
    hard_cap: bool = False

    needs = "each update"  # each loss, for their median

    def init(self, w: Vector) -> Judged:
        """L_med = +inf for `above`, -inf for `below`."""
        nobody = math.inf if self.direction == "above" else -math.inf
        return Judged(w, nobody if self.initial_median is None else self.initial_median)

    def broadcast(self, state: Judged) -> Judged:
        """The median goes along."""
        return state

    def client(self, got: Judged, kept: None, work: Work) -> Reply:
        """E/2 epochs, then E/2 - r + 1 more for r = 1, 2, ... while its loss is on the wrong side of the median."""
        half = self._half(work.epochs)
        cap = 1.5 * work.epochs
        w, loss = self._train(got.w, half, work)
        first, total, trial = loss, half, self.trial_start
        while self._retrains(loss, got.median) and total < cap:
            more = max(half - trial, 1)
            more = min(more, cap - total) if self.hard_cap else more
            w, loss = self._train(w, more, work)
            total, trial = total + more, trial + 1
        told = first if self.median_of == "first" else loss
        return Reply(Effort(got.w - w, total, told), weight=work.rows)

    def _half(self, epochs: int) -> float:
        """E/2 as a whole number, at least 1, or as it is."""
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

    def server(self, state: Judged, mean: Effort, cohort: Cohort) -> Judged:
        """As FedAvg; L_med <- median of the L_k."""
        return Judged(state.w - mean.delta, float(np.median(mean.loss)))
