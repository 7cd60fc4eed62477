"""Tasks that any worker can run: one client, or a batch of light clients, in one exchange of a round.

A task is data. Its result depends only on the task, the broadcast and the experiment's context, so that any process may run
it, in any order, and run it again after a crash. How many clients make a batch depends on the experiment alone, never on
the number of workers: the order of all additions, and so every bit, stays the same.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

import fedarena
from fedarena.algorithms.base import Reply, Vector
from fedarena.config.seeds import quick_seed
from fedarena.engine.batched_training import BatchedTraining
from fedarena.engine.client import Broadcast, ClientCannotTrain, ClientState, ClientWork
from fedarena.engine.context import ExperimentContext
from fedarena.engine.partial_work import PartialWork
from fedarena.engine.training_loss import FORWARD_SHARE, training_losses
from fedarena.models.pytree import WeightedMean, is_finite, nbytes
from fedarena.models.task import Buffers, seed_torch, torch_untouched
from fedarena.privacy.secure_aggregation import MaskedExchange
from fedarena.privacy.uplink import CannotSend, MaskedVector, Residual, add_masked

PACKAGE = str(Path(fedarena.__file__).parent)
LIGHT = 5e7  # multiplications that are worth a message of their own: a few milliseconds
NUMBER = 8  # bytes
PIECES = 32  # a round has at least so many batches, for many workers to share


# The interface between tasks and runtimes


class RuntimeTask(Protocol):
    """A piece of work that any process can run."""

    def run(self, context: ExperimentContext, common: Broadcast) -> Any:
        """Return the result, which depends on nothing but the task and the arguments."""
        ...


class Runtime(Protocol):
    """A place where clients run: it maps tasks over workers and knows nothing of learning."""

    def map(self, jobs: Iterable[RuntimeTask], common: Broadcast) -> Iterator[tuple[int, Any]]:
        """Run every task and yield (position, result or FailedTask) in any order."""
        ...


def in_order(results: Iterable[tuple[int, Any]]) -> Iterator[Any]:
    """Yield results in the order of their tasks, each as soon as all before it have arrived."""
    waiting: dict[int, Any] = {}
    wanted = 0
    for position, result in results:
        waiting[position] = result
        while wanted in waiting:
            yield waiting.pop(wanted)
            wanted += 1


@dataclass(frozen=True)
class FailedTask:
    """A task that raised: the error as text, and the line of the user's own code that it came from."""

    error: str
    place: str = ""

    @classmethod
    def by(cls, error: Exception) -> FailedTask:
        """Describe the error, with its last line that is neither in fedarena nor in an installed package."""
        frames = traceback.extract_tb(error.__traceback__)
        own = [f for f in frames if "site-packages" not in f.filename and not f.filename.startswith(PACKAGE)]
        return cls(f"{type(error).__name__}: {error}", f"{own[-1].filename}, line {own[-1].lineno}" if own else "")


def run_task(context: ExperimentContext, task: RuntimeTask, common: Broadcast) -> Any:
    """Return the task's result, FailedTask, or the CannotSend that it raised.

    Subnormal numbers are flushed: they slow products a hundredfold."""
    torch.set_flush_denormal(True)
    try:
        return task.run(context, common)
    except CannotSend as error:
        return error
    except Exception as error:
        return FailedTask.by(error)
    finally:
        torch.set_flush_denormal(False)


# One client


class ClientReport(NamedTuple):
    """Facts about one client's work, and the client state for its next round."""

    client: int
    finite: bool  # everything that it sent is finite
    steps: int
    samples: int
    loss: float
    seconds: float  # on this machine
    device_seconds: float  # on the client's device, in simulated time
    sent: int  # bytes of its reply
    sent_buffers: int  # bytes of its BatchNorm statistics
    state: ClientState | None  # None: the client has no state, and never had any
    squared_loss: float | None = None  # mean over its samples, of the model it received, where it is measured


def bytes_up(report: ClientReport, context: ExperimentContext) -> int:
    """Return the bytes of a response: the reply, n_k or the model's age, and what is sent along with them.

    That is BatchNorm statistics, and the squared loss where a rule selects clients by it."""
    travel = context.buffer_policy == "average"  # recomputed statistics are sent later, once they are known
    numbers = 1 if report.squared_loss is None else 2
    return report.sent + NUMBER * numbers + (report.sent_buffers if travel else 0)


@dataclass(frozen=True)
class ClientAnswer:
    """A client's response: its report, its reply and its BatchNorm statistics."""

    report: ClientReport
    reply: Reply
    buffers: Buffers


@dataclass(frozen=True)
class SkippedClient:
    """A client that cannot train on its rows, and the reason."""

    client: int
    reason: str


@dataclass(frozen=True)
class LateAnswer:
    """A response that does not count: its device has left, the deadline has passed, or enough others came first."""


@dataclass(frozen=True)
class AbsentClient(SkippedClient):
    """A client of a real federation without a usable response, and the reason; the round continues without it."""


Report = ClientReport | SkippedClient | FailedTask | LateAnswer
Answer = ClientAnswer | SkippedClient | FailedTask | LateAnswer | CannotSend


def initial_client_state(context: ExperimentContext) -> ClientState:
    """Return the state of a client before its first round."""
    kept = context.algorithm.remember(context.initial)
    return NEW if kept is None else ClientState(kept)


NEW = ClientState()


@dataclass(frozen=True)
class ClientTask:
    """The part of one client in one exchange of a round."""

    round: int
    client: int
    do: str
    state: ClientState | None
    number: int | None = None  # of the client's training, where that is not the round: it keys the random streams
    exchange: MaskedExchange | None = None  # where privacy steps change the response
    exchange_number: int = 0  # in its round

    def run(self, context: ExperimentContext, common: Broadcast) -> ClientAnswer | SkippedClient:
        """Run the client alone, without a trace in torch's random numbers."""
        number = self.round if self.number is None else self.number
        pace = context.fleet.training_factors([self.client], number)[0]
        with torch_untouched():
            return self.train(context, common, pace)

    def train(
        self, context: ExperimentContext, common: Broadcast, pace: float, batched: BatchedTraining | None = None
    ) -> ClientAnswer | SkippedClient:
        """Load the client's buffers, run the algorithm's client half, pass its reply through the privacy steps."""
        started = time.perf_counter()
        state = self.state or initial_client_state(context)
        common = state.start or common
        parts, buffers = context.parts, state.complete_buffers(context.parts, common.buffers)
        if context.task.has_buffers:
            context.task.load_buffers(buffers)
        context.task.class_weights = context.task.sample_weights = None
        number = self.round if self.number is None else self.number
        start = state.complete_weights(parts, getattr(common.message, "w", None))
        work = ClientWork(
            context, self.client, number, state, self.round, batched, self.exchange_number, start, common.buffers
        )
        measured = self._squared_loss(context, common, state)
        partial = None if parts is None else PartialWork(work, parts, state.own_weights(parts))
        seed_torch(quick_seed(context.experiment.seed_for("dropout"), "dropout", number, self.client))
        try:
            reply = context.algorithm.act(self.do, common.message, state.kept, partial or work)
        except ClientCannotTrain as error:
            return SkippedClient(self.client, str(error))
        policy = context.buffer_policy
        trained = context.task.has_buffers and (policy != "server" or parts is not None)
        shared, own_model_buffers = work.buffers if context.task.has_buffers else (common.buffers, None)
        after = shared if trained else common.buffers
        # A constant buffer may well be infinite (a mask): only what training changed must be finite.
        sound = not len(after.values) or bool((np.isfinite(after.values) | (after.values == buffers.values)).all())
        own = None if partial is None else partial.own
        kept_is_finite = not context.algorithm.learns_own_models or is_finite((reply.keep, own))
        finite = sound and is_finite(reply.send) and kept_is_finite
        own_buffers = after if policy == "local" else None
        if parts is not None:
            own_buffers = parts.own_buffers(after) if context.task.has_buffers else None
            after = common.buffers if policy == "server" else parts.shared_buffers(after)
        size, residual = 0, state.residual
        if self.exchange is not None and context.steps is not None and finite:
            reply, size, residual = context.steps.send(reply, self.do, self.exchange, self.client, residual)
            finite = isinstance(reply.send, MaskedVector) or is_finite(reply.send)  # with the residual added
        steps, trained_on = work.work_done
        samples = trained_on + (0.0 if measured is None else FORWARD_SHARE * float(context.sizes[self.client]))
        report = ClientReport(
            self.client,
            finite=finite,
            steps=steps,
            samples=trained_on,
            loss=work.last_loss,
            seconds=time.perf_counter() - started,
            device_seconds=context.fleet.usual_seconds(self.client, samples) * pace,
            sent=size or nbytes(reply.send),
            sent_buffers=nbytes(after) if context.task.has_buffers else 0,
            state=self._next_state(reply, work, own_buffers, residual, own, own_model_buffers),
            squared_loss=measured,
        )
        return ClientAnswer(report, reply, after)

    def _squared_loss(self, context: ExperimentContext, common: Broadcast, state: ClientState) -> float | None:
        """Return the mean squared loss of the received model, at the first exchange of a round, where a rule needs it."""
        rule = context.selection_rule
        if rule is None or not rule.reports_squared_loss or self.exchange_number:
            return None
        losses = training_losses(context, self.client, self.round, common, state)
        return None if losses is None else float(np.square(losses).mean())

    def _next_state(
        self,
        reply: Reply,
        work: ClientWork,
        buffers: Buffers | None,
        residual: Residual | None,
        own: Vector | None,
        own_model_buffers: Buffers | None,
    ) -> ClientState | None:
        momentum, context = work.final_momentum, work.context
        steps = work.state.steps + work.steps if context.counts_client_steps else 0
        state = ClientState(reply.keep, momentum, buffers, steps, None, residual, own, own_model_buffers)
        return None if self.state is None and not state.holds_anything else state


# A batch of clients


class BufferMean:
    """BatchNorm statistics averaged by rows; a counter of batches takes the largest value."""

    def __init__(self) -> None:
        self.values = WeightedMean()
        self.counters: NDArray[np.int64] = np.empty(0, np.int64)

    def add(self, buffers: Buffers, weight: float) -> None:
        """Add the statistics of one client."""
        self.values.add(buffers.values, weight)
        self._count(buffers.counters)

    def merge(self, later: BufferMean) -> None:
        """Add the statistics of later clients; there are none where no response was usable."""
        self.values.merge(later.values)
        if len(later.counters):
            self._count(later.counters)

    def _count(self, counters: NDArray[np.int64]) -> None:
        self.counters = np.maximum(self.counters, counters) if len(self.counters) else counters

    def result(self) -> Buffers | None:
        """Return the mean, or None if no client sent statistics."""
        values = self.values.result()
        return None if values is None else Buffers(values, self.counters)


@dataclass
class BatchResult:
    """The result of a batch of clients: a report of each, and the sum of all usable responses."""

    reports: list[Report] = field(default_factory=list)
    mean: WeightedMean = field(default_factory=WeightedMean)
    buffers: BufferMean = field(default_factory=BufferMean)
    masked: MaskedVector | None = None  # the sum, in place of the mean, where responses are masked
    refused: CannotSend | None = None

    def add(self, answer: Answer, context: ExperimentContext) -> None:
        """Add one client's report, and its response to the sums if that is usable."""
        if isinstance(answer, CannotSend):
            self.refused = answer
        if not isinstance(answer, ClientAnswer):
            self.reports.append(FailedTask.by(answer) if isinstance(answer, CannotSend) else answer)
            return
        self.reports.append(answer.report)
        if answer.report.finite or context.experiment.on_nan == "keep":
            if isinstance(answer.reply.send, MaskedVector):
                self.masked = add_masked(self.masked, answer.reply.send)
            else:
                self.mean.add(answer.reply.send, answer.reply.weight)
            if context.task.has_buffers:
                self.buffers.add(answer.buffers, float(context.sizes[answer.report.client]))

    def merge(self, later: BatchResult) -> None:
        """Add the sums, not the reports, of a batch of later clients."""
        self.mean.merge(later.mean)
        self.masked = add_masked(self.masked, later.masked)
        self.buffers.merge(later.buffers)


@dataclass(frozen=True)
class BatchDeadline:
    """How long the server waits for each client of a batch, from the moment it sends `down` bytes to each."""

    down: int
    seconds: tuple[float, ...]


@dataclass(frozen=True)
class ClientBatch:
    """Several clients in one exchange of a round, run one after the other by one worker."""

    round: int
    do: str
    clients: tuple[int, ...]
    states: tuple[ClientState | None, ...]
    exchange: MaskedExchange | None = None
    deadline: BatchDeadline | None = None
    separate: bool = False  # a result of each client and no sum, where it is not known yet which of them count
    exchange_number: int = 0  # in its round

    def run(self, context: ExperimentContext, common: Broadcast) -> BatchResult | list[BatchResult]:
        """Run one client after the other; one that fails does not stop the others."""
        results = [BatchResult() for _ in self.clients] if self.separate else [BatchResult()] * len(self.clients)
        batched = (
            BatchedTraining(context, self.round, self.clients)
            if len(self.clients) > 1 and BatchedTraining.can_train(context)
            else None
        )
        paces = context.fleet.training_factors(self.clients, self.round).tolist()
        with torch_untouched():
            for client, state, pace, result in zip(self.clients, self.states, paces, results, strict=True):
                task = ClientTask(
                    self.round, client, self.do, state, exchange=self.exchange, exchange_number=self.exchange_number
                )
                answer: Answer
                try:
                    answer = task.train(context, common, pace, batched)
                except CannotSend as error:
                    answer = error
                except Exception as error:
                    answer = FailedTask.by(error)
                is_late = isinstance(answer, ClientAnswer) and self._is_late(answer.report, context)
                result.add(LateAnswer() if is_late else answer, context)
        return results if self.separate else results[0]

    def _is_late(self, report: ClientReport, context: ExperimentContext) -> bool:
        """Return whether the response comes too late in simulated time: then it must not get into the sum."""
        if self.deadline is None:
            return False
        up = bytes_up(report, context)
        seconds = context.fleet.exchange_seconds(report.client, self.deadline.down, report.device_seconds, up)
        return seconds > self.deadline.seconds[self.clients.index(report.client)]


def client_batch_size(context: ExperimentContext, participants: int) -> int:
    """Return the number of clients in a batch: one, where each of them has much to compute."""
    rows, local = context.partition.sizes.mean(), context.experiment.local
    samples = local.epochs * rows if local.steps is None else local.steps * min(local.batch, rows)
    work = samples * context.task.size
    return max(1, min(int(LIGHT / max(work, 1.0)), participants // PIECES))
