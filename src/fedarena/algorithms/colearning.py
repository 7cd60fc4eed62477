"""Co-Learning: Xu, Mi, Feng, Wang, Chen, Zheng, Lan, "Collaborative Deep Learning Across Multiple Data Centers", 2018,
arXiv:1810.06877; poster of Pfitzner & Arnrich."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge, Gt

from fedarena.algorithms.base import Algorithm, Cohort, Reply, Step, Vector, Work
from fedarena.registry import register


@dataclass(frozen=True)
class Paced:
    """Weights, and how many times as many epochs as at first clients train."""

    w: Vector
    factor: int


@register("algorithm", "colearning", paper="Xu et al. 2018, arXiv:1810.06877")
@dataclass(frozen=True)
class CoLearning(Algorithm):
    """The rate falls within each round and starts again in the next; epochs double when the model hardly moves.

    In local epoch e of E_t the rate is eta decay^(e / E_t). E doubles after a round in which the model moved by at most
    `epsilon` of its length, up to `most` times the first. `granularity = "step"` lets the rate fall with every step.
    """

    decay: Annotated[float, Gt(0)] = 0.001
    epsilon: float = 0.01
    most: Annotated[int, Ge(1)] = 16
    granularity: Literal["epoch", "step"] = "epoch"

    def init(self, w: Vector) -> Paced:
        """E_0 as the experiment says."""
        return Paced(w, 1)

    def broadcast(self, state: Paced) -> Paced:
        """The epochs go along."""
        return state

    def client(self, got: Paced, kept: None, work: Work) -> Reply:
        """Local SGD with a falling rate."""
        epochs = got.factor * work.epochs

        def pace(epoch: int, done: float) -> float:
            return float(self.decay ** (epoch / epochs if self.granularity == "epoch" else done))

        out = work.train(got.w, epochs=epochs, pace=pace)
        return Reply(Step(got.w - out.w), weight=work.rows)

    def server(self, state: Paced, mean: Step, cohort: Cohort) -> Paced:
        """As FedAvg; E_{t+1} = 2 E_t if |w_{t+1} - w_t| / |w_t| <= epsilon."""
        w = state.w - mean.delta
        still = _length(w - state.w) <= self.epsilon * _length(state.w)
        return Paced(w, min(2 * state.factor, self.most) if still else state.factor)


def _length(v: Vector) -> float:
    """|v|, the same whoever made the processor: numpy's own norm is a product of vectors by a library that is not."""
    return float(np.sqrt(np.add.reduce(np.square(v, dtype=np.float64))))
