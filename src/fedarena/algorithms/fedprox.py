"""FedProx: Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated Optimization in Heterogeneous Networks", 2020,
arXiv:1812.06127, algorithm 2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Le

from fedarena.algorithms.base import Algorithm, Cohort, Model, Pull, Reply, Setting, Step, Work
from fedarena.errors import BadValue
from fedarena.registry import register


@register("algorithm", "fedprox", paper="Li et al. 2020, arXiv:1812.06127")
@dataclass(frozen=True)
class FedProx(Algorithm):
    """A spring of stiffness mu ties every client to the global model while it trains.

    With `straggler_fraction`, that share of clients stops early, after a random number of epochs from `epochs_min` on,
    and is averaged all the same.
    """

    mu: Annotated[float, Ge(0)] = 0.01
    straggler_fraction: Annotated[float, Ge(0), Le(1)] = 0.0
    epochs_min: Annotated[int, Ge(0)] = 1

    def check(self, setting: Setting) -> None:
        """The spring's own gradient step diverges from eta mu = 2 on."""
        if setting.lr * self.mu >= 2:
            raise BadValue(
                f"fedprox diverges: local.lr x mu = {setting.lr * self.mu:g}, and must stay below 2",
                remedy=f"use mu below {2 / setting.lr:g}, or a smaller local.lr",
                where="algorithm.mu",
            )

    def client(self, got: Model, kept: None, work: Work) -> Reply:
        """Local SGD on F_k(w) + mu/2 |w - w_t|^2."""
        out = work.train(got.w, adjust=Pull(self.mu, centre=got.w), epochs=self._epochs(work))
        return Reply(Step(got.w - out.w), weight=work.rows)

    def _epochs(self, work: Work) -> int:
        """E, or for a straggler E_k ~ U{epochs_min..E}."""
        if not self.straggler_fraction:
            return work.epochs
        rng = work.stream("straggler")
        slow = rng.random() < self.straggler_fraction
        return int(rng.integers(min(self.epochs_min, work.epochs), work.epochs + 1)) if slow else work.epochs

    def server(self, state: Model, mean: Step, cohort: Cohort) -> Model:
        """As FedAvg."""
        return Model(state.w - mean.delta)
