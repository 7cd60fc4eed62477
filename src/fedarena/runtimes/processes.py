"""One worker process a core, one thread each; rows, models and answers in shared memory. The default on one machine.

A worker that dies (out of memory, killed) is replaced and its job is run again: a job depends on nothing but itself, so
the result has the same bits. Workers are forked where that is safe, else started fresh; both give the same result.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Literal

import cloudpickle
import torch

from fedarena.config.errors import ClientFailed
from fedarena.engine.client import Broadcast
from fedarena.engine.context import ExperimentContext
from fedarena.engine.tasks import FailedTask, RuntimeTask, run_task
from fedarena.models.pytree import types_near
from fedarena.runtimes.cleanup import remove_leftovers
from fedarena.runtimes.shared_memory import PackedObject, SharedBlock, SharedWindow, own_copy

Start = Literal["fork", "spawn"]
AHEAD = 4  # jobs a worker may be ahead of the slowest one
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
PER_CORE = 4  # workers that may share a core; more only take memory and wait for each other
TRIES = 3  # a job that takes down three workers would take down all of them


def safe_start() -> Start:
    """Fork only where nothing can be caught half-way: Linux, no other threads, no accelerator in use."""
    alone = threading.active_count() == 1
    cuda: Any = torch.cuda
    return "fork" if sys.platform == "linux" and alone and not cuda.is_initialized() else "spawn"


class ProcessRuntime:
    """A pool of workers that all hold the same Site."""

    def __init__(self, site: ExperimentContext, workers: int | None = None, start: Start | None = None) -> None:
        self.workers = workers or usable_cores()
        self._site, self._start = site, start
        remove_leftovers()
        self._common = SharedBlock()
        self._site_block: SharedBlock | None = None
        self._crew: list[RuntimeWorker] = []
        self._round = 0
        # Classes that cannot be imported (a notebook's) are known by a mark that cloudpickle makes at first sight: make
        # it before forking, so that what comes back is of the class it was.
        cloudpickle.dumps([site.algorithm, *types_near(site.algorithm).values()])
        keep_freed_memory()  # here too, where answers arrive
        resource_tracker.ensure_running()  # before forking: all processes must share one, or each removes what others use
        for _ in range(self.workers):
            self._crew.append(self._hire())

    def _hire(self) -> RuntimeWorker:
        """A new worker, with the site by inheritance or through shared memory."""
        start = self._start or safe_start()
        if start == "fork":
            return RuntimeWorker("fork", self._site, [w.pipe for w in self._crew])
        if self._site_block is None:
            self._site_block = SharedBlock()
            self._packed_site = self._site_block.pack(self._site)
        return RuntimeWorker("spawn", self._packed_site, [])

    def map(self, jobs: Iterable[RuntimeTask], common: Broadcast) -> Iterator[tuple[int, Any]]:
        """Give each free worker the next job; yield results as they come."""
        self._round += 1
        shared = (self._round, self._common.pack(common))
        todo: Iterator[tuple[int, RuntimeTask]] = enumerate(jobs)
        again: list[tuple[int, RuntimeTask]] = []
        tries: dict[int, int] = {}
        given = -1

        def give() -> None:
            """A job for everyone who is free, but none far ahead of the slowest: answers wait in memory for their turn."""
            nonlocal given
            for worker in self._crew:
                at_work = [w.task[0] for w in self._crew if w.task is not None]
                too_far = bool(at_work) and given + 1 - min(at_work) >= AHEAD * self.workers
                if worker.task is not None or (too_far and not again):
                    continue
                task = again.pop() if again else next(todo, None)
                if task is not None:
                    given = max(given, task[0])
                    worker.begin(*task, shared)

        give()
        while busy := {w.pipe: w for w in self._crew if w.task is not None}:
            for pipe in multiprocessing.connection.wait(list(busy)):
                worker = busy[pipe]
                try:
                    position, result = worker.finish()
                except (EOFError, OSError):
                    assert worker.task is not None
                    again.append(worker.task)
                    self._replace(worker, tries)
                    give()
                    continue
                give()
                yield position, result

    def _replace(self, worker: RuntimeWorker, tries: dict[int, int]) -> None:
        assert worker.task is not None
        position, job = worker.task
        tries[position] = tries.get(position, 0) + 1
        code = worker.end()
        self._crew.remove(worker)
        if tries[position] >= TRIES:
            raise ClientFailed(
                f"a worker died {TRIES} times (last exit code {code}) at {type(job).__name__} "
                f"{getattr(job, 'client', position)}",
                remedy="it may need more memory than there is: use --workers 1, a smaller batch or a smaller model",
            )
        self._crew.append(self._hire())

    def close(self) -> None:
        """Let the workers go and remove what was shared."""
        for worker in self._crew:
            worker.end()
        self._crew.clear()
        self._common.close()
        if self._site_block is not None:
            self._site_block.close()


class RuntimeWorker:
    """The near end of a worker process: one job at a time goes in, its answer comes out."""

    def __init__(self, start: Start, site: ExperimentContext | PackedObject, others: list[Connection]) -> None:
        context: Any = multiprocessing.get_context(start)
        self.pipe, far_end = context.Pipe()
        self.task: tuple[int, RuntimeTask] | None = None
        self._inbox, self._outbox = SharedBlock(), SharedBlock()
        # A forked child inherits our ends of all pipes; unless it closes them, nobody notices when we are gone.
        to_close = [self.pipe, *others] if start == "fork" else []
        self._process: BaseProcess = context.Process(target=work, args=(far_end, site, to_close), daemon=True)
        with hidden_main() if start == "spawn" else contextlib.nullcontext():
            self._process.start()
        far_end.close()

    @property
    def pid(self) -> int | None:
        """Of the process."""
        return self._process.pid

    def begin(self, position: int, job: RuntimeTask, shared: tuple[int, PackedObject]) -> None:
        """Hand a job over."""
        self.task = (position, job)
        # A dead worker is noticed at the other end of the pipe, when the answer is waited for.
        with contextlib.suppress(OSError):
            self.pipe.send((self._inbox.pack(job), *shared, self._outbox.name))

    def finish(self) -> tuple[int, Any]:
        """Take the answer; EOFError if the worker is gone."""
        packed: PackedObject = self.pipe.recv()
        assert self.task is not None
        position, _ = self.task
        self.task = None
        result = own_copy(packed, self._outbox)
        self._outbox.reserve(packed.size)  # what did not fit this time will fit the next
        return position, result

    def end(self) -> int | None:
        """Stop the process, whatever it is doing, and return its exit code."""
        self.pipe.close()
        self._process.join(timeout=0.5 if self.task is None else 0)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._inbox.close()
        self._outbox.close()
        return self._process.exitcode


def work(pipe: Connection, site: ExperimentContext | PackedObject, to_close: list[Connection]) -> None:
    """The far end: run jobs until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that holds the run
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for other in to_close:
        other.close()
    torch.set_num_threads(1)
    keep_freed_memory()
    gc.freeze()  # what is here stays to the end: no need to look through it again and again
    window = SharedWindow()
    here: ExperimentContext | FailedTask = _unpacked(site, window)
    seen, common = 0, None
    while True:
        try:
            packed_job, number, packed_common, outbox = pipe.recv()
        except (EOFError, OSError):
            os._exit(0)  # the run is over or was killed: leave without touching what was inherited
        if number != seen:
            seen, common = number, window.unpack(packed_common)
        assert common is not None
        result = here if isinstance(here, FailedTask) else run_task(here, window.unpack(packed_job), common)
        try:
            packed = window.pack(result, outbox)
        except Exception as error:  # something in the answer that no process can hand over
            packed = window.pack(FailedTask.by(error), outbox)
        pipe.send(packed)


def keep_freed_memory() -> None:
    """Let what is freed stay with the process: a model's arrays come anew with every client, and to fetch their pages from
    the system each time takes longer than to fill them."""
    with contextlib.suppress(OSError, AttributeError):  # another C library than glibc
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_THRESHOLD, 32 << 20)
        mallopt(M_TRIM_THRESHOLD, 128 << 20)


def _unpacked(site: ExperimentContext | PackedObject, window: SharedWindow) -> ExperimentContext | FailedTask:
    try:
        return window.unpack(site) if isinstance(site, PackedObject) else site
    except Exception as error:  # something of the user's that a fresh process cannot import
        return FailedTask(f"a worker process could not start: {type(error).__name__}: {error}")


@contextlib.contextmanager
def hidden_main() -> Iterator[None]:
    """Keep a fresh worker from importing the user's script again: what it needs of it travels by value."""
    main = sys.modules["__main__"]
    kept = {name: getattr(main, name) for name in ("__file__", "__spec__") if hasattr(main, name)}
    main.__spec__ = None
    with contextlib.suppress(AttributeError):
        del main.__file__
    try:
        yield
    finally:
        for name, value in kept.items():
            setattr(main, name, value)


def limited(workers: int, useful: int | None = None, work: str = "", here: bool = True) -> int:
    """Return no more workers than have work and, on this machine, than its cores can serve; warn where that is fewer."""
    limits = [] if useful is None else [(useful, work)]
    if here:
        cores = usable_cores()
        limits.append((PER_CORE * cores, f"{PER_CORE} for each of {cores} core{'s' * (cores != 1)} are enough"))
    most, why = min(limits, default=(workers, ""))
    if workers <= most:
        return workers
    warnings.warn(f"{most} worker{'s' * (most != 1)} instead of {workers}: {why}", stacklevel=2)
    return most


def usable_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
