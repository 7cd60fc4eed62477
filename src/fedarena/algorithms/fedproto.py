"""FedProto: Tan, Long, Liu, Zhou, Lu, Jiang, Zhang, "FedProto: Federated Prototype Learning across Heterogeneous Clients",
2022, arXiv:2105.00243, algorithm 1."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from fedarena.algorithms.base import Algorithm, Cohort, Reply, Setting, Vector, Work, collected
from fedarena.algorithms.checks import check_has_classes, check_representation
from fedarena.config.registry import register

if TYPE_CHECKING:
    from torch import Tensor

NEVER = -1e9  # the output for a class that no client has


@dataclass(frozen=True)
class Prototypes:
    """The mean representation of each class, one a row; without numbers for a class that no client has sent."""

    rows: Vector


@dataclass(frozen=True)
class FedProtoState(Prototypes):
    """The prototypes, and the initial model, which the server never changes."""

    w: Vector


@dataclass(frozen=True)
class OwnPrototypes:
    """The prototypes of the classes that a client has, in the order of classes, and its rows of every class."""

    rows: Vector = collected()
    counts: NDArray[np.int64] = collected()


@register("algorithm", "fedproto", paper="Tan et al. 2022, arXiv:2105.00243")
@dataclass(frozen=True)
class FedProto(Algorithm):
    """Models stay with the clients, which share the mean representation of each class and predict by the nearest one.

    >>> import fedarena as fa
    >>> federation = dict(rounds=5, clients=6, partition="iid", out=False)
    >>> run = fa.run("digits", algorithm=fa.FedProto(), **federation)
    >>> run.final.accuracy > 0.8
    True
    """

    lam: Annotated[float, Ge(0)] = 0.1

    needs = "each update"
    personal = True
    common_score = "none"
    beyond_steps = "the mean representation of the samples of each class"
    fastest_path = "autograd"

    def check(self, setting: Setting) -> None:
        """Refuse a task without classes, and a model without a representation."""
        check_has_classes("fedproto", setting, "has a prototype for each class")
        check_representation("fedproto", setting)

    def init(self, w: Vector) -> FedProtoState:
        """Start without prototypes."""
        return FedProtoState(np.empty((0, 0), w.dtype), w)

    def remember(self, w: Vector) -> Vector:
        """Start every client's own model at w_0."""
        return w

    def broadcast(self, state: FedProtoState) -> Prototypes:
        """Send the prototypes of all classes, and no model."""
        return Prototypes(state.rows)

    def measured(self, state: FedProtoState) -> Prototypes:
        """Send nothing: clients measure their own models."""
        return Prototypes(state.rows[:0])

    def starts(self, message: Prototypes, own_w: Vector) -> tuple[Vector, ...]:
        """Return the client's own model."""
        return (own_w,)

    def client(self, message: Prototypes, own_w: Vector, work: Work) -> Reply:
        """w_k <- local SGD on F_k + lambda |z - prototype of its class|^2; send the mean z of each class of the client."""
        out, counts = work.train(own_w, loss=partial(self.loss, message.rows)), work.own_class_counts
        z, classes = work.represent(out.w)
        means = [z[classes == c].mean(axis=0, dtype=np.float64) for c in np.flatnonzero(counts)]
        return Reply(OwnPrototypes(np.stack(means).astype(z.dtype), counts), keep=out.w)

    def loss(self, prototypes: Vector, module: Any, batch: Any, context: Any) -> Tensor:
        """F_k + lambda times the mean of |z - prototype|^2, of samples whose class has a prototype."""
        z, outputs = context.represent(module, batch.x)
        loss: Tensor = context.loss(outputs, batch.y)
        if self.lam == 0 or not len(prototypes):
            return loss
        target = z.new_tensor(prototypes)[batch.y]
        known = ~target.isnan().any(dim=1)
        distance: Tensor = (z - target)[known].square().sum() / len(z)
        return loss + self.lam * distance

    def server(self, state: FedProtoState, mean: OwnPrototypes, cohort: Cohort) -> FedProtoState:
        """prototype_c = sum_k n_kc z_kc / sum_k n_kc; it stays where no client has the class."""
        counts, total = np.stack(list(mean.counts)), np.sum(list(mean.counts), axis=0)
        sums = np.zeros((len(total), mean.rows[0].shape[1]))
        for rows, own in zip(mean.rows, counts, strict=True):
            sums[own > 0] += own[own > 0, None] * rows
        known, before = total > 0, state.rows if len(state.rows) else np.full(sums.shape, np.nan, state.w.dtype)
        found = sums / np.maximum(total, 1)[:, None]
        return FedProtoState(np.where(known[:, None], found, before).astype(before.dtype), state.w)

    def personal_model(self, message: Prototypes, own_w: Vector, work: Work) -> Vector:
        """Return v_k with the outputs 2 z p_c - |p_c|^2 = |z|^2 - |z - p_c|^2, largest for the nearest prototype p_c."""
        if not len(message.rows):  # no client has answered yet
            return own_w
        p = np.nan_to_num(message.rows)
        bias = np.where(np.isnan(message.rows).any(axis=1), NEVER, -np.square(p).sum(axis=1))
        return work.with_last_layer(own_w, 2 * p, bias)

    def unseen_model(self, message: Prototypes, own_w: Vector, work: Work, steps: int) -> Vector:
        """v <- w_0, then so many steps on F(v) + lambda |z - prototype|^2; predict by the nearest prototype."""
        if steps:
            own_w = work.train(own_w, steps=steps, loss=partial(self.loss, message.rows)).w
        return self.personal_model(message, own_w, work)
