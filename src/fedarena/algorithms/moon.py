"""MOON: Li, He, Song, "Model-Contrastive Federated Learning", 2021, arXiv:2103.16257, algorithm 1."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Ge, Gt

from fedarena.algorithms.base import Algorithm, Cohort, Model, Reply, Setting, Step, Vector, Work
from fedarena.algorithms.checks import check_representation
from fedarena.config.registry import register

if TYPE_CHECKING:
    from torch import Tensor


@register("algorithm", "moon", paper="Li et al. 2021, arXiv:2103.16257")
@dataclass(frozen=True)
class MOON(Algorithm):
    """FedAvg with a contrastive loss: each client keeps its representation near the server's, away from its last own.

    >>> import fedarena as fa
    >>> federation = dict(rounds=5, clients=6, partition="iid", out=False)
    >>> run = fa.run("digits", algorithm=fa.MOON(mu=1.0), **federation)
    >>> run.final.accuracy > 0.8
    True
    """

    mu: Annotated[float, Ge(0)] = 1.0
    temperature: Annotated[float, Gt(0)] = 0.5

    beyond_steps = "a loss of its own"
    fastest_path = "autograd"

    def check(self, setting: Setting) -> None:
        """Refuse a model without a representation."""
        check_representation("moon", setting)

    def client(self, message: Model, last_w: Vector | None, work: Work) -> Reply:
        """w_k <- local SGD from w_t on F_k + mu x contrastive loss; keep w_k, send w_t - w_k."""
        last = None if last_w is None or self.mu == 0 else work.frozen(last_w)
        out = work.train(message.w, loss=partial(self.loss, last))
        return Reply(Step(message.w - out.w), keep=out.w, weight=work.rows)

    def loss(self, last: Any, module: Any, batch: Any, context: Any) -> Tensor:
        """F_k - mu log(e^{sim(z, z_glob) / T} / (e^{sim(z, z_glob) / T} + e^{sim(z, z_last) / T})), sim the cosine."""
        from torch.nn.functional import cosine_similarity, softplus  # listing algorithms must not load torch

        z, outputs = context.represent(module, batch.x)
        loss: Tensor = context.loss(outputs, batch.y)
        if last is None:  # in the client's first round
            return loss
        near = cosine_similarity(z, context.represent(context.start, batch.x)[0], dim=-1)
        far = cosine_similarity(z, context.represent(last, batch.x)[0], dim=-1)
        return loss + self.mu * softplus((far - near) / self.temperature).mean()

    def server(self, state: Model, mean: Step, cohort: Cohort) -> Model:
        """w_{t+1} = w_t - sum_k p_k (w_t - w_k), as FedAvg."""
        return Model(state.w - mean.delta)
