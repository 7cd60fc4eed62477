"""Where runs are made: in this process, in others beside it, or on a Ray cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from fedarena.config.errors import BadValue, quoted, repeated
from fedarena.runtimes.client_runtime import check_device
from fedarena.runtimes.ray_connection import connected, need_ray
from fedarena.runtimes.ray_nodes import ClusterNodes
from fedarena.runtimes.worker_count import limit_workers, usable_cores

RuntimeName = Literal["serial", "processes", "ray"]
SideBySide = Literal["processes", "ray"]  # where whole runs can be made


@dataclass(frozen=True)
class RuntimeOptions:
    """A runtime, how many workers it may have, and the address of its cluster."""

    runtime: RuntimeName = "processes"
    workers: int | None = None
    address: str | None = None

    def check(self, known: Any = RuntimeName) -> None:
        """Everything that can be wrong before anybody is asked."""
        workers, names = self.workers, get_args(known)
        if workers is not None and (not isinstance(workers, int) or isinstance(workers, bool) or workers < 1):
            raise BadValue(
                f"workers = {repeated(workers)}", remedy="give a whole number, at least 1", where="--workers"
            )
        if self.runtime not in names:
            few = f"{', '.join(names[:-1])} or {names[-1]}"
            raise BadValue(f"no runtime is called '{quoted(self.runtime)}'", remedy=f"use {few}", where="--runtime")
        if self.address is not None and self.runtime != "ray":
            raise BadValue("only a cluster has an address", remedy="add --runtime ray", where="--address")
        if self.runtime == "ray":
            need_ray()

    def with_useful_workers(self, useful: int, work: str) -> RuntimeOptions:
        """Return the place with no more workers than have work; `work` says in words why they are enough."""
        if self.runtime == "serial":
            return self
        here = self.runtime == "processes"
        if self.workers is None:
            return replace(self, workers=min(usable_cores(), useful)) if here else self
        return replace(self, workers=limit_workers(self.workers, useful, work, here))

    @contextlib.contextmanager
    def ready(self, device: str) -> Iterator[ClusterNodes | None]:
        """The nodes of the cluster, reached and checked; None where there is none."""
        if self.runtime != "ray":
            yield None
            return
        check_device(device)
        with connected(self.address, self.workers) as nodes:
            yield nodes
