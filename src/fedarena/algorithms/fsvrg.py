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
    Cohort,
    Model,
    Reply,
    RequestSender,
    Setting,
    Step,
    Vector,
    Work,
    known,
    summed,
)
from fedarena.algorithms.checks import check_plain_sgd
from fedarena.config.errors import BadValue
from fedarena.config.registry import register


@dataclass(frozen=True)
class FeatureCounts:
    """How common each input feature is in the federation: the scalings are computed from these counts."""

    rows: Vector  # n^j: rows in which it is not 0
    owners: Vector  # omega^j: clients that have such rows
    all_rows: int
    all_owners: int


@dataclass(frozen=True)
class FSVRGState:
    """The weights, and the feature counts once all clients have sent theirs."""

    w: Vector
    features: FeatureCounts | None = None


@dataclass(frozen=True)
class FeatureCountRequest:
    """The request to count features; it is part of the algorithm and costs no bytes."""


@dataclass(frozen=True)
class ClientFeatureCounts:
    """A client's part of `FeatureCounts`, which is summed over clients."""

    rows: Vector = summed()
    owners: Vector = summed()


@dataclass(frozen=True)
class FSVRGMessage:
    """The model, and the gradient of the whole federation at it."""

    gradient: Vector
    w: Vector = known()  # from the first exchange
    features: FeatureCounts | None = known()  # from the first exchange of the round that counted them


@dataclass(frozen=True)
class FullGradient:
    """The gradient over all rows of a client; its mean is that of the federation."""

    gradient: Vector


@register("algorithm", "fsvrg", paper="Konečný et al. 2016, arXiv:1610.02527; Nilsson et al. 2018")
@dataclass(frozen=True)
class FSVRG(Algorithm):
    """All clients compute the full gradient, then each makes one variance-reduced pass over its rows, one row at a time.

    The step of client k is h / n_k. Two exchanges a round: twice the bytes of FedAvg, and everyone takes part.

    `scaling = "diagonal"` adds the paper's two matrices for sparse rows. They have an entry for each input feature, and so
    need a linear model: S_k shrinks a client's differences where it has more of a feature than others have, A lengthens
    the mean step where few clients have it. The first round gets a third exchange for them: two counts a feature go up (8
    bytes), their sums come back with the model (8 bytes a feature, and 16), and nothing more is sent later. While clients
    drop out of that exchange it is repeated in the next round, and a round scales by those who answered in it.

    >>> import fedarena as fa
    >>> federation = dict(rounds=5, clients=6, partition="iid", out=False)
    >>> run = fa.run("digits", algorithm=fa.FSVRG(), **federation)
    >>> run.final.accuracy > 0.85
    True
    """

    h: Annotated[float, Ge(0)] = 4.0
    scaling: Literal["none", "diagonal"] = "none"

    everyone = True
    beyond_steps = "the gradient over all samples of a client"

    def check(self, setting: Setting) -> None:
        """Refuse models whose gradient of a row at two points is not that of the same function."""
        check_plain_sgd("fsvrg", setting, "corrects the gradients of SGD")
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

    def init(self, w: Vector) -> FSVRGState:
        """Start without feature counts."""
        return FSVRGState(w)

    def count(self, message: FeatureCountRequest, client_state: None, work: Work) -> Reply:
        """Phase 0, for the scalings: send n_k^j, and whether it is above 0."""
        own = work.feature_counts.astype(np.int32)
        return Reply(ClientFeatureCounts(own, (own > 0).astype(np.int32)))

    def slope(self, message: Model | FSVRGState, client_state: None, work: Work) -> Reply:
        """Phase 1: send the full gradient grad F_k(w_t)."""
        return Reply(FullGradient(work.gradient(message.w)), weight=work.rows)

    def client(self, message: FSVRGMessage, client_state: None, work: Work) -> Reply:
        """Phase 2: w_k <- w_k - h_k (S_k [grad l_i(w_k) - grad l_i(w_t)] + grad f(w_t)), i through a permutation."""
        s, a = (None, 1.0) if message.features is None else self._scalings(message.features, work)
        anchor = Anchor(message.w, message.gradient, s)
        out = work.train(message.w, adjust=anchor, epochs=1, batch=1, lr=self.h / work.rows)
        return Reply(
            Step(a * (message.w - out.w)), weight=work.rows
        )  # A is diagonal: the server's sum is of scaled steps

    def _scalings(self, seen: FeatureCounts, work: Work) -> tuple[Vector, Vector]:
        """s_k^j = (n^j / n) / (n_k^j / n_k) and a^j = K / omega^j, from integers: exactly 1 where all clients are alike."""
        own = work.feature_counts
        s, a = np.ones(len(own)), np.ones(len(own))  # where there is no such feature, there is no difference to scale
        np.divide(seen.rows * float(work.rows), own * float(seen.all_rows), out=s, where=own > 0)
        np.divide(float(seen.all_owners), seen.owners, out=a, where=seen.owners > 0)
        return work.spread(s), work.spread(a)

    def round(self, state: FSVRGState, request: RequestSender) -> FSVRGState:
        """Count features where they are needed and not known, compute the full gradient, train."""
        features = state.features
        first: Model | FSVRGState = Model(state.w)
        if self.scaling == "diagonal" and features is None:
            features = self._features(request)
            first = FSVRGState(state.w, features)
        slope = request(first, do="slope")
        mean = None if slope is None else request(FSVRGMessage(slope.gradient, state.w, features))
        if mean is None:
            return state
        after = self.server(state, mean, request.cohort)
        complete = features is not None and features.all_owners == request.cohort.population
        return FSVRGState(after.w, features) if complete else after

    def _features(self, request: RequestSender) -> FeatureCounts | None:
        """Return the counts of the clients that answer."""
        count = request(FeatureCountRequest(), do="count")
        if count is None:
            return None
        return FeatureCounts(count.rows, count.owners, request.cohort.rows, len(request.cohort.answered))

    def server(self, state: FSVRGState, mean: Step, cohort: Cohort) -> FSVRGState:
        """w_{t+1} = w_t - A sum (n_k / n) (w_t - w_k)."""
        return FSVRGState(state.w - mean.delta, state.features)
