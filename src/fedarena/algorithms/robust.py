"""Aggregation that a few false updates cannot move: coordinate-wise median and trimmed mean (Yin et al. 2018,
arXiv:1803.01498), Krum (Blanchard et al. 2017, arXiv:1703.02757). The server sees every update by itself, which secure
aggregation forbids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Ge, Lt

from fedarena.algorithms.base import Algorithm, Cohort, Model, Reply, Vector, Work, collected
from fedarena.config.registry import register


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


@register("algorithm", "median", paper="Yin et al. 2018, arXiv:1803.01498")
@dataclass(frozen=True)
class Median(RobustAggregation):
    """Every weight takes the median of the clients' steps."""

    def centre(self, deltas: Vector) -> Vector:
        """Return the median of each coordinate."""
        return np.median(deltas, axis=0).astype(deltas.dtype)


@register("algorithm", "trimmed_mean", paper="Yin et al. 2018, arXiv:1803.01498")
@dataclass(frozen=True)
class TrimmedMean(RobustAggregation):
    """Every weight takes the mean of the clients' steps without the largest and smallest `share` of them."""

    share: Annotated[float, Ge(0), Lt(0.5)] = 0.2

    def centre(self, deltas: Vector) -> Vector:
        """Return the mean of each coordinate without the floor(share m) smallest and largest values."""
        cut = int(self.share * len(deltas) + 1e-9)
        ordered = np.sort(deltas, axis=0)
        kept: Vector = ordered[cut : len(deltas) - cut].mean(axis=0)
        return kept


@register("algorithm", "krum", paper="Blanchard et al. 2017, arXiv:1703.02757")
@dataclass(frozen=True)
class Krum(RobustAggregation):
    """The step of the client that is nearest to its m - f - 2 nearest others; f = `liars` false updates are tolerated."""

    liars: Annotated[int, Ge(0)] = 1

    def centre(self, deltas: Vector) -> Vector:
        """Return the step with the least sum of squared distances; of several, that of the lowest client."""
        m = len(deltas)
        squares = np.stack([((deltas - delta) ** 2).sum(axis=1, dtype=np.float64) for delta in deltas])
        nearest = np.sort(squares, axis=1)[:, 1 : max(m - self.liars - 2, 1) + 1]  # without the distance to itself, 0
        chosen: Vector = deltas[int(nearest.sum(axis=1).argmin())]
        return chosen
