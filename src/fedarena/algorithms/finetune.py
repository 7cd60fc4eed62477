"""Fine-tuning: Wang, Mathews, Kiddon, Eichner, Beaufays, Ramage, "Federated Evaluation of On-device Personalization", 2019,
arXiv:1910.10252. It goes with any averaging algorithm: `with = ["finetune"]`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Ge, Gt, Le

from fedarena.algorithms.base import Vector, Work
from fedarena.algorithms.companions import Companion
from fedarena.config.registry import register


@register("algorithm", "finetune", paper="Wang et al. 2019, arXiv:1910.10252")
@dataclass(frozen=True)
class FineTune(Companion):
    """At every evaluation each client trains the server's model on its own samples, and is judged by the result.

    The training of the run does not change: what a client learns here stays with it and is forgotten afterwards.

    >>> import fedarena as fa
    >>> federation = dict(rounds=5, clients=6, partition="iid", out=False)
    >>> run = fa.run("digits", algorithm=fa.FineTune(), **federation)
    >>> run.own_metrics["accuracy"] > 0.7
    True
    """

    epochs: Annotated[float, Ge(0), Le(1_000_000)] = 1.0
    steps: Annotated[int, Ge(0), Le(100_000_000)] | None = None  # in place of epochs
    lr: Annotated[float, Gt(0)] | None = None  # the experiment's local.lr

    personal = True
    common_score = "shared"
    own_use = "a training at every evaluation, which no round counts"

    def prepare(self, work: Work) -> None:
        """Leave the training of the run as it is."""

    def personal_model(self, message: Any, client_state: Any, work: Work) -> Vector:
        """v_k <- ClientUpdate(w_t), for some epochs or steps."""
        epochs = None if self.steps is not None else self.epochs
        return work.train(message.w, epochs=epochs, steps=self.steps, lr=self.lr).w

    def unseen_model(self, message: Any, client_state: Any, work: Work, steps: int) -> Vector:
        """v <- w_t, then so many steps at the rate of the fine-tuning, in place of its epochs or steps."""
        w: Vector = message.w
        return work.train(w, steps=steps, lr=self.lr).w if steps else w
