"""A cache of values made from files. No lock is held while one is made: a slow folder delays only its own pages."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


class FileCache(Generic[Value]):
    """Cache the values that were used last, up to a total weight; concurrent requests for one value share its making."""

    def __init__(self, budget: float = float("inf"), weigh: Callable[[Value], float] = lambda value: 1.0) -> None:
        self._budget, self._weigh = budget, weigh
        self._lock = threading.Lock()
        self._known: dict[Hashable, tuple[Any, Value, float]] = {}  # stamp, value, weight; the last used comes last
        self._being_made: dict[Hashable, Future[Value]] = {}
        self._total = 0.0

    def get(self, key: Hashable, stamp: Hashable, make: Callable[[Value | None], Value]) -> Value:
        """Return the value for this stamp: a known one, or what `make` makes of the one before it.

        An error of `make` is raised in every request that waits for it, and is not cached.
        """
        with self._lock:
            known = self._known.pop(key, None)
            if known is not None:
                self._known[key] = known
                if known[0] == stamp:
                    return known[1]
            waiting = self._being_made.get((key, stamp))
            if waiting is None:
                making = self._being_made[key, stamp] = Future[Value]()
        if waiting is not None:
            return waiting.result()
        try:
            value = make(None if known is None else known[1])
            self._store(key, stamp, value)
            making.set_result(value)
            return value
        except BaseException as error:
            making.set_exception(error)
            raise
        finally:
            with self._lock:
                del self._being_made[key, stamp]

    def _store(self, key: Hashable, stamp: Hashable, value: Value) -> None:
        weight = self._weigh(value)
        with self._lock:
            before = self._known.pop(key, None)
            self._known[key] = stamp, value, weight
            self._total += weight - (before[2] if before else 0.0)
            while self._total > self._budget and self._known:
                oldest = next(iter(self._known))
                self._total -= self._known.pop(oldest)[2]
