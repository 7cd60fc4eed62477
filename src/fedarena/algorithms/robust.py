"""Means that a few false answers cannot move: coordinate-wise median and trimmed mean (Yin et al. 2018, arXiv:1803.01498),
Krum (Blanchard et al. 2017, arXiv:1703.02757). They need every update by itself, which secure aggregation forbids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Ge, Lt

from fedarena.algorithms.base import Algorithm, Cohort, Model, Reply, Vector, Work, collected
from fedarena.registry import register


@dataclass(frozen=True)
class Steps:
    """The step of every client, by itself."""

    delta: Vector = collected()


@dataclass(frozen=True)
class Robust(Algorithm):
    """FedAvg with another centre than the mean."""

    needs = "each update"

    def client(self, got: Model, kept: None, work: Work) -> Reply:
        """As FedAvg."""
        return Reply(Steps(got.w - work.train(got.w).w))

    def centre(self, deltas: Vector) -> Vector:
        """The centre of the steps, one in each row."""
        raise NotImplementedError

    def server(self, state: Model, mean: Steps, cohort: Cohort) -> Model:
        """w_{t+1} = w_t - centre of Delta_k."""
        deltas: list[Vector] = list(mean.delta)
        return Model(state.w - self.centre(np.stack(deltas)))


@register("algorithm", "median", paper="Yin et al. 2018, arXiv:1803.01498")
@dataclass(frozen=True)
class Median(Robust):
    """Every weight takes the median of the clients' steps."""

    def centre(self, deltas: Vector) -> Vector:
        """By coordinate."""
        return np.median(deltas, axis=0).astype(deltas.dtype)


@register("algorithm", "trimmed_mean", paper="Yin et al. 2018, arXiv:1803.01498")
@dataclass(frozen=True)
class TrimmedMean(Robust):
    """Every weight takes the mean of the clients' steps without the largest and smallest `share` of them."""

    share: Annotated[float, Ge(0), Lt(0.5)] = 0.2

    def centre(self, deltas: Vector) -> Vector:
        """By coordinate; floor(share m) steps are cut off at each end."""
        cut = int(self.share * len(deltas) + 1e-9)
        ordered = np.sort(deltas, axis=0)
        kept: Vector = ordered[cut : len(deltas) - cut].mean(axis=0)
        return kept


@register("algorithm", "krum", paper="Blanchard et al. 2017, arXiv:1703.02757")
@dataclass(frozen=True)
class Krum(Robust):
    """The step of the one client that lies nearest to its m - f - 2 nearest others, f being the number of liars to bear."""

    liars: Annotated[int, Ge(0)] = 1

    def centre(self, deltas: Vector) -> Vector:
        """argmin of the summed squared distances; the lowest client of several."""
        m = len(deltas)
        squares = np.stack([((deltas - delta) ** 2).sum(axis=1, dtype=np.float64) for delta in deltas])
        nearest = np.sort(squares, axis=1)[:, 1 : max(m - self.liars - 2, 1) + 1]  # its distance to itself is 0
        chosen: Vector = deltas[int(nearest.sum(axis=1).argmin())]
        return chosen
