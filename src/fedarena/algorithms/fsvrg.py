"""FSVRG: Konečný, McMahan, Ramage, Richtárik, "Federated Optimization: Distributed Machine Learning for On-Device
Intelligence", 2016, arXiv:1610.02527, as run by Nilsson et al. 2018 (without the diagonal scalings)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Ge

from fedarena.algorithms.base import Algorithm, Anchor, Ask, Cohort, Model, Reply, Setting, Step, Vector, Work, known
from fedarena.errors import BadValue
from fedarena.registry import register


@dataclass(frozen=True)
class Anchored:
    """The model, and the gradient of the whole federation there."""

    gradient: Vector
    w: Vector = known()  # from the first exchange


@dataclass(frozen=True)
class Slope:
    """A client's gradient."""

    gradient: Vector


@register("algorithm", "fsvrg", paper="Konečný et al. 2016, arXiv:1610.02527; Nilsson et al. 2018")
@dataclass(frozen=True)
class FSVRG(Algorithm):
    """All clients measure the full gradient, then each takes one variance-reduced pass over its rows, a row at a time.

    The step of client k is h / n_k. Two exchanges a round: twice the bytes of FedAvg, and everyone takes part.
    """

    h: Annotated[float, Ge(0)] = 4.0

    everyone = True

    def check(self, setting: Setting) -> None:
        """Gradients of one row at two points must be of one and the same function."""
        if setting.has_batchnorm or setting.has_dropout:
            found = "BatchNorm" if setting.has_batchnorm else "dropout"
            raise BadValue(
                f"fsvrg cannot train a model with {found}: a row's gradient would not be that of a fixed function",
                remedy='use norm = "plain" or "gn", and dropout = 0',
                where="algorithm.name",
            )
        if setting.momentum:
            raise BadValue("fsvrg knows no momentum", remedy="set local.momentum = 0", where="local.momentum")

    def slope(self, got: Model, kept: None, work: Work) -> Reply:
        """Phase 1: grad F_k(w_t)."""
        return Reply(Slope(work.gradient(got.w)), weight=work.rows)

    def client(self, got: Anchored, kept: None, work: Work) -> Reply:
        """Phase 2: w_k <- w_k - h_k [grad l_i(w_k) - grad l_i(w_t) + grad f(w_t)], i through a permutation of its rows."""
        anchor = Anchor(got.w, got.gradient)
        out = work.train(got.w, adjust=anchor, epochs=1, batch=1, lr=self.h / work.rows)
        return Reply(Step(got.w - out.w), weight=work.rows)

    def round(self, state: Model, ask: Ask) -> Any:
        """Measure, then walk."""
        slope = ask(Model(state.w), do="slope")
        mean = None if slope is None else ask(Anchored(slope.gradient, state.w))
        return state if mean is None else self.server(state, mean, ask.cohort)

    def server(self, state: Model, mean: Step, cohort: Cohort) -> Model:
        """w_{t+1} = sum (n_k / n) w_k."""
        return Model(state.w - mean.delta)
