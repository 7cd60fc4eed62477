"""AFL: Mohri, Sivek, Suresh, "Agnostic Federated Learning", 2019, arXiv:1902.00146, section 4: gradient descent on the
weights of the model, projected gradient ascent on those of the clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge

from fedarena.algorithms.base import Algorithm, Cohort, Reply, RequestSender, Vector, Work, collected
from fedarena.config.registry import register


@dataclass(frozen=True)
class AFLState:
    """The model, and N lambda_k of each client k: 1 for all of them at first."""

    w: Vector
    weights: Vector


@dataclass(frozen=True)
class AFLUpdate:
    """A step, and the loss of the model that it started from."""

    delta: Vector
    loss: float = collected()


@register("algorithm", "afl", paper="Mohri et al. 2019, arXiv:1902.00146")
@dataclass(frozen=True)
class AFL(Algorithm):
    """The model is trained for the worst mixture of clients: those with a larger loss gain weight in every round.

    >>> import fedarena as fa
    >>> federation = dict(rounds=5, clients=6, partition="iid", out=False)
    >>> run = fa.run("digits", algorithm=fa.AFL(), **federation)
    >>> run.final.accuracy > 0.8
    True
    """

    weight_lr: Annotated[float, Ge(0)] = 0.01  # gamma_lambda

    everyone = True
    needs = "each update"  # every loss, for the ascent
    beyond_steps = "the training loss of each client"

    def init(self, w: Vector) -> AFLState:
        """Start with lambda_k = 1 / N; clients appear when they are first selected."""
        return AFLState(w, np.ones(0))

    def round(self, state: AFLState, request: RequestSender) -> Any:
        """Run the usual round; clients that were never selected before have the weight 1."""
        new = max(request.cohort.selected, default=-1) + 1 - len(state.weights)
        return super().round(AFLState(state.w, np.append(state.weights, np.ones(max(new, 0)))), request)

    def broadcast(self, state: AFLState) -> AFLState:
        """Send the model and the weights of all clients."""
        return state

    def client(self, message: AFLState, client_state: None, work: Work) -> Reply:
        """Send Delta_k, to be averaged by lambda_k, and F_k(w_t)."""
        loss = work.evaluate(message.w)[1]
        update = AFLUpdate(message.w - work.train(message.w).w, loss)
        return Reply(update, weight=float(message.weights[work.client]))

    def server(self, state: AFLState, mean: AFLUpdate, cohort: Cohort) -> AFLState:
        """w <- w - sum_k lambda_k Delta_k; lambda <- projection of lambda + gamma_lambda F onto the simplex."""
        here = list(cohort.answered)
        if not state.weights[here].any():  # only clients without weight have answered
            return state
        w = state.w - mean.delta
        if not np.isfinite(mean.loss).all():  # a model that diverged says nothing about its clients
            return AFLState(w, state.weights)
        losses = np.array(mean.loss) - np.min(mean.loss)  # a constant for all changes nothing, and here not a bit
        weights = state.weights.copy()
        ascended = weights[here] + self.weight_lr * cohort.population * losses
        weights[here] = project(ascended, float(weights[here].sum()))  # clients without an answer keep theirs
        return AFLState(w, weights)


def project(point: Vector, total: float) -> Vector:
    """Return the nearest point with coordinates of at least 0 that sum to `total` (Duchi et al. 2008, figure 1)."""
    falling = np.sort(point)[::-1]
    excess = (np.cumsum(falling) - total) / np.arange(1, len(point) + 1)
    nearest: Vector = np.maximum(point - excess[np.flatnonzero(falling > excess)[-1]], 0.0)
    return nearest
