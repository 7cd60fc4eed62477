"""How good is the model, on the global test set and for every client? Each row is predicted once, whoever it serves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedarena.algorithms.base import Vector
from fedarena.data.dataset import Rows
from fedarena.engine.dispatch import Runtime, in_order
from fedarena.engine.jobs import EvaluateJob, Failed
from fedarena.engine.site import EVALUATION_ROWS, Site
from fedarena.engine.work import Common
from fedarena.errors import ClientFailed
from fedarena.models.task import Buffers, Scores


@dataclass(frozen=True)
class Looked:
    """What an evaluation found: accuracy and loss on the global test set, and each client's accuracy on its own rows."""

    accuracy: float | None
    loss: float
    own: NDArray[np.float64]  # NaN for a client without test rows
    missing: tuple[int, ...] = ()  # clients whose rows could not be looked at, where rows are elsewhere


OwnModel = tuple[Vector | None, Buffers | None]  # of a client; None for what it shares with all


class Looks(Protocol):
    """A way to look at models: at one for all, or at one for each client."""

    def shared(self, common: Common) -> Looked:
        """One model for all."""
        ...

    def personal(self, common: Common, people: list[int], own_model: Callable[[int], OwnModel]) -> Looked:
        """A model for each client, or its own buffers in a common one."""
        ...


def open_evaluation(site: Site, runtime: Runtime) -> Looks:
    """Rows that are here are looked at here; a runtime whose rows stay elsewhere brings its own way (`looks`)."""
    looks: Looks | None = getattr(runtime, "looks", None)
    return Evaluation(site, runtime) if looks is None else looks


class Evaluation:
    """Which rows are looked at, and what is made of them."""

    def __init__(self, site: Site, runtime: Runtime) -> None:
        self.runtime, self.owners = runtime, site.owners
        self.own_rows = self.owners.clients if site.experiment.evaluate.on == "train" else self.owners.client_tests
        self.rows = np.unique(np.concatenate([self.owners.test, *self.own_rows]))
        self._test = np.searchsorted(self.rows, self.owners.test)
        sizes = [len(rows) for rows in self.own_rows]
        self._own = np.searchsorted(self.rows, np.concatenate([np.empty(0, np.int64), *self.own_rows]))
        self._bounds = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])

    def shared(self, common: Common) -> Looked:
        """One model for all, in pieces over the workers."""
        pieces = [self.rows[i : i + EVALUATION_ROWS] for i in range(0, len(self.rows), EVALUATION_ROWS)]
        parts = list(self._scores((EvaluateJob(piece) for piece in pieces), common))
        scores = Scores(*(np.concatenate([getattr(p, name) for p in parts]) for name in ("right", "count", "loss")))
        own = self._own_accuracy(scores)
        if self.owners.noise is not None:  # clients with feature noise see it in their test rows too
            own = self._noisy((EvaluateJob(rows, k) for k, rows in enumerate(self.own_rows)), common)
        return Looked(accuracy(scores, self._test), mean_loss(scores, self._test), own)

    def personal(self, common: Common, people: list[int], own_model: Callable[[int], OwnModel]) -> Looked:
        """A model for each client (or its own buffers in a common one): the mean of accuracies, weighted by rows."""

        def job(k: int, rows: Rows, noise_of: int | None = None) -> EvaluateJob:
            return EvaluateJob(rows, noise_of, *own_model(k))

        sizes = self.owners.sizes[people]
        own = np.full(len(self.own_rows), np.nan)
        on_test = losses = 0.0
        all_scores = self._scores((job(k, self.rows) for k in people), common)
        for k, p, scores in zip(people, sizes / sizes.sum(), all_scores, strict=True):
            on_test += p * (accuracy(scores, self._test) or 0.0)
            losses += p * mean_loss(scores, self._test)
            own[k] = accuracy(scores, self._own[self._bounds[k] : self._bounds[k + 1]])
        if self.owners.noise is not None:
            own = self._noisy((job(k, rows, k) for k, rows in enumerate(self.own_rows)), common)
        return Looked(float(on_test), float(losses), own)

    def _own_accuracy(self, scores: Scores) -> NDArray[np.float64]:
        """Of all clients at once: whole counts, then one division each."""
        right, count = (np.concatenate([[0], np.cumsum(part[self._own])]) for part in (scores.right, scores.count))
        right, count = (np.diff(sums[self._bounds]) for sums in (right, count))
        return np.where(count > 0, right / np.maximum(count, 1), np.nan)

    def _noisy(self, jobs: Iterable[EvaluateJob], common: Common) -> NDArray[np.float64]:
        return np.array([accuracy(scores) for scores in self._scores(jobs, common)], dtype=np.float64)

    def _scores(self, jobs: Iterable[EvaluateJob], common: Common) -> Iterator[Scores]:
        for scores in in_order(self.runtime.map(jobs, common)):
            if isinstance(scores, Failed):
                raise ClientFailed(
                    f"evaluation failed: {scores.error}", remedy="is there memory enough? try --workers 1"
                )
            yield scores


def accuracy(scores: Scores, rows: NDArray[np.int64] | slice = slice(None)) -> float | None:
    """Share of right predictions on these rows: whole counts, then one division."""
    count = int(scores.count[rows].sum())
    return int(scores.right[rows].sum()) / count if count else None


def mean_loss(scores: Scores, rows: NDArray[np.int64]) -> float:
    """Mean cross-entropy over labelled positions."""
    return float(scores.loss[rows].sum() / scores.count[rows].sum())
