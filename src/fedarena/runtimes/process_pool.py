"""A worker pool of processes on this machine, one thread each; large arrays travel through shared memory.

Workers are forked where that is safe, else started fresh; both give the same results. They end with this process, even if
it is killed: two processes must never write to one folder.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import multiprocessing
import multiprocessing.connection
import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Literal

import torch

from fedarena.config.errors import CannotWrite
from fedarena.engine.tasks import FailedTask
from fedarena.runtimes.cleanup import remove_leftovers
from fedarena.runtimes.pool import Function, LostWorker, PoolTask, WorkerPool
from fedarena.runtimes.shared_memory import PackedObject, SharedBlock, SharedWindow, own_copy, pack_inline
from fedarena.runtimes.worker_count import usable_cores

StartMethod = Literal["fork", "spawn"]
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h


def safe_start() -> StartMethod:
    """Return "fork" only where no state can be copied half-way: Linux, no other threads, no accelerator in use."""
    alone = threading.active_count() == 1
    cuda: Any = torch.cuda
    return "fork" if sys.platform == "linux" and alone and not cuda.is_initialized() else "spawn"


class ProcessPool(WorkerPool):
    """Calls a function in worker processes, which are started as they are needed."""

    def __init__(self, function: Function, workers: int | None = None, start: StartMethod | None = None) -> None:
        super().__init__()
        remove_leftovers()
        keep_freed_memory()  # here, too, where results arrive
        resource_tracker.ensure_running()  # before forking: with a tracker each, processes remove blocks of others
        self._most = workers or usable_cores()
        self._function, self._start_method = function, start
        self._function_block = SharedBlock()
        self._packed_function: PackedObject | None = None
        self._shared_block, self._shared_number = SharedBlock(), 0
        self._processes: list[ProcessWorker] = []

    @property
    def workers(self) -> int:
        """The largest number of workers."""
        return self._most

    def start_workers(self) -> None:
        """Start all workers now instead of when tasks need them."""
        while len(self._processes) < self._most:
            self._start_worker()

    def _start_worker(self) -> ProcessWorker:
        """Start a worker that gets the function by inheritance or through shared memory."""
        method = self._start_method or safe_start()
        if method == "spawn" and self._packed_function is None:
            self._packed_function = _packed(self._function, self._function_block)
        function = self._function if method == "fork" else self._packed_function
        worker = ProcessWorker(method, function, [other.pipe for other in self._processes])
        self._processes.append(worker)
        return worker

    def share(self, value: Any) -> tuple[int, PackedObject]:
        """Put the value into shared memory, in place of the previous one."""
        self._shared_number += 1
        return self._shared_number, self._shared_block.pack(value)

    def _can_start(self) -> bool:
        return len(self._running) < self._most

    def _start(self, position: int, task: PoolTask) -> None:
        idle = (worker for worker in self._processes if worker.position is None)
        worker = next(idle, None) or self._start_worker()
        worker.start(position, task)

    def _receive(self, timeout: float) -> list[tuple[int, Any | LostWorker]]:
        busy = {worker.pipe: worker for worker in self._processes if worker.position is not None}
        ready: Any = multiprocessing.connection.wait(list(busy), timeout)
        return [self._result(busy[pipe]) for pipe in ready]

    def _result(self, worker: ProcessWorker) -> tuple[int, Any | LostWorker]:
        position = worker.position
        assert position is not None, "idle"
        try:
            return position, worker.result()
        except (EOFError, OSError):
            self._processes.remove(worker)
            return position, LostWorker(f"last exit code {worker.end(patience=1.0)}")

    def close(self) -> None:
        """End all workers, also those in the middle of a task, and remove what was shared."""
        for worker in self._processes:
            worker.end(patience=0.5 if worker.position is None else 0.0)
        self._processes.clear()
        self._shared_block.close()
        self._function_block.close()


class ProcessWorker:
    """This process's side of a worker process."""

    def __init__(self, method: StartMethod, function: Any, other_pipes: list[Connection]) -> None:
        context: Any = multiprocessing.get_context(method)
        self.pipe, far_end = context.Pipe()
        self.position: int | None = None  # of the task that it runs
        self._inbox, self._outbox = SharedBlock(), SharedBlock()
        # A forked child inherits our ends of all pipes; unless it closes them, a pipe stays open when we are gone.
        to_close = [self.pipe, *other_pipes] if method == "fork" else []
        arguments = (far_end, function, to_close)
        self._process: BaseProcess = context.Process(target=_worker_main, args=arguments, daemon=True)
        with _hidden_main() if method == "spawn" else contextlib.nullcontext():
            self._process.start()
        far_end.close()

    @property
    def pid(self) -> int | None:
        """The id of the worker process."""
        return self._process.pid

    def start(self, position: int, task: PoolTask) -> None:
        """Send a task to the worker process."""
        self.position = position
        arguments = task.arguments if task.folder is None else (*task.arguments, task.folder)
        message = self._inbox.pack(arguments), task.shared, self._outbox.name
        with contextlib.suppress(OSError):  # a dead worker is noticed when its result is waited for
            self.pipe.send(message)

    def result(self) -> Any:
        """Receive the result of the task; EOFError if the worker is gone."""
        packed: PackedObject = self.pipe.recv()
        self.position = None
        result = own_copy(packed, self._outbox)
        if packed.size:
            self._outbox.reserve(packed.size)  # what did not fit this time will fit the next
        return result

    def end(self, patience: float) -> int | None:
        """Stop the process unless it ends by itself within `patience` seconds, and return its exit code."""
        self.pipe.close()
        self._process.join(patience)
        self._process.kill()
        self._process.join()
        self._inbox.close()
        self._outbox.close()
        return self._process.exitcode


def _worker_main(pipe: Connection, function: Function | PackedObject, to_close: list[Connection]) -> None:
    """Run tasks in the worker process until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that holds the pool
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for other in to_close:
        other.close()
    threading.Thread(target=_exit_with_parent, args=(pipe,), daemon=True).start()
    torch.set_num_threads(1)
    keep_freed_memory()
    window = SharedWindow()
    call = _unpacked(function, window)
    gc.freeze()  # these objects stay to the end: the garbage collector need not look at them again
    known: tuple[int, Any] = 0, None  # the shared value, by number
    while True:
        try:
            packed, shared, outbox = pipe.recv()
        except (EOFError, OSError):
            os._exit(0)  # the pool was closed or its process killed: exit without touching what was inherited
        try:
            if shared is not None and shared[0] != known[0]:
                known = shared[0], window.unpack(shared[1])
            arguments = window.unpack(packed) if shared is None else (*window.unpack(packed), known[1])
            answer = window.pack(call(*arguments), outbox)
        except Exception as error:  # also from a result that cannot be pickled
            answer = window.pack(FailedTask.by(error), outbox)
        pipe.send(answer)


def _exit_with_parent(pipe: Connection) -> None:
    """Exit as soon as the parent closes the pipe or is gone, even in the middle of a task."""
    if sys.platform == "linux":  # elsewhere, poll may not report the end of a connection alone
        closed = select.poll()
        closed.register(pipe.fileno(), 0)  # no event but the end of the connection
        closed.poll()
    elif (parent := multiprocessing.parent_process()) is not None:
        parent.join()
    os._exit(0)


def _packed(function: Function, block: SharedBlock) -> PackedObject:
    """Put the function and its data into shared memory; where there is too little, each worker gets a copy."""
    try:
        return block.pack(function)
    except CannotWrite:
        return pack_inline(function)


def _unpacked(function: Function | PackedObject, window: SharedWindow) -> Function:
    """Return the function, or one that reports why there is none: a fresh process may lack something of the user's."""
    if not isinstance(function, PackedObject):
        return function
    try:
        return window.unpack(function)  # type: ignore[no-any-return]
    except Exception as error:
        failed = FailedTask(f"a worker process could not start: {type(error).__name__}: {error}")
        return lambda *_: failed


def keep_freed_memory() -> None:
    """Keep freed memory in the process: models allocate the same arrays for every client, and fetching their pages from the
    system each time takes longer than filling them."""
    with contextlib.suppress(OSError, AttributeError):  # another C library than glibc
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_THRESHOLD, 32 << 20)
        mallopt(M_TRIM_THRESHOLD, 128 << 20)


@contextlib.contextmanager
def _hidden_main() -> Iterator[None]:
    """Prevent a fresh worker from importing the user's script again: what it needs of it travels by value."""
    main = sys.modules["__main__"]
    saved = {name: getattr(main, name) for name in ("__file__", "__spec__") if hasattr(main, name)}
    main.__spec__ = None
    with contextlib.suppress(AttributeError):
        del main.__file__
    try:
        yield
    finally:
        for name, value in saved.items():
            setattr(main, name, value)
