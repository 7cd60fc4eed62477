"""Co-Learning: Xu, Mi, Feng, Wang, Chen, Zheng, Lan, "Collaborative Deep Learning Across Multiple Data Centers", 2018,
arXiv:1810.06877; poster of Pfitzner & Arnrich."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge, Gt

from fedarena.algorithms.base import Algorithm, Cohort, Reply, Setting, Step, Vector, Work
from fedarena.algorithms.checks import check_counts_epochs
from fedarena.config.registry import register


@dataclass(frozen=True)
class CoLearningState:
    """The weights, and the factor by which clients multiply the epochs of the experiment."""

    w: Vector
    factor: int


@register("algorithm", "colearning", paper="Xu et al. 2018, arXiv:1810.06877")
@dataclass(frozen=True)
class CoLearning(Algorithm):
    """The learning rate decays within each round and restarts in the next; epochs double when the model hardly moves.

    In local epoch e of E_t the rate is eta decay^(e / E_t). E doubles after a round in which the model moved by at most
    `epsilon` of its length, up to `most` times the first. `granularity = "step"` lets the rate decay with every step.

    >>> import fedarena as fa
    >>> federation = dict(rounds=5, clients=6, partition="iid", out=False)
    >>> run = fa.run("digits", algorithm=fa.CoLearning(), **federation)
    >>> run.final.accuracy > 0.8
    True
    """

    decay: Annotated[float, Gt(0)] = 0.001
    epsilon: float = 0.01
    most: Annotated[int, Ge(1)] = 16
    granularity: Literal["epoch", "step"] = "epoch"

    def check(self, setting: Setting) -> None:
        """Refuse steps in place of epochs."""
        check_counts_epochs("colearning", setting, "doubles the epochs of a round")

    def init(self, w: Vector) -> CoLearningState:
        """E_0 is that of the experiment."""
        return CoLearningState(w, 1)

    def broadcast(self, state: CoLearningState) -> CoLearningState:
        """Send the model and the factor of epochs."""
        return state

    def client(self, message: CoLearningState, client_state: None, work: Work) -> Reply:
        """Run local SGD with a decaying rate."""
        epochs = message.factor * work.epochs

        def pace(epoch: int, done: float) -> float:
            return float(self.decay ** (epoch / epochs if self.granularity == "epoch" else done))

        out = work.train(message.w, epochs=epochs, pace=pace)
        return Reply(Step(message.w - out.w), weight=work.rows)

    def server(self, state: CoLearningState, mean: Step, cohort: Cohort) -> CoLearningState:
        """Average as FedAvg; E_{t+1} = 2 E_t if |w_{t+1} - w_t| / |w_t| <= epsilon."""
        w = state.w - mean.delta
        still = _length(w - state.w) <= self.epsilon * _length(state.w)
        return CoLearningState(w, min(2 * state.factor, self.most) if still else state.factor)


def _length(v: Vector) -> float:
    """Return |v| with the same bits on all processors; numpy's norm calls a library whose bits depend on the vendor."""
    return float(np.sqrt(np.add.reduce(np.square(v, dtype=np.float64))))
