"""FedPAGE: Zhao, Li, Richtárik, "FedPAGE: A Fast Local Stochastic Gradient Method for Communication-Efficient Federated
Learning", 2021, arXiv:2108.04755."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Gt, Le

from fedarena.algorithms.base import Algorithm, Cohort, Model, Reply, RequestSender, Setting, Vector, Work
from fedarena.algorithms.checks import check_plain_sgd
from fedarena.config.registry import register


@dataclass(frozen=True)
class FedPAGEState:
    """The model, the gradient estimate that led to it, and the number of rounds."""

    w: Vector
    g: Vector
    rounds: int


@dataclass(frozen=True)
class FedPAGEMessage:
    """The message to updating clients: the model, the estimate, and the length of the last server step along it."""

    w: Vector
    g: Vector
    eta: float


@dataclass(frozen=True)
class GradientEstimate:
    """A gradient, or the mean gradient estimate of several local steps."""

    g: Vector


@register("algorithm", "fedpage", paper="Zhao et al. 2021, arXiv:2108.04755")
@dataclass(frozen=True)
class FedPAGE(Algorithm):
    """With probability p all clients compute the full gradient; otherwise a few clients update the last estimate.

    An updating client takes `q` recursive steps with its own minibatches; the server steps along the mean. `p` is by
    default the share of clients that are selected, `server_lr` the local rate.

    >>> import fedarena as fa
    >>> federation = dict(rounds=40, clients=6, partition="iid", out=False)
    >>> run = fa.run("digits", algorithm=fa.FedPAGE(), **federation)
    >>> run.final.accuracy > 0.7
    True
    """

    p: Annotated[float, Gt(0), Le(1)] | None = None
    q: Annotated[int, Ge(1)] = 5
    server_lr: Annotated[float, Gt(0)] | None = None

    beyond_steps = "gradients outside of local SGD"

    def check(self, setting: Setting) -> None:
        """Refuse other local optimizers."""
        check_plain_sgd("fedpage", setting, "makes its own local steps")

    def init(self, w: Vector) -> FedPAGEState:
        """Start without a gradient estimate."""
        return FedPAGEState(w, np.zeros_like(w), 0)

    def slope(self, message: Model, client_state: None, work: Work) -> Reply:
        """Send the full gradient grad F_k(w_t)."""
        return Reply(GradientEstimate(work.gradient(message.w)), weight=work.rows)

    def client(self, message: FedPAGEMessage, client_state: None, work: Work) -> Reply:
        """g_j = grad_b(y_j) - grad_b(y_{j-1}) + g_{j-1}, y_{j+1} = y_j - eta g_j; send (w_t - y_Q) / (Q eta)."""
        y, last, g = message.w, message.w + message.eta * message.g, message.g  # w_{t-1} = w_t + eta_g g_{t-1}
        for rows in work.batch_rows(self.q):
            g = work.gradient(y, rows) - work.gradient(last, rows) + g
            y, last = y - work.lr * g, y
        return Reply(GradientEstimate((message.w - y) / (self.q * work.lr)), weight=work.rows)

    def round(self, state: FedPAGEState, request: RequestSender) -> Any:
        """Choose one of the two exchanges by the coin (the full gradient in round 0), then step."""
        p = request.share if self.p is None else self.p
        everyone = state.rounds == 0 or request.coin() < p
        if everyone:
            mean = request(Model(state.w), do="slope", everyone=True)
        else:
            mean = request(FedPAGEMessage(state.w, state.g, self._eta(request.cohort)))
        return state if mean is None else self.server(state, mean, request.cohort)

    def _eta(self, cohort: Cohort) -> float:
        return cohort.lr if self.server_lr is None else self.server_lr

    def server(self, state: FedPAGEState, mean: GradientEstimate, cohort: Cohort) -> FedPAGEState:
        """Return w_{t+1} = w_t - eta_g g_t."""
        return FedPAGEState(state.w - self._eta(cohort) * mean.g, mean.g, state.rounds + 1)
