"""FSVRG: Konečný, McMahan, Ramage, Richtárik, "Federated Optimization: Distributed Machine Learning for On-Device
Intelligence", 2016, arXiv:1610.02527, algorithm 4; by default as run by Nilsson et al. 2018, without its scalings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge

from fedarena.algorithms.base import (
    Algorithm,
    Anchor,
    Ask,
    Cohort,
    Model,
    Reply,
    Setting,
    Step,
    Vector,
    Work,
    known,
    summed,
)
from fedarena.errors import BadValue
from fedarena.registry import register


@dataclass(frozen=True)
class Features:
    """How common each input feature is in the federation: all that the scalings are made of."""

    rows: Vector  # n^j: rows in which it is not 0
    owners: Vector  # omega^j: clients that have such rows
    all_rows: int
    all_owners: int


@dataclass(frozen=True)
class Known:
    """Weights, and the features once all clients have counted theirs."""

    w: Vector
    features: Features | None = None


@dataclass(frozen=True)
class Question:
    """How many of your rows have which feature? The question itself is part of the algorithm, and costs nothing."""


@dataclass(frozen=True)
class Count:
    """A client's part of `Features`, added up."""

    rows: Vector = summed()
    owners: Vector = summed()


@dataclass(frozen=True)
class Anchored:
    """The model, and the gradient of the whole federation there."""

    gradient: Vector
    w: Vector = known()  # from the first exchange
    features: Features | None = known()  # from the first exchange of the round that counted them


@dataclass(frozen=True)
class Slope:
    """A client's gradient."""

    gradient: Vector


@register("algorithm", "fsvrg", paper="Konečný et al. 2016, arXiv:1610.02527; Nilsson et al. 2018")
@dataclass(frozen=True)
class FSVRG(Algorithm):
    """All clients measure the full gradient, then each takes one variance-reduced pass over its rows, a row at a time.

    The step of client k is h / n_k. Two exchanges a round: twice the bytes of FedAvg, and everyone takes part.

    `scaling = "diagonal"` adds the paper's two matrices for sparse rows. They have an entry for each input feature, and so
    need a linear model: S_k shrinks a client's differences where it has more of a feature than others have, A lengthens
    the mean step where few clients have it. The first round gets a third exchange for them: two counts a feature go up (8
    bytes), their sums come back with the model (8 bytes a feature, and 16), and nothing more is sent later. While clients
    drop out of that exchange it is repeated in the next round, and a round scales by those who answered in it.
    """

    h: Annotated[float, Ge(0)] = 4.0
    scaling: Literal["none", "diagonal"] = "none"

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
        if self.scaling == "diagonal" and setting.features is None:
            raise BadValue(
                "fsvrg's diagonal scaling is for linear models: it needs to know which weights belong to which feature",
                remedy='use model = "logreg", or scaling = "none"',
                where="algorithm.scaling",
            )

    def init(self, w: Vector) -> Known:
        """No feature has been counted."""
        return Known(w)

    def count(self, got: Question, kept: None, work: Work) -> Reply:
        """Phase 0, for the scalings: n_k^j, and whether that is any."""
        own = work.feature_counts.astype(np.int32)
        return Reply(Count(own, (own > 0).astype(np.int32)))

    def slope(self, got: Model | Known, kept: None, work: Work) -> Reply:
        """Phase 1: grad F_k(w_t)."""
        return Reply(Slope(work.gradient(got.w)), weight=work.rows)

    def client(self, got: Anchored, kept: None, work: Work) -> Reply:
        """Phase 2: w_k <- w_k - h_k (S_k [grad l_i(w_k) - grad l_i(w_t)] + grad f(w_t)), i through a permutation."""
        s, a = (None, 1.0) if got.features is None else self._scalings(got.features, work)
        anchor = Anchor(got.w, got.gradient, s)
        out = work.train(got.w, adjust=anchor, epochs=1, batch=1, lr=self.h / work.rows)
        return Reply(Step(a * (got.w - out.w)), weight=work.rows)  # A is diagonal: the server's sum is of scaled steps

    def _scalings(self, seen: Features, work: Work) -> tuple[Vector, Vector]:
        """s_k^j = (n^j / n) / (n_k^j / n_k) and a^j = K / omega^j, in whole numbers: exactly 1 where all are alike."""
        own = work.feature_counts
        s, a = np.ones(len(own)), np.ones(len(own))  # where there is no such feature, there is no difference to scale
        np.divide(seen.rows * float(work.rows), own * float(seen.all_rows), out=s, where=own > 0)
        np.divide(float(seen.all_owners), seen.owners, out=a, where=seen.owners > 0)
        return work.spread(s), work.spread(a)

    def round(self, state: Known, ask: Ask) -> Known:
        """Count features where they are needed and not known, measure, walk."""
        features = state.features
        hello: Model | Known = Model(state.w)
        if self.scaling == "diagonal" and features is None:
            features = self._features(ask)
            hello = Known(state.w, features)
        slope = ask(hello, do="slope")
        mean = None if slope is None else ask(Anchored(slope.gradient, state.w, features))
        if mean is None:
            return state
        after = self.server(state, mean, ask.cohort)
        complete = features is not None and features.all_owners == ask.cohort.population
        return Known(after.w, features) if complete else after

    def _features(self, ask: Ask) -> Features | None:
        """Those of the clients that answer."""
        count = ask(Question(), do="count")
        if count is None:
            return None
        return Features(count.rows, count.owners, ask.cohort.rows, len(ask.cohort.answered))

    def server(self, state: Known, mean: Step, cohort: Cohort) -> Known:
        """w_{t+1} = w_t - A sum (n_k / n) (w_t - w_k)."""
        return Known(state.w - mean.delta, state.features)
