"""Many light clients in one call: what the first of a bundle asks of the solver, the others will ask too.

A client that trains for thirty microseconds must not spend two hundred on being called. Most algorithms begin with the
same words, `work.train(got.w)`: when the first client of a bundle says them, the kernels train all of the bundle, and each
finds its own result when it asks. Who asks for something else is served as always, with the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedarena.algorithms.base import Adjust, Outcome, Pull, Vector
from fedarena.engine import solver
from fedarena.engine.context import ExperimentContext
from fedarena.models.compiled import can_shuffle, shuffled

NOTHING = Pull()


class StepPlan(NamedTuple):
    """The steps of a training, and what they come to whatever the rows are."""

    sizes: NDArray[np.int32]  # rows of each step
    rows: int  # in an epoch
    lr_sum: float
    displacement: float
    effective_steps: float


class BatchedTraining:
    """The trainings of a bundle's clients, all from the same weights."""

    def __init__(self, site: ExperimentContext, round: int, clients: Sequence[int]) -> None:
        self.site, self.round, self.clients = site, round, clients
        self._asked: tuple[Vector, Pull] | None = None
        self._found: dict[int, tuple[Outcome, int]] = {}
        self._plans: dict[int, StepPlan] = {}

    @staticmethod
    def can_train(site: ExperimentContext) -> bool:
        """Is a client's training the same whoever trained before it, and known before it is asked for?"""
        local, task = site.experiment.local, site.task
        whole = site.last_batch != "drop"  # else an epoch ends before its order does
        plain = not (local.momentum or local.decay or task.has_buffers or task.has_dropout) and local.shuffle and whole
        compiled = solver.can_be_compiled(task, local, None) and site.source is not None
        return (
            plain and compiled and site.rows_of_clients is not None and can_shuffle(site.experiment.seed_for("shuffle"))
        )

    def trained(self, client: int, w: Vector, adjust: Adjust) -> tuple[Outcome, int] | None:
        """What this training comes to, and its rows; None if it is another one than the bundle's."""
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
        seed = site.experiment.seed_for("shuffle")
        order = shuffled(seed, self.round, site.rows_of_clients, self.clients, local.epochs)
        bounds, who = site.rows_of_clients[1], np.array(self.clients)
        plans = [self._plan(rows, pull.mu) for rows in (bounds[who + 1] - bounds[who]).tolist()]
        sizes = np.concatenate([plan.sizes for plan in plans])
        counts = [len(plan.sizes) for plan in plans]
        rates = np.full(len(sizes), local.lr)
        after = np.empty((len(self.clients), task.size), np.float32)
        solver.load(task, w, local, pull, None)
        weighted = sizes * task.network.train_each(site.source, order, sizes, rates, counts, after)
        start = 0
        for client, plan, steps, end in zip(self.clients, plans, counts, after, strict=True):
            length = steps // local.epochs
            stops = range(start, start + steps, length)
            means = [float(np.add.reduce(weighted[i : i + length])) / plan.rows for i in stops]
            outcome = Outcome(end, steps, plan.lr_sum, plan.displacement, plan.effective_steps, tuple(means))
            self._found[client] = outcome, local.epochs * plan.rows
            start += steps

    def _plan(self, rows: int, mu: float) -> StepPlan:
        """The same for all clients with so many rows."""
        if rows not in self._plans:
            local = self.site.experiment.local
            sizes = solver.batch_sizes(rows, local.batch, self.site.last_batch)
            unit, lr_sum, rates = solver.UnitSolver(0.0, mu), 0.0, np.full(len(sizes), local.lr)
            for _ in range(local.epochs):
                unit.steps(rates)
                lr_sum += float(rates.sum())
            steps = np.tile(np.array(sizes, np.int32), local.epochs)
            self._plans[rows] = StepPlan(steps, sum(sizes), lr_sum, -unit.x, unit.effective_steps)
        return self._plans[rows]
