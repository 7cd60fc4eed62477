"""The interface of a worker pool: tasks go in, results come out in any order, and the task of a lost worker runs again.

One pool serves the clients of a run, the cells of a comparison and the trials of a search. A task depends on nothing but
its arguments and the files in its folder, so it can run again, on any worker, with the same result.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

Function = Callable[..., Any]
ATTEMPTS = 3  # a task during which three workers died would kill all of them


class PoolTask(NamedTuple):
    """The arguments of one call of the pool's function."""

    arguments: tuple[Any, ...]
    folder: Path | None = None
    shared: Any = None  # what WorkerPool.share returned


@dataclass(frozen=True)
class LostWorker:
    """Reported by a pool in place of a result: the worker is lost, and its task must run again."""

    cause: str
    blamed: bool = True  # the task may have killed the worker


@dataclass(frozen=True)
class LostTask:
    """The result of a task during which a worker died in each attempt."""

    attempts: int
    cause: str

    def __str__(self) -> str:
        return f"died {self.attempts} times ({self.cause})"


class WorkerPool(ABC):
    """Calls one function on many tasks in workers, one task at a time in each."""

    def __init__(self) -> None:
        self._submitted = 0
        self._tasks: dict[int, PoolTask] = {}  # those that have not finished, by position
        self._waiting: deque[int] = deque()
        self._running: set[int] = set()
        self._deaths: Counter[int] = Counter()

    def submit(self, *arguments: Any, folder: Path | None = None, shared: Any = None) -> int:
        """Add a task and return its position.

        The function receives the arguments, then the folder and the shared value if there are any. A worker on another
        machine works on a copy of the folder, which then replaces it.
        """
        position = self._submitted
        self._submitted += 1
        self._tasks[position] = PoolTask(arguments, folder, shared)
        self._waiting.append(position)
        self._start_waiting()
        return position

    @property
    def running(self) -> list[int]:
        """Positions of the tasks that workers have been given."""
        return sorted(self._running)

    @property
    def has_free_worker(self) -> bool:
        """Whether a new task would start at once."""
        return not self._waiting and self._can_start()

    def wait(self, timeout: float) -> list[tuple[int, Any]]:
        """Return positions and results of tasks that have finished; an empty list if none does within `timeout` seconds.

        A result is a LostTask if workers kept dying, and a FailedTask if the function raised or could not be called.
        """
        self._start_waiting()
        finished = []
        for position, result in self._receive(timeout):
            self._running.discard(position)
            if isinstance(result, LostWorker):
                self._deaths[position] += result.blamed
                if self._deaths[position] < ATTEMPTS:
                    self._waiting.appendleft(position)
                    continue
                result = LostTask(ATTEMPTS, result.cause)
            del self._tasks[position]
            finished.append((position, result))
        self._start_waiting()
        return finished

    def results(self, tick: float) -> Iterator[tuple[int, Any] | None]:
        """Yield positions and results until all tasks have finished, and None whenever `tick` seconds have passed."""
        while self._running or self._waiting:
            finished = self.wait(tick)
            yield from finished
            if not finished:
                yield None

    def cancel_waiting(self) -> None:
        """Forget the tasks that no worker has been given."""
        while self._waiting:
            del self._tasks[self._waiting.popleft()]

    def _start_waiting(self) -> None:
        while self._waiting and self._can_start():
            position = self._waiting.popleft()
            self._running.add(position)
            self._start(position, self._tasks[position])

    @property
    @abstractmethod
    def workers(self) -> int:
        """The number of workers that tasks can be divided among, at least one."""

    @abstractmethod
    def share(self, value: Any) -> Any:
        """Make a value available to all workers, in place of the previous one, and return what `submit` takes for it."""

    @abstractmethod
    def close(self) -> None:
        """End all workers, also those in the middle of a task."""

    @abstractmethod
    def _can_start(self) -> bool:
        """Return whether a worker can be given a task now."""

    @abstractmethod
    def _start(self, position: int, task: PoolTask) -> None:
        """Give a task to a worker; only called if `_can_start`."""

    @abstractmethod
    def _receive(self, timeout: float) -> list[tuple[int, Any | LostWorker]]:
        """Wait for running tasks, and replace workers that are lost."""
