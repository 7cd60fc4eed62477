"""A client whose model has a part of its own: the algorithm sees shared entries, training has the complete vector."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from fedarena.algorithms.base import Adjust, Outcome, Pull, Vector
from fedarena.config.errors import BadValue
from fedarena.engine.client import ClientWork
from fedarena.engine.general_step import as_function
from fedarena.engine.own_parts import OwnParts


class PartialWork:
    """The work of a client in terms of the shared entries; `own` has its own entries as the latest training left them."""

    def __init__(self, work: ClientWork, parts: OwnParts, own: Vector) -> None:
        self.complete, self.parts, self.own = work, parts, own

    def __getattr__(self, name: str) -> Any:
        return getattr(self.complete, name)

    def train(self, w: Vector, *, adjust: Adjust = None, **how: Any) -> Outcome:
        """Train the complete model from shared and own entries; return the shared ones and keep the own ones."""
        out = self.complete.train(self.parts.join(w, self.own), adjust=self._widened(adjust), **how)
        self.own = self.parts.own(out.w)
        return Outcome(**{**vars(out), "w": self.parts.shared(out.w)})

    def _widened(self, adjust: Adjust) -> Adjust:
        """Return a correction of shared entries as one of the complete vector, which leaves own entries alone.

        The kernels know it where it is a constant; a proximal term on some of the entries is a Python function.
        """
        parts = self.parts
        if adjust is None:
            return None
        if isinstance(adjust, Pull) and not (adjust.mu and adjust.centre is not None):
            b = None if adjust.b is None else parts.join(adjust.b, np.zeros_like(parts.initial))
            return Pull(b=b, outside=adjust.outside)
        if isinstance(adjust, Pull):
            change = as_function(adjust)
        elif callable(adjust):
            change = adjust
        else:
            raise BadValue(
                "variance reduction by an anchor needs all entries of the model at the server",
                remedy="use an algorithm that only averages, such as fedavg, around own layers",
                where="algorithm",
            )
        shared = ~parts.weights

        def on_shared(y: Vector, g: Vector) -> Vector:
            g = g.copy()
            g[shared] = change(y[shared], g[shared])
            return g

        return on_shared

    def load(self, w: Vector) -> nn.Module:
        """Set the weights of `module` to shared and own entries and return it."""
        return self.complete.load(self.parts.join(w, self.own))

    @property
    def weights(self) -> Vector:
        """Return a copy of the shared entries of `module`, and keep its own ones."""
        w = self.complete.weights
        self.own = self.parts.own(w)
        return self.parts.shared(w)

    def frozen(self, w: Vector) -> nn.Module:
        """Return a copy of the model with these shared entries, frozen and in evaluation mode."""
        return self.complete.frozen(self.parts.join(w, self.own))

    def mask(self, *patterns: str) -> NDArray[np.bool_]:
        """Return which shared entries belong to parameters whose name fits one of the patterns."""
        return self.complete.mask(*patterns)[~self.parts.weights]

    def gradient(self, w: Vector, rows: NDArray[np.int64] | None = None) -> Vector:
        """Return the shared entries of the gradient."""
        return self.parts.shared(self.complete.gradient(self.parts.join(w, self.own), rows))

    def evaluate(self, w: Vector) -> tuple[float, float]:
        """Return accuracy and mean loss on all local training rows."""
        return self.complete.evaluate(self.parts.join(w, self.own))
