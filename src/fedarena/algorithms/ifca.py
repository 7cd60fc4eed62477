"""IFCA: Ghosh, Chung, Yin, Ramchandran, "An Efficient Framework for Clustered Federated Learning", 2020,
arXiv:2006.04088, algorithm 1 with model averaging."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Ge

from fedarena.algorithms.base import Algorithm, Cohort, Reply, Vector, Work, collected
from fedarena.config.registry import register
from fedarena.config.seeds import stream


@dataclass(frozen=True)
class ClusterModels:
    """The models of all clusters, that of the first one as `w`."""

    w: Vector
    others: tuple[Vector, ...]

    @property
    def each(self) -> tuple[Vector, ...]:
        """Return the model of each cluster."""
        return (self.w, *self.others)


@dataclass(frozen=True)
class ClusterUpdate:
    """The step of a client, the number of the cluster that it chose, and its rows."""

    delta: Vector = collected()
    cluster: int = collected()
    rows: int = collected()


@register("algorithm", "ifca", paper="Ghosh et al. 2020, arXiv:2006.04088")
@dataclass(frozen=True)
class IFCA(Algorithm):
    """The server has `clusters` models; each client trains the one with the least loss on its samples, and predicts with it.

    The first model starts at w_0, the others at w_0 plus noise of `spread` times the root mean square of w_0.

    >>> import fedarena as fa
    >>> federation = dict(rounds=5, clients=6, partition="iid", out=False)
    >>> run = fa.run("digits", algorithm=fa.IFCA(clusters=2), **federation)
    >>> run.final.accuracy > 0.8
    True
    """

    clusters: Annotated[int, Ge(1)] = 2
    spread: Annotated[float, Ge(0)] = 1.0

    needs = "each update"
    personal = True
    beyond_steps = "the training loss of each client"
    learns_own_models = False

    def init(self, w: Vector) -> ClusterModels:
        """Start each model at another random point, which follows from w_0 and so from the seed."""
        rng = stream(zlib.crc32(w.tobytes()), "algorithm")
        scale = self.spread * (float(np.sqrt(np.mean(np.square(w, dtype=np.float64)))) or 1.0)
        others = (w + scale * rng.standard_normal(len(w)) for _ in range(self.clusters - 1))
        return ClusterModels(w, tuple(other.astype(w.dtype) for other in others))

    def broadcast(self, state: ClusterModels) -> ClusterModels:
        """Send all models."""
        return state

    def measured(self, state: ClusterModels) -> ClusterModels:
        """Send all models: a client's loss is that of the one that it would train."""
        return state

    def starts(self, message: ClusterModels, client_state: None) -> tuple[Vector, ...]:
        """Return the model of each cluster."""
        return message.each

    def client(self, message: ClusterModels, client_state: None, work: Work) -> Reply:
        """j = argmin F_k(w_j); send w_j - w_k after local SGD from w_j, and j."""
        j = self.choice(message, work)
        start = message.each[j]
        return Reply(ClusterUpdate(start - work.train(start).w, j, work.rows))

    def choice(self, models: ClusterModels, work: Work) -> int:
        """Return the cluster whose model has the least loss on the client's training samples; the first of equal ones."""
        return int(np.argmin([work.evaluate(w)[1] for w in models.each])) if models.others else 0

    def personal_model(self, message: ClusterModels, client_state: None, work: Work) -> Vector:
        """Return the model of the cluster that the client would choose now."""
        return message.each[self.choice(message, work)]

    def unseen_model(self, message: ClusterModels, client_state: None, work: Work, steps: int) -> Vector:
        """j = argmin F(w_j) on the client's training samples, then so many steps from w_j."""
        w = self.personal_model(message, client_state, work)
        return work.train(w, steps=steps).w if steps else w

    def server(self, state: ClusterModels, mean: ClusterUpdate, cohort: Cohort) -> ClusterModels:
        """w_j <- w_j - the mean of the steps of the clients that chose j; w_j stays where none did."""
        from fedarena.models.pytree import WeightedMean  # listing algorithms must not load torch

        steps = [WeightedMean() for _ in state.each]
        for delta, j, rows in zip(mean.delta, mean.cluster, mean.rows, strict=True):  # type: ignore[call-overload]
            steps[j].add(delta, rows)
        w, *others = (w if step.first is None else w - step.result() for w, step in zip(state.each, steps, strict=True))
        return ClusterModels(w, tuple(others))
