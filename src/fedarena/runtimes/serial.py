"""All clients in this process, one after the other: for debugging, and for machines with one core."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from fedarena.engine.client import Broadcast
from fedarena.engine.context import ExperimentContext
from fedarena.engine.tasks import RuntimeTask, run_task
from fedarena.models.pytree import read_only
from fedarena.runtimes.run_task import one_thread


class SerialRuntime:
    """The simplest runtime."""

    workers = 1

    def __init__(self, site: ExperimentContext) -> None:
        self.site = site

    def map(self, jobs: Iterable[RuntimeTask], common: Broadcast) -> Iterator[tuple[int, Any]]:
        """One by one."""
        common = read_only(common)  # as it is for worker processes, which look at it in shared memory
        with one_thread():
            for position, job in enumerate(jobs):
                yield position, run_task(self.site, read_only(job), common)

    def close(self) -> None:
        """Nothing to close."""
