"""Clients of one exchange in bundles: a worker takes several, one after the other, and brings back one sum.

A thousand clients that each take 50 microseconds must not cost a message each. How many make a bundle depends on the
experiment alone, never on the workers: the order of all additions, and so every bit, stays the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedarena.engine.batched_training import BatchedTraining
from fedarena.engine.client import Broadcast, ClientState
from fedarena.engine.context import ExperimentContext
from fedarena.engine.tasks import (
    ClientAnswer,
    ClientReport,
    ClientTask,
    FailedTask,
    LateAnswer,
    SkippedClient,
    bytes_up,
)
from fedarena.models.pytree import WeightedMean
from fedarena.models.task import Buffers, torch_untouched
from fedarena.privacy.secure_aggregation import MaskedExchange
from fedarena.privacy.uplink import CannotSend, MaskedSum, MaskedVector

LIGHT = 5e7  # multiplications that are worth a message of their own: a few milliseconds
PIECES = 32  # a round is in at least so many, for many workers to share


class BufferMean:
    """BatchNorm's statistics averaged by rows; a counter of batches takes the largest."""

    def __init__(self) -> None:
        self.values = WeightedMean()
        self.counters: NDArray[np.int64] = np.empty(0, np.int64)

    def add(self, buffers: Buffers, weight: float) -> None:
        """Take one client's in."""
        self.values.add(buffers.values, weight)
        self._count(buffers.counters)

    def merge(self, later: BufferMean) -> None:
        """Take in those of clients that come after; there are none where no answer was of use."""
        self.values.merge(later.values)
        if len(later.counters):
            self._count(later.counters)

    def _count(self, counters: NDArray[np.int64]) -> None:
        self.counters = np.maximum(self.counters, counters) if len(self.counters) else counters

    def result(self) -> Buffers | None:
        """The mean, or None if nobody sent any."""
        values = self.values.result()
        return None if values is None else Buffers(values, self.counters)


@dataclass
class BatchResult:
    """What comes back from a bundle: a report of each client, and the sum of all that is of use."""

    reports: list[ClientReport | SkippedClient | FailedTask | LateAnswer] = field(default_factory=list)
    mean: WeightedMean = field(default_factory=WeightedMean)
    buffers: BufferMean = field(default_factory=BufferMean)
    sealed: MaskedSum = field(default_factory=MaskedSum)  # in place of the mean, where answers are masked
    refused: CannotSend | None = None

    def take(self, answer: ClientAnswer, site: ExperimentContext) -> None:
        """One client's answer: its report, and its share of the sums if that is of use."""
        self.reports.append(answer.report)
        if answer.report.finite or site.experiment.on_nan == "keep":
            if isinstance(answer.reply.send, MaskedVector):
                self.sealed.add(answer.reply.send)
            else:
                self.mean.add(answer.reply.send, answer.reply.weight)
            if site.task.has_buffers:
                self.buffers.add(answer.buffers, float(site.sizes[answer.report.client]))


@dataclass(frozen=True)
class BatchDeadline:
    """How long the server waits for each client of a bundle, from the moment it sends so many bytes down."""

    down: int
    seconds: tuple[float, ...]


@dataclass(frozen=True)
class ClientBatch:
    """Several clients' parts in one exchange of a round."""

    round: int
    do: str
    clients: tuple[int, ...]
    memories: tuple[ClientState | None, ...]
    turn: MaskedExchange | None = None
    wait: BatchDeadline | None = None
    apart: bool = False  # no sum: an answer of each, where it is not known yet which of them count

    def run(self, site: ExperimentContext, common: Broadcast) -> BatchResult | list[BatchResult]:
        """One client after the other; one that fails does not keep the others from working."""
        folded = [BatchResult() for _ in self.clients] if self.apart else [BatchResult()] * len(self.clients)
        ahead = (
            BatchedTraining(site, self.round, self.clients)
            if len(self.clients) > 1 and BatchedTraining.can_train(site)
            else None
        )
        paces = site.fleet.training_factors(self.clients, self.round).tolist()
        with torch_untouched():
            for client, memory, pace, into in zip(self.clients, self.memories, paces, folded, strict=True):
                job = ClientTask(self.round, client, self.do, memory, turn=self.turn)
                self._fold(job, site, common, pace, ahead, into)
        return folded if self.apart else folded[0]

    def _fold(
        self,
        job: ClientTask,
        site: ExperimentContext,
        common: Broadcast,
        pace: float,
        ahead: BatchedTraining | None,
        folded: BatchResult,
    ) -> None:
        try:
            answer = job.serve(site, common, pace, ahead)
        except CannotSend as error:
            folded.refused = error
            folded.reports.append(FailedTask.by(error))
            return
        except Exception as error:
            folded.reports.append(FailedTask.by(error))
            return
        if isinstance(answer, SkippedClient):
            folded.reports.append(answer)
            return
        if self._is_late(answer.report, site):
            folded.reports.append(LateAnswer())
            return
        folded.take(answer, site)

    def _is_late(self, report: ClientReport, site: ExperimentContext) -> bool:
        """By the virtual clock; what is late counts nowhere, so it must not get into the sum."""
        if self.wait is None:
            return False
        takes = site.fleet.part(report.client, self.wait.down, report.device_seconds, bytes_up(report, site))
        return takes > self.wait.seconds[self.clients.index(report.client)]


def client_batch_size(site: ExperimentContext, participants: int) -> int:
    """Clients in a bundle: one, where each has much to do."""
    rows = site.partition.sizes.mean()
    work = site.experiment.local.epochs * rows * site.task.size
    return max(1, min(int(LIGHT / max(work, 1.0)), participants // PIECES))
