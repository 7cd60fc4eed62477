"""FedBuff: Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek, Huba, "Federated Learning with Buffered Asynchronous
Aggregation", 2022, arXiv:2106.06639, algorithm 1."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Self

import numpy as np
from annotated_types import Ge, Gt

from fedarena.algorithms.base import Asynchronous, Model, Reply, Setting, Step, Vector, Work
from fedarena.config.registry import register

BUFFER = 10  # K of the paper


@dataclass(frozen=True)
class FedBuffState:
    """The model, and the steps in the buffer: their weighted sum and their number."""

    w: Vector
    age: int
    waiting: Vector
    count: int


@register("algorithm", "fedbuff", paper="Nguyen et al. 2022, arXiv:2106.06639")
@dataclass(frozen=True)
class FedBuff(Asynchronous):
    """Updates arrive at any time and are buffered; `buffer` of them together make the server's next model.

    An update of staleness d has weight (d + 1)^(-a). Left open, the buffer holds 10 updates, or as many as clients train at
    the same time where that is fewer.

    >>> import fedarena as fa
    >>> federation = dict(rounds=5, clients=6, partition="iid", out=False)
    >>> run = fa.run("digits", algorithm=fa.FedBuff(buffer=3), **federation)
    >>> run.final.accuracy > 0.8
    True
    """

    buffer: Annotated[int, Ge(1)] | None = None
    server_lr: Annotated[float, Gt(0)] = 1.0
    a: Annotated[float, Ge(0)] = 0.5

    needs = "mean"  # the server uses nothing but the sum of a full buffer

    def settled(self, setting: Setting) -> Self:
        """Choose a buffer that is not larger than the number of clients that train at the same time."""
        return self if self.buffer is not None else replace(self, buffer=min(BUFFER, setting.participants))

    @property
    def _size(self) -> int:
        assert self.buffer is not None
        return self.buffer

    def init(self, w: Vector) -> FedBuffState:
        """Start with an empty buffer, in double precision because it is a sum."""
        return FedBuffState(w, 0, np.zeros(len(w)), 0)

    def client(self, message: Model, client_state: None, work: Work) -> Reply:
        """Train and send w_fetched - w_k, as FedAvg."""
        return Reply(Step(message.w - work.train(message.w).w))

    def share(self, d: int) -> float:
        """Return the weight of an update in the server's next model."""
        return float(self.server_lr * (d + 1) ** -self.a / self._size)

    def merge(self, state: FedBuffState, sent: Step, d: int) -> FedBuffState:
        """Add the update to the buffer; once it is full, w <- w - eta_g / K times its sum."""
        waiting, count = state.waiting + (d + 1) ** -self.a * sent.delta, state.count + 1
        if count < self._size:
            return replace(state, waiting=waiting, count=count)
        w = (state.w - self.server_lr * (waiting / self._size)).astype(state.w.dtype)
        return FedBuffState(w, state.age + 1, np.zeros(len(w)), 0)
