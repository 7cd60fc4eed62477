"""FedProx: Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated Optimization in Heterogeneous Networks", 2020,
arXiv:1812.06127, algorithm 2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Le

from fedarena.algorithms.base import Algorithm, Cohort, Model, Pull, Reply, Setting, Step, Work
from fedarena.algorithms.checks import check_proximal_weight
from fedarena.config.registry import register


@register("algorithm", "fedprox", paper="Li et al. 2020, arXiv:1812.06127")
@dataclass(frozen=True)
class FedProx(Algorithm):
    """FedAvg with a proximal term of weight mu in every client's loss, which keeps it near the global model.

    With `straggler_fraction`, the device model (engine/devices.py) lets that share of clients stop early, after a random
    number of epochs from `epochs_min` on; they are averaged all the same. `schedule = "adaptive"` is `AdaptiveFedProx`.

    >>> import fedarena as fa
    >>> federation = dict(rounds=5, clients=6, partition="iid", out=False)
    >>> run = fa.run("digits", algorithm=fa.FedProx(mu=0.1), **federation)
    >>> run.final.accuracy > 0.8
    True
    """

    mu: Annotated[float, Ge(0)] = 0.01
    schedule: Literal["constant", "adaptive"] = "constant"
    straggler_fraction: Annotated[float, Ge(0), Le(1)] = 0.0
    epochs_min: Annotated[int, Ge(0)] = 1

    proximal_setting = "mu"

    @property
    def straggler_settings(self) -> tuple[float, int]:
        """Return the share of clients that stop early, and the fewest epochs of one (section 5.2)."""
        return self.straggler_fraction, self.epochs_min

    def check(self, setting: Setting) -> None:
        """Refuse a weight with which gradient steps on the proximal term diverge."""
        check_proximal_weight("fedprox", setting.lr, self.mu, "mu")

    def client(self, message: Model, client_state: None, work: Work) -> Reply:
        """w_k <- local SGD on F_k(w) + mu/2 |w - w_t|^2; send w_t - w_k."""
        out = work.train(message.w, adjust=Pull(self.mu, centre=message.w))
        return Reply(Step(message.w - out.w), weight=work.rows)

    def server(self, state: Model, mean: Step, cohort: Cohort) -> Model:
        """w_{t+1} = w_t - sum_k p_k (w_t - w_k), as FedAvg."""
        return Model(state.w - mean.delta)
