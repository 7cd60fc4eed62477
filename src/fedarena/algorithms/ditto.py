"""Ditto: Li, Hu, Beirami, Smith, "Ditto: Fair and Robust Federated Learning Through Personalization", 2021,
arXiv:2012.04221, algorithm 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt

from fedarena.algorithms.base import Algorithm, Cohort, Model, Pull, Reply, Setting, Step, Vector, Work
from fedarena.algorithms.checks import check_proximal_weight
from fedarena.config.registry import register


@register("algorithm", "ditto", paper="Li et al. 2021, arXiv:2012.04221")
@dataclass(frozen=True)
class Ditto(Algorithm):
    """FedAvg trains the shared model w; each client trains a model of its own, which a proximal term keeps near w.

    `own_epochs` are the epochs of the own model in a round, those of the shared one by default.

    >>> import fedarena as fa
    >>> federation = dict(rounds=5, clients=6, partition="iid", out=False)
    >>> run = fa.run("digits", algorithm=fa.Ditto(lam=0.1), **federation)
    >>> run.own_metrics["accuracy"] > 0.7
    True
    """

    lam: Annotated[float, Ge(0)] = 0.1
    own_epochs: Annotated[float, Gt(0)] | None = None

    personal = True
    common_score = "shared"
    beyond_steps = "a second training on the same samples"

    def check(self, setting: Setting) -> None:
        """Refuse a weight with which gradient steps on the proximal term diverge."""
        check_proximal_weight("ditto", setting.lr, self.lam, "lam")

    def remember(self, w: Vector) -> Vector:
        """v_k = w_0."""
        return w

    def client(self, message: Model, v_k: Vector, work: Work) -> Reply:
        """w_k <- local SGD from w_t, send w_t - w_k; v_k <- local SGD from v_k on F_k(v) + lambda/2 |v - w_t|^2."""
        out = work.train(message.w)
        own = work.for_own_model().train(v_k, adjust=Pull(self.lam, centre=message.w), epochs=self.own_epochs)
        return Reply(Step(message.w - out.w), keep=own.w, weight=work.rows)

    def unseen_model(self, message: Model, client_state: Vector, work: Work, steps: int) -> Vector:
        """v <- w_t, then so many steps on F(v) + lambda/2 |v - w_t|^2."""
        w = message.w
        return work.train(w, adjust=Pull(self.lam, centre=w), steps=steps).w if steps else w

    def server(self, state: Model, mean: Step, cohort: Cohort) -> Model:
        """w_{t+1} = w_t - sum_k p_k (w_t - w_k), as FedAvg."""
        return Model(state.w - mean.delta)
