"""Coordinate-wise median and trimmed mean: Yin, Chen, Ramchandran, Bartlett, "Byzantine-Robust Distributed Learning:
Towards Optimal Statistical Rates", 2018, arXiv:1803.01498."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Ge, Lt

from fedarena.algorithms.base import Vector
from fedarena.algorithms.robust import RobustAggregation
from fedarena.config.registry import register


@register("algorithm", "median", paper="Yin et al. 2018, arXiv:1803.01498")
@dataclass(frozen=True)
class Median(RobustAggregation):
    """Every weight takes the median of the clients' steps.

    >>> import fedarena as fa
    >>> attack = {"name": "gaussian", "clients": [0, 1]}
    >>> federation = dict(clients=12, share=1.0, partition="iid", attack=attack, out=False)
    >>> run = fa.run("digits", algorithm=fa.Median(), rounds=10, **federation)
    >>> run.final.accuracy > 0.5
    True
    """

    def centre(self, deltas: Vector) -> Vector:
        """Return the median of each coordinate."""
        return np.median(deltas, axis=0).astype(deltas.dtype)


@register("algorithm", "trimmed_mean", paper="Yin et al. 2018, arXiv:1803.01498")
@dataclass(frozen=True)
class TrimmedMean(RobustAggregation):
    """Every weight takes the mean of the clients' steps without the largest and smallest `share` of them.

    >>> import fedarena as fa
    >>> attack = {"name": "gaussian", "clients": [0, 1]}
    >>> federation = dict(clients=12, share=1.0, partition="iid", attack=attack, out=False)
    >>> run = fa.run("digits", algorithm=fa.TrimmedMean(share=0.2), rounds=10, **federation)
    >>> run.final.accuracy > 0.5
    True
    """

    share: Annotated[float, Ge(0), Lt(0.5)] = 0.2

    def centre(self, deltas: Vector) -> Vector:
        """Return the mean of each coordinate without the floor(share m) smallest and largest values."""
        cut = int(self.share * len(deltas) + 1e-9)
        ordered = np.sort(deltas, axis=0)
        kept: Vector = ordered[cut : len(deltas) - cut].mean(axis=0)
        return kept
