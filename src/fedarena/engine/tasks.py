"""Pieces of work for any process. A job is data: what it does depends on nothing but the job, the common message and the
site, which is why any process may run any job, in any order, again."""

from __future__ import annotations

import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

import fedarena
from fedarena.algorithms.base import Reply, Vector
from fedarena.config.seeds import quick_seed, torch_seed
from fedarena.data.dataset import Rows
from fedarena.engine.batched_training import BatchedTraining
from fedarena.engine.client import Broadcast, ClientCannotTrain, ClientState, ClientWork
from fedarena.engine.context import ExperimentContext
from fedarena.models.pytree import is_finite, nbytes
from fedarena.models.task import Buffers, Keep, Scores, seed_torch, torch_seeded, torch_untouched
from fedarena.privacy.secure_aggregation import MaskedExchange
from fedarena.privacy.uplink import MaskedVector, Residual

OURS = str(Path(fedarena.__file__).parent)


class ClientReport(NamedTuple):
    """Facts about one client's work, and what it keeps for its next round."""

    client: int
    finite: bool  # is all that it sent?
    steps: int
    samples: int
    loss: float
    seconds: float  # here
    device_seconds: float  # on its own device, by the virtual clock
    sent: int  # bytes of its reply
    sent_buffers: int  # and of BatchNorm's statistics
    memory: ClientState | None  # None: it has nothing to remember, and never had


def bytes_up(report: ClientReport, site: ExperimentContext) -> int:
    """Bytes of an answer: the reply, n_k or the model's age, and BatchNorm's statistics where they travel with it."""
    travel = site.buffer_policy == "average"  # recomputed ones are sent later, once they are known
    return report.sent + 8 + (report.sent_buffers if travel else 0)


@dataclass(frozen=True)
class ClientAnswer:
    """What comes back from a client."""

    report: ClientReport
    reply: Reply
    buffers: Buffers


@dataclass(frozen=True)
class SkippedClient:
    """A client that cannot take part, and why."""

    client: int
    reason: str


@dataclass(frozen=True)
class LateAnswer:
    """An answer that nobody waits for any more: its device has left, the deadline has passed, or there are enough."""


@dataclass(frozen=True)
class AbsentClient(SkippedClient):
    """A client of a real federation that gave no usable answer, and why: the round goes on without it."""


@dataclass(frozen=True)
class FailedTask:
    """A job that raised: the error in words, and the line of the user's own code it came from."""

    error: str
    place: str = ""

    @classmethod
    def by(cls, error: Exception) -> FailedTask:
        """The error in words, with the last line of it that is not inside an installed package."""
        frames = traceback.extract_tb(error.__traceback__)
        own = [f for f in frames if "site-packages" not in f.filename and not f.filename.startswith(OURS)]
        return cls(f"{type(error).__name__}: {error}", f"{own[-1].filename}, line {own[-1].lineno}" if own else "")


class RuntimeTask(Protocol):
    """A piece of work for any process."""

    def run(self, site: ExperimentContext, common: Broadcast) -> Any:
        """Do it; depends on nothing but the arguments."""
        ...


@dataclass(frozen=True)
class ClientTask:
    """One client's part in one exchange of a round."""

    round: int
    client: int
    do: str
    memory: ClientState | None
    number: int | None = None  # of the client's training, where that is not the round: its random numbers go by it
    turn: MaskedExchange | None = None  # in which it is asked, where answers are changed on their way up

    def run(self, site: ExperimentContext, common: Broadcast) -> ClientAnswer | SkippedClient:
        """Let the client work as if it were alone in the world."""
        number = self.round if self.number is None else self.number
        pace = site.fleet.training_factors([self.client], number)[0]
        with torch_untouched():
            return self.serve(site, common, pace)

    def serve(
        self, site: ExperimentContext, common: Broadcast, pace: float, ahead: BatchedTraining | None = None
    ) -> ClientAnswer | SkippedClient:
        """Load the client's buffers, let the algorithm's client half work, bring back the answer."""
        started = time.perf_counter()
        memory = self.memory or initial_client_state(site)
        common = memory.start or common
        buffers = memory.buffers or common.buffers
        if site.task.has_buffers:
            site.task.load_buffers(buffers)
        site.task.class_weights = None
        number = self.round if self.number is None else self.number
        work = ClientWork(site, self.client, number, memory, self.round, ahead)
        seed_torch(quick_seed(site.experiment.seed_for("dropout"), "dropout", number, self.client))
        try:
            reply = site.algorithm.act(self.do, common.message, memory.kept, work)
        except ClientCannotTrain as error:
            return SkippedClient(self.client, str(error))
        policy = site.buffer_policy
        after = site.task.buffers() if policy != "server" and site.task.has_buffers else common.buffers
        # A constant buffer may well be infinite (a mask); what matters is what training made of it.
        sound = not len(after.values) or bool((np.isfinite(after.values) | (after.values == buffers.values)).all())
        finite = sound and is_finite(reply.send) and (not site.algorithm.personal or is_finite(reply.keep))
        size, residual = 0, memory.residual
        if self.turn is not None and site.steps is not None and finite:
            reply, size, residual = site.steps.send(reply, self.do, self.turn, self.client, residual)
            finite = isinstance(reply.send, MaskedVector) or is_finite(reply.send)  # what was left before came on top
        report = ClientReport(
            self.client,
            finite=finite,
            steps=work.steps,
            samples=work.samples,
            loss=work.last_loss,
            seconds=time.perf_counter() - started,
            device_seconds=site.fleet.usual_seconds(self.client, work.samples) * pace,
            sent=size or nbytes(reply.send),
            sent_buffers=nbytes(after) if site.task.has_buffers else 0,
            memory=self._remembered(site, memory, reply, work, after, residual),
        )
        return ClientAnswer(report, reply, after)

    def _remembered(
        self,
        site: ExperimentContext,
        memory: ClientState,
        reply: Reply,
        work: ClientWork,
        buffers: Buffers,
        residual: Residual | None,
    ) -> ClientState | None:
        momentum = work.momentum_to_keep
        own = buffers if site.buffer_policy == "local" else None
        steps = memory.steps + work.steps if site.experiment.local.decay_counter == "per_client" else 0
        nothing = reply.keep is None and momentum is None and own is None and not steps and residual is None
        return (
            None if nothing and self.memory is None else ClientState(reply.keep, momentum, own, steps, None, residual)
        )


NEW = ClientState()


def initial_client_state(site: ExperimentContext) -> ClientState:
    """What a client remembers that never took part."""
    kept = site.algorithm.remember(site.initial)
    return NEW if kept is None else ClientState(kept)


@dataclass(frozen=True)
class EvaluationTask:
    """A model on some rows: that of the common message, or a client's own."""

    rows: Rows
    noise_of: int | None = None  # the client whose feature noise the rows have
    w: Vector | None = None
    buffers: Buffers | None = None
    keep: Keep = ""  # outputs to return for every sample
    validates: bool = False  # the rows are validation samples, whose noise is their own

    def run(self, site: ExperimentContext, common: Broadcast) -> Scores:
        """Load and predict."""
        site.task.load(common.message.w if self.w is None else self.w)
        site.task.load_buffers(self.buffers or common.buffers)
        noise = None
        if self.noise_of is not None:  # on training rows the noise they were trained with, on test rows their own
            trained = site.experiment.evaluate.on == "train"
            key = (0, 2) if self.validates else () if trained and site.owners.frozen_noise else (0, 1)
            noise = site.noise(self.noise_of, len(self.rows), *key)
        first = int(self.rows[0]) if len(self.rows) else 0
        seed = torch_seed(site.experiment.seed_for("evaluate"), "evaluate", first)
        with torch_seeded(seed):  # some models draw even here
            return site.evaluate(self.rows, noise, self.keep, site.cut)


@dataclass(frozen=True)
class BatchNormTask:
    """BatchNorm's statistics of the common model on one client's rows, as a plain mean over its batches."""

    round: int
    client: int

    def run(self, site: ExperimentContext, common: Broadcast) -> Buffers:
        """One pass in training mode, nothing learned."""
        task = site.task
        task.load(common.message.w)
        task.load_buffers(common.buffers)
        work = ClientWork(site, self.client, self.round, ClientState())
        norms = [m for m in task.module.modules() if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)]
        momenta = [m.momentum for m in norms]
        task.module.train()
        try:
            for norm in norms:
                norm.reset_running_stats()
                norm.momentum = None  # torch's word for a cumulative mean
            with (
                torch.no_grad(),
                torch_seeded(torch_seed(site.experiment.seed_for("dropout"), "dropout", self.round, self.client)),
            ):
                for x, _ in work.epoch():
                    task.module(x)
        finally:
            for norm, momentum in zip(norms, momenta, strict=True):
                norm.momentum = momentum
        return task.buffers()
