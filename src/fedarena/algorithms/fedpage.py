"""FedPAGE: Zhao, Li, Richtárik, "FedPAGE: A Fast Local Stochastic Gradient Method for Communication-Efficient Federated
Learning", 2021, arXiv:2108.04755."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Gt, Le

from fedarena.algorithms.base import Algorithm, Ask, Cohort, Model, Reply, Vector, Work
from fedarena.registry import register


@dataclass(frozen=True)
class Page:
    """The model, the gradient estimate that led to it, and the number of rounds."""

    w: Vector
    g: Vector
    rounds: int


@dataclass(frozen=True)
class Turn:
    """What clients hear when they walk: the model, the estimate, and the step along it that led here."""

    w: Vector
    g: Vector
    eta: float


@dataclass(frozen=True)
class Slope:
    """A gradient, or a mean one along a walk."""

    g: Vector


@register("algorithm", "fedpage", paper="Zhao et al. 2021, arXiv:2108.04755")
@dataclass(frozen=True)
class FedPAGE(Algorithm):
    """With probability p everybody measures the gradient anew; else a few clients carry the last estimate along.

    A carrying client takes `q` recursive steps with its own minibatches; the server steps along the mean. `p` is by
    default the share of clients that are asked, `server_lr` the local rate.
    """

    p: Annotated[float, Gt(0), Le(1)] | None = None
    q: Annotated[int, Ge(1)] = 5
    server_lr: Annotated[float, Gt(0)] | None = None

    def init(self, w: Vector) -> Page:
        """No estimate yet."""
        return Page(w, np.zeros_like(w), 0)

    def slope(self, got: Model, kept: None, work: Work) -> Reply:
        """grad F_k(w_t)."""
        return Reply(Slope(work.gradient(got.w)), weight=work.rows)

    def client(self, got: Turn, kept: None, work: Work) -> Reply:
        """g_j = grad_b(y_j) - grad_b(y_{j-1}) + g_{j-1}, y_{j+1} = y_j - eta g_j; send (w_t - y_Q) / (Q eta)."""
        y, last, g = got.w, got.w + got.eta * got.g, got.g  # w_{t-1} = w_t + eta_g g_{t-1}
        for rows in work.batches(self.q):
            g = work.gradient(y, rows) - work.gradient(last, rows) + g
            y, last = y - work.lr * g, y
        return Reply(Slope((got.w - y) / (self.q * work.lr)), weight=work.rows)

    def round(self, state: Page, ask: Ask) -> Any:
        """Toss the coin (heads in round 0), ask, step."""
        p = ask.share if self.p is None else self.p
        anew = state.rounds == 0 or ask.coin() < p
        if anew:
            mean = ask(Model(state.w), do="slope", everyone=True)
        else:
            mean = ask(Turn(state.w, state.g, self._eta(ask.cohort)))
        return state if mean is None else self.server(state, mean, ask.cohort)

    def _eta(self, cohort: Cohort) -> float:
        return cohort.lr if self.server_lr is None else self.server_lr

    def server(self, state: Page, mean: Slope, cohort: Cohort) -> Page:
        """w_{t+1} = w_t - eta_g g_t."""
        return Page(state.w - self._eta(cohort) * mean.g, mean.g, state.rounds + 1)
