"""Many light clients in one call: what the first of a bundle asks of the solver, the others will ask too.

A client that trains for thirty microseconds must not spend two hundred on being called. Most algorithms begin with the
same words, `work.train(got.w)`: when the first client of a bundle says them, the kernels train all of the bundle, and each
finds its own result when it asks. Who asks for something else is served as always, with the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedarena.algorithms.base import Adjust, Outcome, Pull, Vector
from fedarena.engine import solver
from fedarena.engine.site import Site
from fedarena.models.compiled import can_shuffle, shuffled

NOTHING = Pull()


class Ahead:
    """The trainings of a bundle's clients, all from the same weights."""

    def __init__(self, site: Site, round: int, clients: Sequence[int]) -> None:
        self.site, self.round, self.clients = site, round, clients
        self._asked: tuple[Vector, Pull] | None = None
        self._found: dict[int, Outcome] = {}
        self._paces: dict[int, tuple[float, float, float]] = {}

    @staticmethod
    def serves(site: Site) -> bool:
        """Is a client's training the same whoever trained before it, and known before it is asked for?"""
        local, task = site.experiment.local, site.task
        plain = not (local.momentum or local.decay or task.has_buffers) and local.shuffle
        compiled = solver.can_be_compiled(task, local, None) and site.source is not None
        return plain and compiled and site.rows_of_clients is not None and can_shuffle(site.experiment.seed)

    def outcome(self, client: int, w: Vector, adjust: Adjust) -> Outcome | None:
        """What this training comes to; None if it is another one than the bundle's."""
        pull = NOTHING if adjust is None else adjust
        if not isinstance(pull, Pull) or pull.outside:
            return None
        if self._asked is None:
            self._asked = w, pull
            self._train(w, pull)
        start, first = self._asked
        same = pull is first or (pull.mu == first.mu and pull.centre is first.centre and pull.b is first.b)
        return self._found.pop(client, None) if same and w is start else None

    def _train(self, w: Vector, pull: Pull) -> None:
        site, local, task = self.site, self.site.experiment.local, self.site.task
        assert task.network is not None
        assert site.source is not None
        assert site.rows_of_clients is not None
        order = shuffled(site.experiment.seed, self.round, site.rows_of_clients, self.clients, local.epochs)
        epochs = [
            solver.batch_sizes(len(site.partition.clients[k]), local.batch, site.last_batch) for k in self.clients
        ]
        counts = [local.epochs * len(sizes) for sizes in epochs]
        sizes = [size for epoch in epochs for _ in range(local.epochs) for size in epoch]
        rates = np.full(len(sizes), local.lr)
        after = np.empty((len(self.clients), task.size), np.float32)
        solver.load(task, w, local, pull, None)
        losses = task.network.train_each(site.source, order, sizes, rates, counts, after)
        start = 0
        for client, epoch, trained in zip(self.clients, epochs, after, strict=True):
            means = []
            for _ in range(local.epochs):
                means.append(float(losses[start : start + len(epoch)] @ np.asarray(epoch)) / sum(epoch))
                start += len(epoch)
            self._found[client] = Outcome(
                trained, local.epochs * len(epoch), *self._pace(len(epoch), pull.mu), tuple(means)
            )

    def _pace(self, steps: int, mu: float) -> tuple[float, float, float]:
        """Sum of rates, displacement and effective steps of so many steps an epoch: the same for most clients."""
        if steps not in self._paces:
            local = self.site.experiment.local
            unit, lr_sum, rates = solver.UnitSolver(0.0, mu), 0.0, np.full(steps, local.lr)
            for _ in range(local.epochs):
                unit.steps(rates)
                lr_sum += float(rates.sum())
            self._paces[steps] = lr_sum, -unit.x, unit.effective_steps
        return self._paces[steps]
