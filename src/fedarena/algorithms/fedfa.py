"""FedFA: Huang, Li, Wang, Du, Zhang, "Fairness and Accuracy in Federated Learning", 2020, arXiv:2012.10069."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge, Gt, Le, Lt
from numpy.typing import NDArray

from fedarena.algorithms.base import Algorithm, Cohort, Model, Reply, Setting, Vector, Work, collected
from fedarena.config.errors import BadValue
from fedarena.config.registry import register


@dataclass(frozen=True)
class FedFAState:
    """The weights, the velocity, and the number of rounds in which each client has taken part."""

    w: Vector
    v: Vector
    visits: dict[int, int]


@dataclass(frozen=True)
class FedFAUpdate:
    """The step and the training accuracy of each client."""

    delta: Vector = collected()
    accuracy: float = collected()


@register("algorithm", "fedfa", paper="Huang et al. 2020, arXiv:2012.10069")
@dataclass(frozen=True)
class FedFA(Algorithm):
    """Clients with a low accuracy or few rounds weigh more; momentum on the server (and on clients by `local.momentum`).

    A client's weight mixes the information in its accuracy, -log2 of its share of all accuracies, and in its visits,
    -log2 of its share of them (`freq = "more_more"`: of one minus it, so that frequent clients weigh more).

    >>> import fedarena as fa
    >>> federation = dict(rounds=5, clients=6, partition="iid", out=False)
    >>> run = fa.run("digits", algorithm=fa.FedFA(), **federation)
    >>> run.final.accuracy > 0.8
    True
    """

    mix: Annotated[float, Ge(0), Le(1)] = 0.5  # alpha_F; beta_F is the rest
    freq: Literal["less_more", "more_more"] = "less_more"
    beta: Annotated[float, Ge(0), Lt(1)] = 0.5
    server_lr: Annotated[float, Gt(0)] = 1.0

    needs = "each update"
    beyond_steps = "the training accuracy of each client"

    def init(self, w: Vector) -> FedFAState:
        """Start with velocity 0 and no visits."""
        return FedFAState(w, np.zeros_like(w), {})

    def check(self, setting: Setting) -> None:
        """Refuse tasks without an accuracy."""
        if not setting.has_accuracy:
            raise BadValue(
                "fedfa weighs clients by their accuracy, and this task has none",
                remedy="choose another algorithm, such as fedavg",
                where="algorithm",
            )
        super().check(setting)

    def client(self, message: Model, client_state: None, work: Work) -> Reply:
        """Train, and send the step with its accuracy on the client's own rows."""
        out = work.train(message.w)
        return Reply(FedFAUpdate(message.w - out.w, work.evaluate(out.w)[0]))

    def weights(self, accuracy: NDArray[np.float64], visits: NDArray[np.float64]) -> NDArray[np.float64]:
        """W_k = alpha I^a_k / sum I^a + beta I^f_k / sum I^f; they sum to 1."""
        a = accuracy / max(accuracy.sum(), 1e-12)
        phi = visits / visits.sum()
        of_accuracy = -np.log2(np.maximum(a, 1e-12))
        of_visits = -np.log2(np.maximum(phi if self.freq == "less_more" else 1 - phi, 1e-12))
        return self.mix * _shares(of_accuracy) + (1 - self.mix) * _shares(of_visits)

    def server(self, state: FedFAState, mean: FedFAUpdate, cohort: Cohort) -> FedFAState:
        """G = sum W_k Delta_k; v <- beta v + G; w <- w - gamma v."""
        visits = {**state.visits, **{k: state.visits.get(k, 0) + 1 for k in cohort.answered}}
        counts = np.array([visits[k] for k in cohort.answered], dtype=np.float64)
        share = self.weights(np.asarray(mean.accuracy, dtype=np.float64), counts)
        g = sum(p * delta for p, delta in zip(share.tolist(), mean.delta, strict=True))
        v = self.beta * state.v + g
        return FedFAState(state.w - self.server_lr * v, v, visits)


def _shares(information: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return each value over their sum; equal shares where all values are 0 (a single client)."""
    total = information.sum()
    return information / total if total > 0 else np.full(len(information), 1 / len(information))
