"""Runs the clients of a round on a worker pool: worker processes, the default on one machine, or a Ray cluster.

The experiment reaches each worker once, the message of the server once a round. A lost worker costs nothing but time: its
clients run again elsewhere and give the same bits, since their states are in the folder of the run.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Any

import cloudpickle

from fedarena.config.errors import BadValue, ClientFailed
from fedarena.engine.client import Broadcast
from fedarena.engine.context import ExperimentContext
from fedarena.engine.devices import Fleet
from fedarena.engine.tasks import RuntimeTask, run_task
from fedarena.models.pytree import types_near
from fedarena.runtimes.pool import LostTask, WorkerPool
from fedarena.runtimes.process_pool import ProcessPool, StartMethod
from fedarena.runtimes.ray_nodes import ClusterNodes
from fedarena.runtimes.ray_pool import RayPool

LOOKAHEAD = 4  # tasks for each worker that may be started before the oldest unfinished one has a result
TICK = 60.0  # seconds; nothing is done at a tick


class ClientRuntime:
    """Runs tasks on a pool whose workers all hold the same experiment."""

    def __init__(self, pool: WorkerPool) -> None:
        self.pool = pool
        self._shared: tuple[Broadcast, Any] | None = None

    @property
    def workers(self) -> int:
        """The number of workers at this moment."""
        return self.pool.workers

    def map(self, tasks: Iterable[RuntimeTask], common: Broadcast) -> Iterator[tuple[int, Any]]:
        """Give each free worker the next task; yield the number of a task and its result as results arrive."""
        shared, todo = self._share(common), iter(tasks)
        unfinished: dict[int, tuple[int, RuntimeTask]] = {}  # by position in the pool, the oldest first
        submitted = 0

        def submit() -> None:
            """Fill all free workers, but not far ahead of the slowest: results wait in memory for their turn."""
            nonlocal submitted
            limit = LOOKAHEAD * self.workers
            while not unfinished or (
                self.pool.has_free_worker and submitted - next(iter(unfinished.values()))[0] < limit
            ):
                task = next(todo, None)
                if task is None:
                    return
                unfinished[self.pool.submit(task, shared=shared)] = submitted, task
                submitted += 1

        try:
            submit()
            while unfinished:
                for position, result in self.pool.wait(TICK):
                    if position not in unfinished:  # of an earlier call that was not finished
                        continue
                    number, task = unfinished.pop(position)
                    if isinstance(result, LostTask):
                        raise ClientFailed(
                            f"a worker {result} at {type(task).__name__} {getattr(task, 'client', number)}",
                            remedy="it may need more memory than there is: use fewer --workers, a smaller batch or a "
                            "smaller model",
                        )
                    submit()
                    yield number, result
                submit()
        finally:
            self.pool.cancel_waiting()

    def _share(self, common: Broadcast) -> Any:
        """Share the message with all workers, unless it is the last one again, as with asynchronous algorithms."""
        if self._shared is None or self._shared[0] is not common:
            self._shared = None  # first: a cluster then removes the previous message
            self._shared = common, self.pool.share(common)
        return self._shared[1]

    def close(self) -> None:
        """End the workers of the pool."""
        self.pool.close()
        self._shared = None


class ProcessRuntime(ClientRuntime):
    """Runs tasks in worker processes, by default one for each core."""

    def __init__(
        self, context: ExperimentContext, workers: int | None = None, start: StartMethod | None = None
    ) -> None:
        # cloudpickle marks classes that cannot be imported (those of a notebook) when it first sees them. Mark them before
        # forking, so that results are of the same classes here.
        cloudpickle.dumps([context.algorithm, *types_near(context.algorithm).values()])
        pool = ProcessPool(_function(context), workers, start)
        super().__init__(pool)
        pool.start_workers()  # before a round starts threads, after which forking is not safe


class RayRuntime(ClientRuntime):
    """Runs tasks on the nodes of a cluster, by default one worker for each CPU."""

    def __init__(self, context: ExperimentContext, nodes: ClusterNodes, workers: int | None = None) -> None:
        check_device(context.experiment.device)
        super().__init__(RayPool(_function(context), workers, nodes, queue=True))


def _function(context: ExperimentContext) -> functools.partial[Any]:
    return functools.partial(_run_on_worker, context, context.fleet)


def _run_on_worker(context: ExperimentContext, fleet: Fleet, task: RuntimeTask, common: Broadcast) -> Any:
    """Run one task. The fleet comes along: it may be from a file that the worker's node does not have."""
    context.fleet = fleet
    return run_task(context, task, common)


def check_device(device: str) -> None:
    """Refuse devices other than the CPU: workers on a cluster reserve CPUs only."""
    if not device.startswith("cpu"):
        raise BadValue(
            f"device = '{device}' on a cluster", remedy='use device = "cpu", or --runtime processes', where="device"
        )
