"""Baselines of a federation: training on all rows in one place, and every client alone."""

from __future__ import annotations

from dataclasses import dataclass

from fedarena.algorithms.base import Algorithm, Cohort, Model, Reply, Vector, Work
from fedarena.config.registry import register


@register("algorithm", "centralized")
@dataclass(frozen=True)
class Centralized(Algorithm):
    """Minibatch SGD on the union of all rows; a round is `local.epochs` epochs or `local.steps` steps. Nothing is sent.

    >>> import fedarena as fa
    >>> federation = dict(rounds=5, clients=6, partition="iid", out=False)
    >>> run = fa.run("digits", algorithm=fa.Centralized(), **federation)
    >>> run.final.accuracy > 0.9
    True
    """

    everyone = True
    communicates = False
    pooled = True
    keeps_momentum = True

    def client(self, message: Model, client_state: None, work: Work) -> Reply:
        """Continue training on all rows."""
        return Reply(Model(work.train(message.w).w))

    def server(self, state: Model, mean: Model, cohort: Cohort) -> Model:
        """Take the model as it is, not as a difference: no rounding between rounds."""
        return mean


@dataclass(frozen=True)
class EmptyUpdate:
    """The update of a client that sends nothing."""


@register("algorithm", "local")
@dataclass(frozen=True)
class LocalOnly(Algorithm):
    """Every client trains alone from the same start, `local.epochs` or `local.steps` a round. Nothing is sent.

    Its accuracy is the mean over clients, weighted by rows, of each client's own model on the global test set; its
    weighted accuracy the same on each client's own test set.

    >>> import fedarena as fa
    >>> federation = dict(rounds=5, clients=6, partition="iid", out=False)
    >>> run = fa.run("digits", algorithm=fa.LocalOnly(), **federation)
    >>> run.final.accuracy > 0.5
    True
    """

    everyone = True
    communicates = False
    personal = True
    keeps_momentum = True

    def remember(self, w: Vector) -> Vector:
        """Return the client's own model, from the common start."""
        return w

    def client(self, message: Model, own_w: Vector, work: Work) -> Reply:
        """Train the client's own model and send nothing."""
        return Reply(EmptyUpdate(), keep=work.train(own_w).w)

    def unseen_model(self, message: Model, own_w: Vector, work: Work, steps: int) -> Vector:
        """Train alone as all clients do: v <- w_0, then so many steps."""
        return work.train(own_w, steps=steps).w if steps else own_w

    def server(self, state: Model, mean: EmptyUpdate, cohort: Cohort) -> Model:
        """Leave the server's model as it is."""
        return state
