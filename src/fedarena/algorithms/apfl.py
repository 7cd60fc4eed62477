"""APFL: Deng, Kamani, Mahdavi, "Adaptive Personalized Federated Learning", 2020, arXiv:2003.13461, algorithm 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Ge, Le

from fedarena.algorithms.base import Algorithm, Cohort, Model, Reply, Step, Vector, Work
from fedarena.algorithms.step_batch import StepBatch
from fedarena.config.registry import register


@dataclass(frozen=True)
class OwnMixture:
    """A client's own model, and its part in the mixture with the shared one."""

    v: Vector
    alpha: float

    def with_shared(self, w: Vector) -> Vector:
        """Return alpha v + (1 - alpha) w, which is v or w to the bit where one of them has no part."""
        part = w.dtype.type(self.alpha)
        return self.v if part == 1 else w if part == 0 else part * self.v + (1 - part) * w


@register("algorithm", "apfl", paper="Deng et al. 2020, arXiv:2003.13461")
@dataclass(frozen=True)
class APFL(Algorithm):
    """FedAvg trains the shared model w; each client predicts with a mixture of w and a model v of its own.

    `alpha` is the part of v; with `adapt` each client changes its own along the gradient of its loss.

    >>> import fedarena as fa
    >>> federation = dict(rounds=5, clients=6, partition="iid", out=False)
    >>> run = fa.run("digits", algorithm=fa.APFL(alpha=0.5), **federation)
    >>> run.own_metrics["accuracy"] > 0.7
    True
    """

    alpha: Annotated[float, Ge(0), Le(1)] = 0.5
    adapt: bool = False

    personal = True
    common_score = "shared"
    beyond_steps = "gradients at several models"
    fastest_path = "tape"

    def remember(self, w: Vector) -> OwnMixture:
        """v_k = w_0."""
        return OwnMixture(w, self.alpha)

    def client(self, message: Model, own: OwnMixture, work: Work) -> Reply:
        """Each step: w <- w - eta grad F_k(w), v <- v - eta grad_v F_k(alpha v + (1 - alpha) w); send w_t - w_k."""

        def gradient(w: Vector, batch: StepBatch) -> Vector:
            nonlocal own
            shared, mixed, alpha = batch.gradient(w), batch.gradient(own.with_shared(w)), own.alpha
            if self.adapt:
                alpha = float(np.clip(alpha - batch.lr * ((own.v - w) @ mixed), 0, 1))
            own = OwnMixture(batch.step(own.v, w.dtype.type(own.alpha) * mixed), alpha)
            return shared

        out = work.train(message.w, gradient=gradient)
        return Reply(Step(message.w - out.w), keep=own, weight=work.rows)

    def personal_model(self, message: Model, own: OwnMixture, work: Work) -> Vector:
        """alpha v_k + (1 - alpha) w_t."""
        return own.with_shared(message.w)

    def unseen_model(self, message: Model, own: OwnMixture, work: Work, steps: int) -> Vector:
        """v <- w_t, then v <- v - eta grad_v F(alpha v + (1 - alpha) w_t) with w_t fixed; return the mixture."""
        w, alpha = message.w, self.alpha

        def gradient(v: Vector, batch: StepBatch) -> Vector:
            nonlocal alpha
            mixed, part = batch.gradient(OwnMixture(v, alpha).with_shared(w)), w.dtype.type(alpha)
            if self.adapt:
                alpha = float(np.clip(alpha - batch.lr * ((v - w) @ mixed), 0, 1))
            own_gradient: Vector = part * mixed
            return own_gradient

        if not steps:
            return w
        v = work.train(w, steps=steps, gradient=gradient).w
        return OwnMixture(v, alpha).with_shared(w)

    def server(self, state: Model, mean: Step, cohort: Cohort) -> Model:
        """w_{t+1} = w_t - sum_k p_k (w_t - w_k), as FedAvg."""
        return Model(state.w - mean.delta)
