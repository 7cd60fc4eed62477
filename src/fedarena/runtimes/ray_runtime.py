"""Clients on a Ray cluster. The data lie in the object store, once on each node, and what the server says once a round.

A worker that dies, or a whole node, takes nothing along: a job depends on nothing but itself, and what clients remember
is in the run's folder. Its jobs run again elsewhere and give the same bits.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from fedarena.config.errors import BadValue, ClientFailed
from fedarena.engine.client import Broadcast
from fedarena.engine.context import ExperimentContext
from fedarena.engine.devices import Fleet
from fedarena.engine.tasks import RuntimeTask, run_task
from fedarena.runtimes.processes import AHEAD, TRIES
from fedarena.runtimes.ray_nodes import ClusterNodes
from fedarena.runtimes.ray_workers import LostWorker, RayWorkers, StoredObject

TICK = 60.0  # seconds; nothing is done at a tick


def run_on_worker(site: ExperimentContext, fleet: Fleet, job: RuntimeTask, common: Broadcast) -> Any:
    """Run one job in a worker. The fleet comes along: it may be from a file that the worker's node does not have."""
    site.fleet = fleet
    return run_task(site, job, common)


class RayRuntime:
    """Workers on the nodes of a cluster that all hold the same Site."""

    def __init__(self, site: ExperimentContext, nodes: ClusterNodes, workers: int | None = None) -> None:
        check_device(site.experiment.device)
        self._hands = RayWorkers(nodes, functools.partial(run_on_worker, site, site.fleet), workers, queue=True)
        self._common: tuple[Broadcast, Any] | None = None
        self._round = 0

    @property
    def workers(self) -> int:
        """So many there are at this moment."""
        return len(self._hands)

    def map(self, jobs: Iterable[RuntimeTask], common: Broadcast) -> Iterator[tuple[int, Any]]:
        """Give each free worker the next job; yield results as they come."""
        self._round += 1
        turn, shared = self._round, self._share(common)
        todo: Iterator[tuple[int, RuntimeTask]] = enumerate(jobs)
        at_work: dict[int, RuntimeTask] = {}
        again: list[tuple[int, RuntimeTask]] = []
        tries: Counter[int] = Counter()
        given, more = -1, True

        def give() -> None:
            """A job for everyone who is free, but none far ahead of the slowest: answers wait in memory for their turn."""
            nonlocal given, more
            while (more or again) and (hand := self._hands.free()) is not None:
                too_far = bool(at_work) and given + 1 - min(at_work) >= AHEAD * self.workers
                if too_far and not again:
                    return
                task = again.pop() if again else next(todo, None)
                if task is None:
                    more = False
                    return
                position, job = task
                given, at_work[position] = max(given, position), job
                self._hands.begin(hand, (turn, position), StoredObject.of(job), shared)

        give()
        while more or again or at_work:
            for (whose, position), result in self._hands.ended(TICK):
                if whose != turn:  # of a round that nobody waits for any more
                    continue
                job = at_work.pop(position)
                if isinstance(result, LostWorker):
                    again.append((position, job))
                    tries[position] += result.blamed
                    _check(tries[position], result, position, job)
                    continue
                give()
                yield position, result
            give()

    def _share(self, common: Broadcast) -> Any:
        """Where the message lies in the store; one that is sent again, as asynchronous algorithms do, lies there already."""
        if self._common is None or self._common[0] is not common:
            self._common = None
            self._common = common, self._hands.put(common)
        return self._common[1]

    def close(self) -> None:
        """Let the workers go."""
        self._hands.close()
        self._common = None


def check_device(device: str) -> None:
    """Actors have CPUs."""
    if not device.startswith("cpu"):
        raise BadValue(
            f"device = '{device}' on a cluster", remedy='use device = "cpu", or --runtime processes', where="device"
        )


def _check(tries: int, gone: LostWorker, position: int, job: RuntimeTask) -> None:
    if tries >= TRIES:
        raise ClientFailed(
            f"a worker died {TRIES} times at {type(job).__name__} {getattr(job, 'client', position)} "
            f"(the last time: {gone.why})",
            remedy="it may need more memory than there is: use fewer --workers, a smaller batch or a smaller model",
        )
