"""What a federation is measured against: all rows in one place, and every client alone."""

from __future__ import annotations

from dataclasses import dataclass

from fedarena.algorithms.base import Algorithm, Cohort, Model, Reply, Vector, Work
from fedarena.registry import register


@register("algorithm", "centralized")
@dataclass(frozen=True)
class Centralized(Algorithm):
    """Minibatch SGD on the union of all rows; a round is `local.epochs` epochs. Nothing is sent."""

    everyone = True
    communicates = False
    pooled = True
    keeps_momentum = True

    def client(self, got: Model, kept: None, work: Work) -> Reply:
        """The one place that has all rows goes on training."""
        return Reply(Model(work.train(got.w).w))

    def server(self, state: Model, mean: Model, cohort: Cohort) -> Model:
        """Formed directly, not as a difference: no rounding between rounds."""
        return mean


@dataclass(frozen=True)
class Nothing:
    """What goes up when nothing does."""


@register("algorithm", "local")
@dataclass(frozen=True)
class LocalOnly(Algorithm):
    """Every client trains alone from the same start; a round is `local.epochs` epochs. Nothing is sent.

    Its accuracy is the mean over clients, weighted by rows, of each client's own model on the global test set; its
    weighted accuracy the same on each client's own test set.
    """

    everyone = True
    communicates = False
    personal = True
    keeps_momentum = True

    def remember(self, w: Vector) -> Vector:
        """Its own model, from the common start."""
        return w

    def client(self, got: Model, kept: Vector, work: Work) -> Reply:
        """Train one's own model; tell nobody."""
        return Reply(Nothing(), keep=work.train(kept).w)

    def server(self, state: Model, mean: Nothing, cohort: Cohort) -> Model:
        """The server learns nothing."""
        return state
