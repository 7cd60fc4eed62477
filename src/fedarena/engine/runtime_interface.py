"""How jobs meet processes: the contract of a runtime, and results put back in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from fedarena.engine.client import Broadcast
from fedarena.engine.tasks import RuntimeTask


class Runtime(Protocol):
    """Where clients run. It maps jobs over processes and knows nothing of learning."""

    def map(self, jobs: Iterable[RuntimeTask], common: Broadcast) -> Iterator[tuple[int, Any]]:
        """Run every job; yield (position, result or Failed) in any order."""
        ...


def in_order(results: Iterable[tuple[int, Any]]) -> Iterator[Any]:
    """Results in the order of their jobs, each as soon as those before it are there."""
    waiting: dict[int, Any] = {}
    wanted = 0
    for position, result in results:
        waiting[position] = result
        while wanted in waiting:
            yield waiting.pop(wanted)
            wanted += 1
