"""The runtime of experiments: this process, worker processes, or a Ray cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from fedarena.config.errors import BadValue
from fedarena.experiments.option_checks import check_names, check_numbers
from fedarena.runtimes.client_runtime import check_device
from fedarena.runtimes.ray_connection import connected, need_ray
from fedarena.runtimes.ray_nodes import ClusterNodes
from fedarena.runtimes.worker_count import limit_workers, usable_cores

RuntimeName = Literal["serial", "processes", "ray"]
SideBySide = Literal["processes", "ray"]  # runtimes that make whole runs in parallel


@dataclass(frozen=True)
class RuntimeOptions:
    """A runtime, how many workers it may have, and the address of its cluster."""

    runtime: RuntimeName = "processes"
    workers: int | None = None
    address: str | None = None

    def check(self, known: Any = RuntimeName) -> None:
        """Raise if an option is wrong or contradicts another one; `known` is the `Literal` of runtimes."""
        check_numbers(workers=(self.workers, 1))
        check_names(runtime=(self.runtime, known))
        if self.address is not None and self.runtime != "ray":
            raise BadValue("only a cluster has an address", remedy="add --runtime ray", where="--address")
        if self.runtime == "ray":
            need_ray()

    def with_useful_workers(self, useful: int, work: str) -> RuntimeOptions:
        """Return the same runtime with at most `useful` workers; `work` explains the limit in a message."""
        if self.runtime == "serial":
            return self
        is_local = self.runtime == "processes"
        if self.workers is None:
            return replace(self, workers=min(usable_cores(), useful)) if is_local else self
        return replace(self, workers=limit_workers(self.workers, useful, work, is_local))

    @contextlib.contextmanager
    def ready(self, device: str) -> Iterator[ClusterNodes | None]:
        """Yield the nodes of the cluster, connected and checked; None without a cluster."""
        if self.runtime != "ray":
            yield None
            return
        check_device(device)
        with connected(self.address, self.workers) as nodes:
            yield nodes
