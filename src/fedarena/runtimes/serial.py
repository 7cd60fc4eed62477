"""Runs all clients in this process, one after the other: for debugging, and for machines with one core."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from fedarena.engine.client import Broadcast
from fedarena.engine.context import ExperimentContext
from fedarena.engine.tasks import RuntimeTask, run_task
from fedarena.models.pytree import read_only
from fedarena.runtimes.single_thread import one_thread


class SerialRuntime:
    """Runs tasks in this process, one at a time."""

    workers = 1

    def __init__(self, context: ExperimentContext) -> None:
        self.context = context

    def map(self, tasks: Iterable[RuntimeTask], common: Broadcast) -> Iterator[tuple[int, Any]]:
        """Run the tasks in order; yield the number of each and its result."""
        common = read_only(common)  # as for worker processes, which read it in shared memory
        with one_thread():
            for number, task in enumerate(tasks):
                yield number, run_task(self.context, read_only(task), common)

    def close(self) -> None:
        """Do nothing: there are no workers to end."""
