"""Many light clients in one call of the compiled kernels.

A client that trains for thirty microseconds must not spend two hundred on being called. Most algorithms begin with the
same request, `work.train(message.w)`: when the first client of a batch makes it, the kernels train all clients of the batch,
and each finds its own result when it asks for it. A different request is computed as usual, with the same bits.
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
    """The steps of a training on a given number of rows, and the sums that depend only on them."""

    sizes: NDArray[np.int32]  # rows of each step
    rows: int  # in an epoch
    lr_sum: float
    displacement: float
    effective_steps: float


class BatchedTraining:
    """The trainings of all clients of a batch, which start from the same weights."""

    def __init__(self, context: ExperimentContext, round: int, clients: Sequence[int]) -> None:
        self.context, self.round, self.clients = context, round, clients
        self._first: tuple[Vector, Pull] | None = None  # the request that all results belong to
        self._found: dict[int, tuple[Outcome, int]] = {}
        self._plans: dict[int, StepPlan] = {}

    @staticmethod
    def can_train(context: ExperimentContext) -> bool:
        """Return whether a training does not depend on earlier ones and can be computed ahead of the request for it."""
        local, task = context.experiment.local, context.task
        whole = context.last_batch != "drop"  # otherwise an epoch ends before its order does
        plain = not (local.momentum or local.decay or task.has_buffers or task.has_dropout) and local.shuffle and whole
        plain = (
            plain and context.parts is None and local.steps is None
        )  # which continue where the client's last round ended
        compiled = solver.can_be_compiled(task, local, None) and context.source is not None
        return (
            plain
            and compiled
            and context.rows_of_clients is not None
            and can_shuffle(context.experiment.seed_for("shuffle"))
        )

    def result(self, client: int, w: Vector, adjust: Adjust) -> tuple[Outcome, int] | None:
        """Return the outcome of a client's training and its rows; None if it differs from that of the batch."""
        pull = NOTHING if adjust is None else adjust
        if not isinstance(pull, Pull) or pull.outside:
            return None
        if self._first is None:
            self._first = w, pull
            self._train(w, pull)
        start, first = self._first
        same = pull is first or (pull.mu == first.mu and pull.centre is first.centre and pull.b is first.b)
        return self._found.pop(client, None) if same and w is start else None

    def _train(self, w: Vector, pull: Pull) -> None:
        context, local, task = self.context, self.context.experiment.local, self.context.task
        assert task.network is not None
        assert context.source is not None
        assert context.rows_of_clients is not None
        seed = context.experiment.seed_for("shuffle")
        order = shuffled(seed, self.round, context.rows_of_clients, self.clients, local.epochs)
        bounds, who = context.rows_of_clients[1], np.array(self.clients)
        plans = [self._plan(rows, pull.mu) for rows in (bounds[who + 1] - bounds[who]).tolist()]
        sizes = np.concatenate([plan.sizes for plan in plans])
        counts = [len(plan.sizes) for plan in plans]
        rates = np.full(len(sizes), local.lr)
        after = np.empty((len(self.clients), task.size), np.float32)
        solver.load(task, w, local, pull, None)
        weighted = sizes * task.network.train_each(context.source, order, sizes, rates, counts, after)
        start = 0
        for client, plan, steps, end in zip(self.clients, plans, counts, after, strict=True):
            length = steps // local.epochs
            stops = range(start, start + steps, length)
            means = [float(np.add.reduce(weighted[i : i + length])) / plan.rows for i in stops]
            outcome = Outcome(end, steps, plan.lr_sum, plan.displacement, plan.effective_steps, tuple(means))
            self._found[client] = outcome, local.epochs * plan.rows
            start += steps

    def _plan(self, rows: int, mu: float) -> StepPlan:
        """Return the plan that all clients with this number of rows share."""
        if rows not in self._plans:
            local = self.context.experiment.local
            sizes = solver.batch_sizes(rows, local.batch, self.context.last_batch)
            unit, lr_sum, rates = solver.UnitSolver(0.0, mu), 0.0, np.full(len(sizes), local.lr)
            for _ in range(local.epochs):
                unit.steps(rates)
                lr_sum += float(rates.sum())
            steps = np.tile(np.array(sizes, np.int32), local.epochs)
            self._plans[rows] = StepPlan(steps, sum(sizes), lr_sum, -unit.x, unit.effective_steps)
        return self._plans[rows]
