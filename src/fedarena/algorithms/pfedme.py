"""pFedMe: Dinh, Tran, Nguyen, "Personalized Federated Learning with Moreau Envelopes", 2020, arXiv:2006.08848,
algorithm 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt

from fedarena.algorithms.base import Algorithm, Cohort, Model, Pull, Reply, Setting, Step, Vector, Work
from fedarena.algorithms.checks import check_proximal_weight
from fedarena.algorithms.step_batch import StepBatch
from fedarena.config.registry import register


@register("algorithm", "pfedme", paper="Dinh et al. 2020, arXiv:2006.08848")
@dataclass(frozen=True)
class PFedMe(Algorithm):
    """Each client's model solves its loss with a proximal term; w follows the gradient of that least loss.

    Each local step is a local round of the paper, with one batch: R are the steps of local training. `steps` and `own_lr`
    are those of the minimisation over theta; `own_lr` is by default `local.lr`, `beta` mixes the server's model.

    >>> import fedarena as fa
    >>> federation = dict(rounds=5, clients=6, partition="iid", out=False)
    >>> run = fa.run("digits", algorithm=fa.PFedMe(), **federation)
    >>> run.final.accuracy > 0.8
    True
    """

    lam: Annotated[float, Gt(0)] = 1.0
    steps: Annotated[int, Ge(1)] = 5
    own_lr: Annotated[float, Gt(0)] | None = None
    beta: Annotated[float, Gt(0)] = 1.0

    personal = True
    common_score = "shared"
    beyond_steps = "gradients at several models"
    fastest_path = "tape"

    def check(self, setting: Setting) -> None:
        """Refuse a weight with which gradient steps on the proximal term, or steps of w by it, diverge."""
        check_proximal_weight("pfedme", max(setting.lr, self.own_lr or 0.0), self.lam, "lam")

    def remember(self, w: Vector) -> Vector:
        """theta_k = w_0."""
        return w

    def client(self, message: Model, theta_k: Vector, work: Work) -> Reply:
        """In each local round theta ~ argmin F_k(theta; batch) + lambda/2 |theta - w|^2, w <- w - eta lambda (w - theta)."""
        theta = message.w

        def envelope_gradient(w: Vector, batch: StepBatch) -> Vector:
            nonlocal theta
            lr = batch.lr if self.own_lr is None else self.own_lr
            for _ in range(self.steps):  # from the last theta on
                theta = theta - lr * (batch.gradient(theta) + self.lam * (theta - w))
            return self.lam * (w - theta)

        out = work.train(message.w, gradient=envelope_gradient)
        return Reply(Step(message.w - out.w), keep=theta, weight=work.rows)

    def unseen_model(self, message: Model, client_state: Vector, work: Work, steps: int) -> Vector:
        """theta <- w_t, then so many steps on F(theta) + lambda/2 |theta - w_t|^2, with w_t fixed."""
        w = message.w
        return work.train(w, adjust=Pull(self.lam, centre=w), steps=steps, lr=self.own_lr).w if steps else w

    def server(self, state: Model, mean: Step, cohort: Cohort) -> Model:
        """w_{t+1} = (1 - beta) w_t + beta sum_k p_k w_k."""
        return Model(state.w - self.beta * mean.delta)
