"""FedBN: Li, Jiang, Zhang, Kamp, Dou, "FedBN: Federated Learning on Non-IID Features via Local Batch Normalization", 2021,
arXiv:2102.07623. It is an averaging algorithm, FedAvg or another, with own normalisation layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedarena.algorithms.base import Vector, Work
from fedarena.algorithms.fedper import OwnLayers
from fedarena.config.registry import register


@register("algorithm", "fedbn", paper="Li et al. 2021, arXiv:2102.07623")
@dataclass(frozen=True)
class FedBN(OwnLayers):
    """The normalisation layers of each client's model are its own, with weights and statistics; the rest is averaged.

    >>> import fedarena as fa
    >>> federation = dict(rounds=5, clients=6, partition="iid", out=False)
    >>> run = fa.run("digits", algorithm=fa.FedBN(), **federation)
    >>> run.own_metrics["accuracy"] > 0.7
    True
    """

    unseen_own = "mean"

    @property
    def own_layers(self) -> tuple[str, ...]:
        """Return all normalisation layers."""
        return ("norm",)

    def unseen_model(self, message: Any, client_state: Any, work: Work, steps: int) -> Vector:
        """Start from the mean of the own weights, and train these alone; the statistics are those of the client's samples."""
        w: Vector = message.w
        return work.train(w, steps=steps, only="own").w if steps else w
