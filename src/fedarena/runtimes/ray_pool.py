"""Whole runs on a Ray cluster whose nodes share no disk with us: rows go there, and the folder of a run comes back.

A worker or a node that is lost takes a run along; it is made again elsewhere, from what its folder held here.
"""

from __future__ import annotations

import functools
import shutil
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedarena.common.files import remove_folder, writing
from fedarena.config.errors import ClientFailed
from fedarena.config.experiment import Experiment
from fedarena.data.dataset import Dataset, DataSource
from fedarena.engine.tasks import FailedTask
from fedarena.runtimes.cleanup import remove_leftovers, temporary_folder
from fedarena.runtimes.process_pool import Do, LostTask, ProcessPool
from fedarena.runtimes.processes import TRIES
from fedarena.runtimes.ray_nodes import ClusterNodes
from fedarena.runtimes.ray_workers import LostWorker, RayWorkers, StoredObject
from fedarena.statistics.metric_registry import Metric, adopt_metrics, own_metrics

Files = dict[str, NDArray[np.uint8]]  # by their path within a folder; a path that ends with a slash is a folder itself
NOTHING: NDArray[np.uint8] = np.empty(0, np.uint8)


def open_pool(do: Do, workers: int | None, nodes: ClusterNodes | None) -> ProcessPool | RayPool:
    """Workers for `do`: processes of ours, or on the nodes of a cluster; they know the metrics that a user registered."""
    if own := own_metrics():
        do = functools.partial(_with_metrics, own, do)
    return ProcessPool(do, workers) if nodes is None else RayPool(do, workers, nodes)


def _with_metrics(own: Sequence[Metric], do: Do, thing: Any, folder: Any) -> Any:
    adopt_metrics(own)
    return do(thing, folder)


class RayPool:
    """Does something to many things on the nodes of a cluster; a Crew, as those who give it work see it."""

    def __init__(self, do: Do, workers: int | None, nodes: ClusterNodes) -> None:
        self._hands = RayWorkers(nodes, functools.partial(_run_on_node, do), workers)
        self._given: list[tuple[Any, Path | None]] = []
        self._waiting: deque[int] = deque()
        self._at_work: set[int] = set()
        self._tries: Counter[int] = Counter()

    def give(self, thing: Any, folder: Path | None = None) -> int:
        """One thing more to do something to, in its folder if it needs one; and its position."""
        self._given.append((thing, folder))
        self._waiting.append(len(self._given) - 1)
        return len(self._given) - 1

    @property
    def running(self) -> list[int]:
        """Positions of what is being worked on."""
        return sorted(self._at_work)

    def results(self, tick: float) -> Iterator[tuple[int, Any] | None]:
        """(position, result or Lost) as they come, and None whenever `tick` seconds have passed, or less."""
        while True:
            while self._waiting and (hand := self._hands.free()) is not None:
                position = self._waiting.popleft()
                thing, folder = self._given[position]
                self._at_work.add(position)
                self._hands.begin(
                    hand, (0, position), StoredObject.of((thing, None if folder is None else read_files(folder)))
                )
            if not self._at_work and not self._waiting:
                return
            ended = self._hands.ended(tick)
            for (_, position), answer in ended:
                self._at_work.discard(position)
                found = self._finish_task(position, answer)
                if found is not None:
                    yield found
            if not ended:
                yield None

    def _finish_task(self, position: int, answer: Any) -> tuple[int, Any] | None:
        """A result, its folder in place; what a lost worker did is given out again."""
        if isinstance(answer, LostWorker):
            self._tries[position] += answer.blamed
            if self._tries[position] >= TRIES:
                return position, LostTask(TRIES, None, answer.why)
            self._waiting.appendleft(position)
            return None
        if isinstance(answer, FailedTask):  # not in what was done, which gives its problems as values
            raise ClientFailed(answer.error, remedy="is all that the experiment needs on every node?")
        result, files = answer
        folder = self._given[position][1]
        if folder is not None:
            write_files(files, folder)
        return position, result

    def close(self) -> None:
        """Let the workers go, whatever they are doing."""
        self._hands.close()


def _run_on_node(do: Do, given: tuple[Any, Files | None]) -> tuple[Any, Files | None]:
    """In a worker, on its node: do it in a folder of the node's own, and give back what is in it then."""
    remove_leftovers()
    thing, files = given
    if files is None:
        return do(thing), None
    with temporary_folder() as home:
        folder = home / "run"
        write_files(files, folder)
        return do(thing, folder), read_files(folder)


# What travels


def read_files(folder: Path) -> Files:
    """All that is in a folder; nothing if it is not there."""
    paths = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*"))}
    files = {name: np.fromfile(path, np.uint8) for name, path in paths.items() if path.is_file()}
    return files | {f"{name}/": NOTHING for name, path in paths.items() if path.is_dir()}


def write_files(files: Files, folder: Path) -> None:
    """Put them in place of what is there; all at once, for half a folder might look like a run."""
    aside = folder.with_name(f"{folder.name}.new")
    shutil.rmtree(aside, ignore_errors=True)
    with writing(folder):
        for name, content in files.items():
            home, _, last = name.rpartition("/")
            (aside / home).mkdir(parents=True, exist_ok=True)
            if last:
                content.tofile(aside / name)
        remove_folder(folder)
        if files:
            aside.rename(folder)


@dataclass(frozen=True)
class EmbeddedDataset:
    """A data set that is brought along: a node need not have its files."""

    source: DataSource
    loaded: dict[int, Dataset]  # by seed

    def load(self, seed: int) -> Dataset:
        """What was brought; read there only if another seed is asked for."""
        return self.loaded[seed] if seed in self.loaded else self.source.load(seed)


def embed_data(experiments: Sequence[Experiment]) -> list[Experiment]:
    """The same experiments, with their data in them, each data set once."""
    loaded: dict[tuple[str, int], Dataset] = {}
    known: dict[str, Dataset] = {}
    for exp in experiments:
        key = repr(exp.data), exp.seed_for("split")
        if not exp.data.own and key not in loaded:  # what came from Python travels by itself
            data = exp.data.made.load(key[1])
            loaded[key] = known.setdefault(data.fingerprint(), data)
    return [
        exp if exp.data.own else _embedded(exp, loaded[repr(exp.data), exp.seed_for("split")]) for exp in experiments
    ]


def _embedded(exp: Experiment, data: Dataset) -> Experiment:
    made = EmbeddedDataset(exp.data.made, {exp.seed_for("split"): data})
    return exp.model_copy(update={"data": replace(exp.data, made=made)})
