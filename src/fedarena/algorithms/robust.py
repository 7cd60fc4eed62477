"""The common part of aggregation that a few false updates cannot move. The server sees every update by itself, which secure
aggregation forbids; numbers of samples do not count, because attackers could claim any."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedarena.algorithms.base import Algorithm, Cohort, Model, Reply, Vector, Work, collected


@dataclass(frozen=True)
class CollectedSteps:
    """The step of every client, as a list."""

    delta: Vector = collected()


@dataclass(frozen=True)
class RobustAggregation(Algorithm):
    """FedAvg with another centre of the steps than their mean."""

    needs = "each update"

    def client(self, message: Model, client_state: None, work: Work) -> Reply:
        """Train and send w_t - w_k, as FedAvg."""
        return Reply(CollectedSteps(message.w - work.train(message.w).w))

    def centre(self, deltas: Vector) -> Vector:
        """Return the centre of the steps, which are the rows of `deltas`."""
        raise NotImplementedError

    def server(self, state: Model, mean: CollectedSteps, cohort: Cohort) -> Model:
        """w_{t+1} = w_t - centre of Delta_k."""
        deltas: list[Vector] = list(mean.delta)
        return Model(state.w - self.centre(np.stack(deltas)))


def norms(vectors: Vector) -> Vector:
    """Return the length of each row, in double precision."""
    lengths: Vector = np.sqrt(np.square(vectors, dtype=np.float64).sum(axis=1))
    return lengths


def shortened(vectors: Vector, limit: float) -> Vector:
    """Return the rows with those that are longer than `limit` shortened to it; others stay as they are, to the bit."""
    lengths = norms(vectors)
    factors = np.divide(limit, lengths, out=np.ones(len(lengths)), where=lengths > limit)
    cut: Vector = factors.astype(vectors.dtype)[:, None] * vectors
    return cut
