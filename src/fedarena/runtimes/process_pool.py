"""Whole runs side by side: one worker process a core, each busy with one thing at a time.

What is done leaves its result on disk, so a worker that dies (out of memory, killed) is replaced and its work is given
out again; it goes on where the files say. Workers die with us, however we die: two must never write in one folder.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import cloudpickle
import torch

from fedarena.runtimes.cleanup import remove_leftovers
from fedarena.runtimes.processes import TRIES, Start, hidden_main, safe_start, usable_cores

Do = Callable[..., Any]


@dataclass(frozen=True)
class LostTask:
    """Work that took down every worker that tried it."""

    times: int
    code: int | None  # with which the last one ended
    why: str = ""  # in words, where nobody knows a code

    def __str__(self) -> str:
        return f"died {self.times} times ({self.why or f'last exit code {self.code}'})"


class ProcessPool:
    """Does something to many things, in worker processes. `do` reaches them once, a thing goes to one by pipe.

    runtimes/ray_pool.py has the same on a cluster.
    """

    def __init__(self, do: Do, workers: int | None = None) -> None:
        remove_leftovers()
        self._do, self._most = do, workers or usable_cores()
        self._given: list[tuple[Any, ...]] = []
        self._waiting: deque[int] = deque()
        self._tries: Counter[int] = Counter()
        self._crew: list[PoolWorker] = []

    def give(self, thing: Any, folder: Path | None = None) -> int:
        """One thing more to do something to, in its folder if it needs one; and its position."""
        self._given.append((thing,) if folder is None else (thing, folder))
        self._waiting.append(len(self._given) - 1)
        if len(self._crew) < self._most:
            self._crew.append(self._hire())
        return len(self._given) - 1

    def _hire(self) -> PoolWorker:
        return PoolWorker(safe_start(), self._do, [w.pipe for w in self._crew])

    @property
    def running(self) -> list[int]:
        """Positions of what is being worked on."""
        return sorted(w.task for w in self._crew if w.task is not None)

    def results(self, tick: float) -> Iterator[tuple[int, Any] | None]:
        """(position, result or Lost) as they come, and None whenever `tick` seconds have passed."""
        while True:
            for worker in self._crew:
                if worker.task is None and self._waiting:
                    position = self._waiting.popleft()
                    worker.begin(position, self._given[position])
            busy = {w.pipe: w for w in self._crew if w.task is not None}
            if not busy:
                return
            ready = multiprocessing.connection.wait(list(busy), timeout=tick)
            for pipe in ready:
                found = self._take(busy[pipe])
                if found is not None:
                    yield found
            if not ready:
                yield None

    def _take(self, worker: PoolWorker) -> tuple[int, Any] | None:
        """A worker's result; one that is gone is replaced, and what it did is given out again."""
        position = worker.task
        assert position is not None
        try:
            return position, worker.finish()
        except (EOFError, OSError):
            code = worker.end(patience=1.0)
            self._crew.remove(worker)
            self._crew.append(self._hire())
            self._tries[position] += 1
            if self._tries[position] >= TRIES:
                return position, LostTask(TRIES, code)
            self._waiting.appendleft(position)
            return None

    def close(self) -> None:
        """Let the workers go, whatever they are doing."""
        for worker in self._crew:
            worker.end()
        self._crew.clear()


class PoolWorker:
    """The near end of a worker process."""

    def __init__(self, start: Start, do: Do, others: list[Connection]) -> None:
        context: Any = multiprocessing.get_context(start)
        self.pipe, far_end = context.Pipe()
        self.task: int | None = None
        # A forked child inherits our ends of all pipes; unless it closes them, nobody notices when we are gone.
        arguments = (do, [self.pipe, *others]) if start == "fork" else (cloudpickle.dumps(do), [])
        self._process: BaseProcess = context.Process(target=_worker_main, args=(far_end, *arguments), daemon=True)
        with hidden_main() if start == "spawn" else contextlib.nullcontext():
            self._process.start()
        far_end.close()

    @property
    def pid(self) -> int | None:
        """Of the process."""
        return self._process.pid

    def begin(self, position: int, given: tuple[Any, ...]) -> None:
        """Hand work over."""
        self.task = position
        with contextlib.suppress(OSError):  # a dead worker is noticed when its answer is waited for
            self.pipe.send_bytes(cloudpickle.dumps(given))

    def finish(self) -> Any:
        """Take the result; EOFError if the worker is gone."""
        result = self.pipe.recv()
        self.task = None
        return result

    def end(self, patience: float = 0.0) -> int | None:
        """Stop the process, whatever it is doing, and return its exit code; one that is ending may do so by itself."""
        self.pipe.close()
        self._process.join(patience)
        self._process.kill()
        self._process.join()
        return self._process.exitcode


def _worker_main(pipe: Connection, do: Do | bytes, to_close: list[Connection]) -> None:
    """The far end: do what comes through the pipe, until it closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that holds the comparison
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for other in to_close:
        other.close()
    torch.set_num_threads(1)
    orders: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_receive_tasks, args=(pipe, orders), daemon=True).start()
    do = cloudpickle.loads(do) if isinstance(do, bytes) else do
    while True:
        pipe.send(do(*cloudpickle.loads(orders.get())))


def _receive_tasks(pipe: Connection, orders: SimpleQueue[bytes]) -> None:
    """Take orders; leave at once when nobody is there to give them, even in the middle of a run."""
    while True:
        try:
            orders.put(pipe.recv_bytes())
        except (EOFError, OSError):
            os._exit(0)
