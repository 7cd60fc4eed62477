"""Pools for whole runs: the cells of a comparison and the trials of a search."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedarena.config.errors import ClientFailed
from fedarena.config.experiment import Experiment
from fedarena.data.dataset import Dataset, DataSource
from fedarena.engine.tasks import FailedTask
from fedarena.runtimes.pool import Function, WorkerPool
from fedarena.runtimes.process_pool import ProcessPool
from fedarena.runtimes.ray_nodes import ClusterNodes
from fedarena.runtimes.ray_pool import RayPool
from fedarena.statistics.metric_registry import Metric, adopt_metrics, own_metrics


def open_pool(function: Function, workers: int | None, nodes: ClusterNodes | None) -> WorkerPool:
    """Open a pool of processes, or on the nodes of a cluster, whose workers know the metrics that the user registered."""
    if own := own_metrics():
        function = functools.partial(_with_metrics, own, function)
    return ProcessPool(function, workers) if nodes is None else RayPool(function, workers, nodes)


def _with_metrics(own: Sequence[Metric], function: Function, *arguments: Any) -> Any:
    adopt_metrics(own)
    return function(*arguments)


def check_called(result: Any) -> None:
    """Raise if a worker could not call the function, which returns its own problems as values."""
    if isinstance(result, FailedTask):
        raise ClientFailed(result.error, remedy="install what the experiment needs wherever workers run")


@dataclass(frozen=True)
class EmbeddedDataset:
    """A data set that travels with its samples: a node of a cluster need not have its files."""

    source: DataSource
    loaded: dict[int, Dataset]  # by seed

    def load(self, seed: int) -> Dataset:
        """Return the embedded samples; those of another seed are read from the source."""
        return self.loaded[seed] if seed in self.loaded else self.source.load(seed)


def embed_data(experiments: Sequence[Experiment]) -> list[Experiment]:
    """Return the same experiments with their data in them, each data set once."""
    loaded: dict[tuple[str, int], Dataset] = {}
    known: dict[str, Dataset] = {}
    for exp in experiments:
        key = repr(exp.data), exp.seed_for("split")
        if not exp.data.own and key not in loaded:  # data given in Python travel with the experiment
            data = exp.data.made.load(key[1])
            loaded[key] = known.setdefault(data.fingerprint(), data)
    return [
        exp if exp.data.own else _embedded(exp, loaded[repr(exp.data), exp.seed_for("split")]) for exp in experiments
    ]


def _embedded(exp: Experiment, data: Dataset) -> Experiment:
    made = EmbeddedDataset(exp.data.made, {exp.seed_for("split"): data})
    return exp.model_copy(update={"data": replace(exp.data, made=made)})
