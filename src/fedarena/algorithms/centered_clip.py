"""Centred clipping: Karimireddy, He, Jaggi, "Learning from History for Byzantine Robust Optimization", 2021,
arXiv:2012.10333."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Ge, Gt

from fedarena.algorithms.base import Cohort, Vector
from fedarena.algorithms.robust import CollectedSteps, RobustAggregation, norms, shortened
from fedarena.config.registry import register


@dataclass(frozen=True)
class CenteredClipState:
    """The state of the server: its weights, and the centre of the last round."""

    w: Vector
    v: Vector


@register("algorithm", "centered_clip", paper="Karimireddy et al. 2021, arXiv:2012.10333")
@dataclass(frozen=True)
class CenteredClip(RobustAggregation):
    """The centre of the last round moves by the mean of the differences to the clients' steps, each cut to `radius`.

    Without a radius it is the median of the lengths of these differences, at every iteration.

    >>> import fedarena as fa
    >>> attack = {"name": "gaussian", "clients": [0, 1]}
    >>> federation = dict(clients=12, share=1.0, partition="iid", attack=attack, out=False)
    >>> run = fa.run("digits", algorithm=fa.CenteredClip(), rounds=10, **federation)
    >>> run.final.accuracy > 0.5
    True
    """

    radius: Annotated[float, Gt(0)] | None = None
    iterations: Annotated[int, Ge(1)] = 3

    def init(self, w: Vector) -> CenteredClipState:
        """Begin with a centre of zero."""
        return CenteredClipState(w, np.zeros_like(w))

    def server(self, state: CenteredClipState, mean: CollectedSteps, cohort: Cohort) -> CenteredClipState:  # type: ignore[override]
        """w_{t+1} = w_t - v_{t+1}."""
        v = self.centre(np.stack(list(mean.delta)), state.v)
        return CenteredClipState(state.w - v, v)

    def centre(self, deltas: Vector, v: Vector | float = 0.0) -> Vector:
        """v <- v + mean of (Delta_k - v) min(1, radius / |Delta_k - v|), some times."""
        for _ in range(self.iterations):
            away = deltas - v
            radius = float(np.median(norms(away))) if self.radius is None else self.radius
            v = v + shortened(away, radius).mean(axis=0)
        centre: Vector = np.asarray(v)
        return centre
