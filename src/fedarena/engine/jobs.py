"""Pieces of work for any process. A job is data: what it does depends on nothing but the job, the common message and the
site, which is why any process may run any job, in any order, again."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch

from fedarena.algorithms.base import Reply, Vector
from fedarena.data.dataset import Rows
from fedarena.engine.site import Site
from fedarena.engine.tree import is_finite
from fedarena.engine.work import ClientCannotTrain, ClientWork, Common, Memory
from fedarena.models.task import Buffers, Scores, torch_seeded
from fedarena.seeds import torch_seed


@dataclass(frozen=True)
class Answer:
    """What comes back from a client: its reply, what it keeps, and facts about its work."""

    client: int
    reply: Reply
    memory: Memory
    buffers: Buffers
    finite: bool
    steps: int
    samples: int
    loss: float
    seconds: float


@dataclass(frozen=True)
class Skipped:
    """A client that cannot take part, and why."""

    client: int
    reason: str


class Job(Protocol):
    """A piece of work for any process."""

    def run(self, site: Site, common: Common) -> Any:
        """Do it; depends on nothing but the arguments."""
        ...


@dataclass(frozen=True)
class ClientJob:
    """One client's part in one exchange of a round."""

    round: int
    client: int
    do: str
    memory: Memory | None
    number: int | None = None  # of the client's training, where that is not the round: its random numbers go by it

    def run(self, site: Site, common: Common) -> Answer | Skipped:
        """Load the client's buffers, let the algorithm's client half work, bring back the answer."""
        started = time.perf_counter()
        memory = self.memory or Memory(kept=site.algorithm.remember(site.initial))
        common = memory.start or common
        buffers = memory.buffers or common.buffers
        site.task.load_buffers(buffers)
        site.task.class_weights = None
        number = self.round if self.number is None else self.number
        work = ClientWork(site, self.client, number, memory, self.round)
        with torch_seeded(torch_seed(site.experiment.seed, "dropout", number, self.client)):
            try:
                reply = site.algorithm.act(self.do, common.message, memory.kept, work)
            except ClientCannotTrain as error:
                return Skipped(self.client, str(error))
        policy = site.buffer_policy
        after = site.task.buffers() if policy != "server" else common.buffers
        # A constant buffer may well be infinite (a mask); what matters is what training made of it.
        sound = np.isfinite(after.values) | (after.values == buffers.values)
        finite = is_finite(reply.send) and bool(sound.all()) and (not site.algorithm.personal or is_finite(reply.keep))
        memory = replace(
            memory,
            kept=reply.keep,
            momentum=work.momentum_to_keep,
            steps=memory.steps + work.steps,
            start=None,
            buffers=after if policy == "local" else None,
        )
        return Answer(
            self.client, replace(reply, keep=None), memory, after, finite,
            work.steps, work.samples, work.last_loss, time.perf_counter() - started,
        )  # fmt: skip


@dataclass(frozen=True)
class EvaluateJob:
    """A model on some rows: that of the common message, or a client's own."""

    rows: Rows
    noise_of: int | None = None  # the client whose feature noise the rows have
    w: Vector | None = None
    buffers: Buffers | None = None

    def run(self, site: Site, common: Common) -> Scores:
        """Load and predict."""
        site.task.load(common.message.w if self.w is None else self.w)
        site.task.load_buffers(self.buffers or common.buffers)
        noise = None
        if self.noise_of is not None:  # on training rows the noise they were trained with, on test rows their own
            trained = site.experiment.evaluate.on == "train"
            noise = site.noise(self.noise_of, len(self.rows), *(() if trained and site.owners.frozen_noise else (0, 1)))
        first = int(self.rows[0]) if len(self.rows) else 0
        with torch_seeded(torch_seed(site.experiment.seed, "evaluate", first)):  # some models draw even here
            return site.evaluate(self.rows, noise)


@dataclass(frozen=True)
class StatisticsJob:
    """BatchNorm's statistics of the common model on one client's rows, as a plain mean over its batches."""

    round: int
    client: int

    def run(self, site: Site, common: Common) -> Buffers:
        """One pass in training mode, nothing learned."""
        task = site.task
        task.load(common.message.w)
        task.load_buffers(common.buffers)
        work = ClientWork(site, self.client, self.round, Memory())
        norms = [m for m in task.module.modules() if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)]
        momenta = [m.momentum for m in norms]
        task.module.train()
        try:
            for norm in norms:
                norm.reset_running_stats()
                norm.momentum = None  # torch's word for a cumulative mean
            with torch.no_grad(), torch_seeded(torch_seed(site.experiment.seed, "dropout", self.round, self.client)):
                for x, _ in work.epoch():
                    task.module(x)
        finally:
            for norm, momentum in zip(norms, momenta, strict=True):
                norm.momentum = momentum
        return task.buffers()
