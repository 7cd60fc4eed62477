"""Per-FedAvg: Fallah, Mokhtari, Ozdaglar, "Personalized Federated Learning: A Meta-Learning Approach", 2020,
arXiv:2002.07948, algorithm 1, with the approximations FO and HF of its section 5."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt

from fedarena.algorithms.base import Algorithm, Cohort, Model, Reply, Step, Vector, Work
from fedarena.algorithms.step_batch import StepBatch
from fedarena.config.registry import register


@register("algorithm", "perfedavg", paper="Fallah et al. 2020, arXiv:2002.07948")
@dataclass(frozen=True)
class PerFedAvg(Algorithm):
    """Clients look for a model that is good after one step on their own samples, and predict after that step.

    `inner_lr` is the rate of that step. `variant` "fo" leaves out the derivative of the step, "hf" takes it from a
    difference of gradients at distance `delta`.

    >>> import fedarena as fa
    >>> federation = dict(rounds=5, clients=6, partition="iid", out=False)
    >>> run = fa.run("digits", algorithm=fa.PerFedAvg(), **federation)
    >>> run.own_metrics["accuracy"] > 0.7
    True
    """

    inner_lr: Annotated[float, Ge(0)] = 0.05
    variant: Literal["fo", "hf"] = "fo"
    delta: Annotated[float, Gt(0)] = 0.001

    personal = True
    common_score = "shared"
    beyond_steps = "gradients at several models"
    fastest_path = "tape"
    learns_own_models = False

    def client(self, message: Model, client_state: None, work: Work) -> Reply:
        """w_k <- local SGD from w_t on F_k(w - alpha grad F_k(w)); send w_t - w_k."""
        out = work.train(message.w, gradient=self.gradient)
        return Reply(Step(message.w - out.w), weight=work.rows)

    def gradient(self, w: Vector, batch: StepBatch) -> Vector:
        """g = grad F(w - alpha grad F(w; D); D'), less alpha (grad F(w + d g; D'') - grad F(w - d g; D'')) / 2d with HF."""
        g: Vector = batch.gradient(w - self.inner_lr * batch.another().gradient(w))
        if self.variant == "fo":
            return g
        third = batch.another()
        change: Vector = third.gradient(w + self.delta * g) - third.gradient(w - self.delta * g)
        return g - self.inner_lr / (2 * self.delta) * change

    def personal_model(self, message: Model, client_state: None, work: Work) -> Vector:
        """w_t - alpha grad F_k(w_t; one batch)."""
        return work.train(message.w, steps=1, lr=self.inner_lr).w

    def unseen_model(self, message: Model, client_state: None, work: Work, steps: int) -> Vector:
        """w <- w_t, then so many steps at the inner rate: one of them is the method's own."""
        return work.train(message.w, steps=steps, lr=self.inner_lr).w if steps else message.w

    def server(self, state: Model, mean: Step, cohort: Cohort) -> Model:
        """w_{t+1} = w_t - sum_k p_k (w_t - w_k), as FedAvg."""
        return Model(state.w - mean.delta)
