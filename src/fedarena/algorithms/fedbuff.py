"""FedBuff: Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek, Huba, "Federated Learning with Buffered Asynchronous
Aggregation", 2022, arXiv:2106.06639, algorithm 1."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Self

import numpy as np
from annotated_types import Ge, Gt

from fedarena.algorithms.base import Asynchronous, Model, Reply, Setting, Step, Vector, Work
from fedarena.registry import register

BUFFER = 10  # K of the paper


@dataclass(frozen=True)
class Buffered:
    """The model, and the steps that wait for others: their weighted sum and their number."""

    w: Vector
    age: int
    waiting: Vector
    count: int


@register("algorithm", "fedbuff", paper="Nguyen et al. 2022, arXiv:2106.06639")
@dataclass(frozen=True)
class FedBuff(Asynchronous):
    """Steps come in at any time and wait in a buffer; `buffer` of them together make the server's next model.

    A step counts (d + 1)^(-a), d being the models made since it began. Left open, the buffer holds 10, or as many as there
    are clients at work at once where that is fewer.
    """

    buffer: Annotated[int, Ge(1)] | None = None
    server_lr: Annotated[float, Gt(0)] = 1.0
    a: Annotated[float, Ge(0)] = 0.5

    needs = "mean"  # the server uses nothing but the sum of a full buffer

    def settled(self, setting: Setting) -> Self:
        """No buffer larger than what can be under way."""
        return self if self.buffer is not None else replace(self, buffer=min(BUFFER, setting.participants))

    @property
    def _size(self) -> int:
        assert self.buffer is not None
        return self.buffer

    def init(self, w: Vector) -> Buffered:
        """An empty buffer, in double precision: a sum of many."""
        return Buffered(w, 0, np.zeros(len(w)), 0)

    def client(self, got: Model, kept: None, work: Work) -> Reply:
        """As FedAvg."""
        return Reply(Step(got.w - work.train(got.w).w))

    def share(self, d: int) -> float:
        """An answer's part of the server's next model."""
        return float(self.server_lr * (d + 1) ** -self.a / self._size)

    def merge(self, state: Buffered, sent: Step, d: int) -> Buffered:
        """Into the buffer; w <- w - eta_g / K sum of what waits once it is full."""
        waiting, count = state.waiting + (d + 1) ** -self.a * sent.delta, state.count + 1
        if count < self._size:
            return replace(state, waiting=waiting, count=count)
        w = (state.w - self.server_lr * (waiting / self._size)).astype(state.w.dtype)
        return Buffered(w, state.age + 1, np.zeros(len(w)), 0)
