"""FedPer: Arivazhagan, Aggarwal, Singh, Choudhary, "Federated Learning with Personalization Layers", 2019,
arXiv:1912.00818. It is an averaging algorithm, FedAvg or another, with own layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

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

    @property
    def fastest_path(self) -> Literal["compiled", "tape", "autograd"]:  # type: ignore[override]
        """Return the path of the algorithm inside; the kernels do not know a proximal term on some of the weights."""
        weight = getattr(self.base, self.base.proximal_setting) if self.base.proximal_setting else 0.0
        return "tape" if weight and self.own_layers and super().fastest_path == "compiled" else super().fastest_path

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
    """The last layers of each client's model are its own; all layers train together, the shared ones are averaged.

    >>> import fedarena as fa
    >>> federation = dict(rounds=5, clients=6, partition="iid", out=False)
    >>> run = fa.run("digits", algorithm=fa.FedPer(own=["last:1"]), **federation)
    >>> run.final.accuracy > 0.7
    True
    """

    own: tuple[str, ...] = ("last:1",)

    @property
    def own_layers(self) -> tuple[str, ...]:
        """Return the layers that the settings name."""
        return self.own
