"""FedRep: Collins, Hassani, Mokhtari, Shakkottai, "Exploiting Shared Representations for Personalized Federated
Learning", 2021, arXiv:2102.07078, algorithm 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Ge, Le

from fedarena.algorithms.base import Algorithm, Cohort, Model, Reply, Step, Vector, Work
from fedarena.config.registry import register

Epochs = Annotated[int, Ge(0), Le(1_000_000)]


@register("algorithm", "fedrep", paper="Collins et al. 2021, arXiv:2102.07078")
@dataclass(frozen=True)
class FedRep(Algorithm):
    """Each client fits its own head to the shared body, then takes steps on the body, which is averaged.

    >>> import fedarena as fa
    >>> federation = dict(rounds=5, clients=6, partition="iid", out=False)
    >>> run = fa.run("digits", algorithm=fa.FedRep(own=["last:1"]), **federation)
    >>> run.final.accuracy > 0.85
    True
    """

    own: tuple[str, ...] = ("last:1",)
    head_epochs: Epochs = 5
    body_epochs: Epochs = 1

    personal = True
    common_score = "none"
    fastest_path = "tape"

    @property
    def own_layers(self) -> tuple[str, ...]:
        """Return the head, as the settings name it."""
        return self.own

    def client(self, message: Model, client_state: None, work: Work) -> Reply:
        """h_k <- SGD(h_k; B_t), B_k <- SGD(B_t; h_k); send B_t - B_k."""
        if self.own:
            work.train(message.w, epochs=self.head_epochs, only="own")
        out = work.train(message.w, epochs=self.body_epochs, only="shared")
        return Reply(Step(message.w - out.w), weight=work.rows)

    def server(self, state: Model, mean: Step, cohort: Cohort) -> Model:
        """B_{t+1} = B_t - sum_k p_k (B_t - B_k)."""
        return Model(state.w - mean.delta)

    def personal_model(self, message: Any, client_state: None, work: Work) -> Vector:
        """Return the body, which the engine joins with the client's own head."""
        w: Vector = message.w
        return w

    def unseen_model(self, message: Any, client_state: None, work: Work, steps: int) -> Vector:
        """Start from a fresh head, h_0, and train it alone: h <- SGD(h; B_t)."""
        w: Vector = message.w
        return work.train(w, steps=steps, only="own").w if steps else w
