"""A worker pool on the nodes of a Ray cluster: one actor for each CPU. Nodes may join and leave.

The function and the shared value are in the object store, once on each node, and are read there without a copy. Objects
travel as their structure and their large buffers apart, by the rules of `shared_memory.py`: a class that no node can
import travels by value, and results are of the class they were. Nodes share no disk with this machine: the folder of a
task travels to the node and back.
"""

from __future__ import annotations

import gc
import os
import pickle
import sys
import time
import warnings
from collections import Counter
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fedarena.config.errors import ClientFailed
from fedarena.engine.tasks import FailedTask
from fedarena.models.compiled import SWITCH, library, processor
from fedarena.runtimes.cleanup import remove_leftovers, temporary_folder
from fedarena.runtimes.folder_transfer import Files, read_files, write_files
from fedarena.runtimes.pool import Function, LostWorker, PoolTask, WorkerPool
from fedarena.runtimes.process_pool import keep_freed_memory
from fedarena.runtimes.ray_nodes import CHECK_INTERVAL, ClusterNode, ClusterNodes
from fedarena.runtimes.shared_memory import as_structure

NO_WORKER = 120.0  # seconds without a single worker, after which the pool gives up
STARTS = 3  # workers that may fail to start on a node before it is not used any more
OCCUPIED = 5.0  # seconds after which a CPU on which a worker has not started is used by another program
QUICK = 0.05  # seconds: only behind a task that takes less may another one wait for the same worker


class StoredObject(NamedTuple):
    """An object on its way: its structure, and its large buffers as arrays, which Ray transfers without a copy."""

    structure: bytes
    buffers: list[NDArray[np.uint8]]

    @classmethod
    def of(cls, value: Any, by_reference: bool = False) -> StoredObject:
        """Prepare an object for its way."""
        buffers: list[pickle.PickleBuffer] = []
        structure = as_structure(value, buffers, by_reference)
        return cls(structure, [np.asarray(buffer.raw()) for buffer in buffers])

    def view(self) -> Any:
        """Return the object; its arrays are read-only views of the store."""
        return pickle.loads(self.structure, buffers=self.buffers)

    def copy(self) -> Any:
        """Return the object with arrays of its own, so that the store can remove it."""
        return pickle.loads(self.structure, buffers=[bytearray(buffer) for buffer in self.buffers])


class RayActor:
    """The worker on its node, which holds the function."""

    def __init__(self, function: StoredObject, kernels: str, argv: list[str]) -> None:
        os.environ[SWITCH], sys.argv = kernels, argv  # as in the process of the pool
        torch.set_num_threads(1)
        keep_freed_memory()
        try:
            self._function: Function = function.view()
        except Exception as error:  # something of the user's that this node cannot import
            failed = FailedTask(f"a worker could not start: {type(error).__name__}: {error}")
            self._function = lambda *_: failed
        gc.freeze()  # these objects stay to the end: the garbage collector need not look at them again

    def hello(self) -> tuple[int, str]:
        """Return the process id and what decides the last bits."""
        return os.getpid(), arithmetic()

    def run(self, task: StoredObject, *shared: StoredObject) -> StoredObject:
        """Call the function, in a folder of the node's own if the task has one; return its result and the files."""
        try:
            arguments, files = task.view()
            arguments = (*arguments, *(value.view() for value in shared))
            result = (self._function(*arguments), None) if files is None else self._run_in_folder(arguments, files)
            return StoredObject.of(result, by_reference=True)
        except Exception as error:  # also from arguments or a result that cannot be pickled
            return StoredObject.of((FailedTask.by(error), None))

    def _run_in_folder(self, arguments: tuple[Any, ...], files: Files) -> tuple[Any, Files]:
        remove_leftovers()
        with temporary_folder() as parent:
            folder = parent / "run"
            write_files(files, folder)
            return self._function(*arguments, folder), read_files(folder)


def arithmetic() -> str:
    """Return what decides the last bits of a result, beside the versions."""
    kernels = library()
    return f"{processor()}, kernels {kernels[0] if kernels else 'none'}"


@dataclass(eq=False)
class RayWorker:
    """This process's side of a worker."""

    node: ClusterNode
    actor: Any
    requested: float  # when
    pid: int = 0
    load: int = 0  # tasks that it has been given
    started: float = 0.0  # the oldest of them
    seconds: float = 1.0  # for its last task


class RayPool(WorkerPool):
    """Calls a function in workers on a cluster. With `queue`, a worker with quick tasks gets its next one in advance."""

    def __init__(self, function: Function, workers: int | None, nodes: ClusterNodes, queue: bool = False) -> None:
        super().__init__()
        self._ray, self._nodes, self._most, self._queue = nodes.ray, nodes, workers, queue
        self._function = self.share(function)
        self._actor_class = self._ray.remote(num_cpus=1, max_restarts=0, max_task_retries=0)(RayActor)
        self._starting: dict[Any, RayWorker] = {}  # by the pending reply to hello
        self._ready: list[RayWorker] = []
        self._pending: dict[Any, tuple[RayWorker, int]] = {}  # results on their way: worker and position, oldest first
        self._failed_starts: Counter[ClusterNode] = Counter()
        self._warned: set[str] = set()
        self._last_ready = time.monotonic()
        self._start_workers()

    @property
    def workers(self) -> int:
        """The number of workers at this moment, or one if the first has not started yet."""
        return max(len(self._ready), 1)

    def share(self, value: Any) -> Any:
        """Put a value into the object store, where it stays as long as the returned reference."""
        return self._ray.put(StoredObject.of(value))

    def close(self) -> None:
        """End all workers, also those in the middle of a task."""
        for worker in (*self._ready, *self._starting.values()):
            self._ray.kill(worker.actor)
        for collection in (self._ready, self._starting, self._pending):
            collection.clear()

    # Workers

    def _start_workers(self) -> None:
        """Start workers up to their largest number, first on the nodes with the most free CPUs."""
        self._nodes.refresh()
        recent = [w for w in self._starting.values() if time.monotonic() - w.requested < OCCUPIED]
        most = self._nodes.cpus if self._most is None else self._most
        for _ in range(most - len(self._ready) - len(recent)):
            used = Counter(worker.node for worker in (*self._ready, *self._starting.values()))
            node = max(self._usable_nodes, key=lambda node: node.cpus - used[node], default=None)
            if node is None or node.cpus <= used[node]:
                return
            where = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node.id, soft=False)
            actor = self._actor_class.options(scheduling_strategy=where).remote(
                self._function, os.environ.get(SWITCH, ""), sys.argv
            )
            self._starting[actor.hello.remote()] = RayWorker(node, actor, time.monotonic())

    @property
    def _usable_nodes(self) -> list[ClusterNode]:
        return [node for node in self._nodes.usable.values() if self._failed_starts[node] < STARTS]

    def _accept_worker(self, hello: Any) -> None:
        worker = self._starting.pop(hello)
        try:
            worker.pid, theirs = self._ray.get(hello)
        except self._ray.exceptions.RayError as error:
            if self._nodes.is_alive(worker.node):
                self._failed_starts[worker.node] += 1
                self._warn(f"a worker could not start on node {worker.node.name}: {_first_line(error)}")
            return
        if theirs != arithmetic():
            self._warn(
                f"node {worker.node.name} computes with another processor ({theirs}) than this machine "
                f"({arithmetic()}): the last bits of the result may depend on which node computes what"
            )
        self._ready.append(worker)
        if self._most is not None and len(self._ready) >= self._most:
            for late in self._starting.values():
                self._ray.kill(late.actor)
            self._starting.clear()

    def _warn(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            warnings.warn(text, stacklevel=2)

    # Tasks

    def _free_worker(self) -> RayWorker | None:
        """Return the worker with the least to do, if it may be given a task."""
        free = (w for w in self._ready if w.load < (2 if self._queue and w.seconds < QUICK else 1))
        return min(free, key=lambda worker: worker.load, default=None)

    def _can_start(self) -> bool:
        return self._free_worker() is not None

    def _start(self, position: int, task: PoolTask) -> None:
        worker = self._free_worker()
        assert worker is not None, "no free worker"
        if worker.load == 0:
            worker.started = time.monotonic()
        worker.load += 1
        files = None if task.folder is None else read_files(task.folder)
        shared = () if task.shared is None else (task.shared,)
        result = worker.actor.run.remote(StoredObject.of((task.arguments, files)), *shared)
        self._pending[result] = worker, position

    def _receive(self, timeout: float) -> list[tuple[int, Any | LostWorker]]:
        self._start_workers()
        awaited = [*self._pending, *self._starting]
        if not awaited:
            time.sleep(min(timeout, CHECK_INTERVAL))
        ready = self._ray.wait(awaited, timeout=min(timeout, CHECK_INTERVAL))[0] if awaited else []
        found: list[tuple[int, Any]] = []
        for reference in ready:
            if reference in self._starting:
                self._accept_worker(reference)
            elif reference in self._pending:
                found += self._results(reference)
        self._check_workers()
        return found

    def _results(self, reference: Any) -> list[tuple[int, Any | LostWorker]]:
        """Return the result of a task; of a lost worker, all tasks that it had been given."""
        worker, position = self._pending.pop(reference)
        try:
            result, files = self._ray.get(reference).copy()
        except self._ray.exceptions.RayError as error:
            lost = LostWorker(_first_line(error), self._caused_death(error, worker.node))
            return [(position, lost), *self._remove_worker(worker)]
        now = time.monotonic()
        worker.seconds, worker.started, worker.load = now - worker.started, now, worker.load - 1
        folder = self._tasks[position].folder
        if folder is not None and files is not None:
            write_files(files, folder)
        return [(position, result)]

    def _caused_death(self, error: Exception, node: ClusterNode) -> bool:
        """Return whether the task may have killed the worker: its node is there, and more than the result was lost."""
        excused = ("ActorUnavailableError", "NodeDiedError", "ObjectLostError")
        known = tuple(filter(None, (getattr(self._ray.exceptions, name, None) for name in excused)))
        return not isinstance(error, known) and self._nodes.is_alive(node)

    def _remove_worker(self, worker: RayWorker) -> list[tuple[int, LostWorker]]:
        """Remove a worker that is gone or out of reach, and return the tasks that it had not begun."""
        self._ready.remove(worker)
        self._ray.kill(worker.actor)
        queued = {reference: position for reference, (whose, position) in self._pending.items() if whose is worker}
        for reference in queued:
            del self._pending[reference]
        return [(position, LostWorker("", blamed=False)) for position in queued.values()]

    def _check_workers(self) -> None:
        """Raise if there is no worker, and none is to be expected."""
        if self._ready:
            self._last_ready = time.monotonic()
        elif self._nodes.usable and not self._usable_nodes:
            raise ClientFailed(
                f"no worker starts on any node: {', '.join(self._warned)}",
                remedy="fix the cause; the logs of Ray say more",
            )
        elif time.monotonic() - self._last_ready > NO_WORKER:
            raise ClientFailed(
                f"the cluster had no free CPU for {NO_WORKER:.0f} seconds",
                remedy="check with `ray status` that one is free, and continue with --resume",
            )


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
