"""FedPer: Arivazhagan, Aggarwal, Singh, Choudhary, "Federated Learning with Personalization Layers", 2019,
arXiv:1912.00818. FedBN: Li, Jiang, Zhang, Kamp, Dou, "FedBN: Federated Learning on Non-IID Features via Local Batch
Normalization", 2021, arXiv:2102.07623. Both are an averaging algorithm, FedAvg or another, with own layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedarena.algorithms.base import Setting, Vector, Work
from fedarena.algorithms.companions import Companion
from fedarena.config.errors import BadValue
from fedarena.config.registry import register


@dataclass(frozen=True)
class OwnLayers(Companion):
    """The algorithm inside on the shared layers of a model; the others stay with each client and train along."""

    personal = True
    common_score = "none"

    @property
    def learns_own_models(self) -> bool:
        """Return true: client states hold the own layers."""
        return True

    def check(self, setting: Setting) -> None:
        """Refuse algorithms that need more than local training from a client: only that reaches the own layers."""
        super().check(setting)
        if used := self.base.beyond_steps:
            raise BadValue(
                f"{type(self).__name__} does not go with {type(self.base).__name__}, which uses {used}",
                remedy="put it around fedavg, fedprox, scaffold or another algorithm whose clients only train",
                where="algorithm.with",
            )

    def prepare(self, work: Work) -> None:
        """Train as the algorithm inside does: the engine joins the own layers."""

    def personal_model(self, message: Any, client_state: Any, work: Work) -> Vector:
        """Return the shared layers, which the engine joins with the client's own."""
        w: Vector = message.w
        return w


@register("algorithm", "fedper", paper="Arivazhagan et al. 2019, arXiv:1912.00818")
@dataclass(frozen=True)
class FedPer(OwnLayers):
    """The last layers of each client's model are its own; all layers train together, the shared ones are averaged."""

    own: tuple[str, ...] = ("last:1",)

    @property
    def own_layers(self) -> tuple[str, ...]:
        """Return the layers that the settings name."""
        return self.own


@register("algorithm", "fedbn", paper="Li et al. 2021, arXiv:2102.07623")
@dataclass(frozen=True)
class FedBN(OwnLayers):
    """The normalisation layers of each client's model are its own, with weights and statistics; the rest is averaged."""

    unseen_own = "mean"

    @property
    def own_layers(self) -> tuple[str, ...]:
        """Return all normalisation layers."""
        return ("norm",)

    def unseen_model(self, message: Any, client_state: Any, work: Work, steps: int) -> Vector:
        """Start from the mean of the own weights, and train these alone; the statistics are those of the client's samples."""
        w: Vector = message.w
        return work.train(w, steps=steps, only="own").w if steps else w
