"""The costs of one client in a simulation, and of one update on a server, measured separately."""

from __future__ import annotations

import contextlib
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from fedarena.bench.designs import OURS
from fedarena.bench.machine import parameters
from fedarena.bench.runner import run_interleaved
from fedarena.bench.table_format import Row
from fedarena.bench.workloads import WORKLOADS
from fedarena.runtimes.cleanup import temporary_folder

CLIENTS_OF = ("W5", "W1", "W2")  # workloads with light, medium and heavy clients
VECTORS = (10**4, 10**5, 10**6, 10**7)  # parameters of a model
POPULATIONS = (10**3, 10**4, 10**5, 10**6, 10**7)
COHORT = 1000  # clients sampled from them
CROWD = 1000  # clients of a federation whose checkpoint is measured for its model
FRESH = 2**26  # bytes of all vectors: more than most caches hold, as if they came from a network
LEAST = 0.2  # seconds that a timing takes

Function = Callable[[], object]


def seconds(do: Function, repetitions: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the seconds of one call: the median over repetitions of several calls each, after one that warms up."""
    do()
    found = []
    for _ in range(repetitions):
        end, began, calls = time.perf_counter() + LEAST, clock(), 0
        while not calls or time.perf_counter() < end:
            do()
            calls += 1
        found.append((clock() - began) / calls)
    return statistics.median(found)


def of_clients(repetitions: int) -> list[Row]:
    """Measure a client's part in a round of the engine: sampling, training, aggregation, checkpoint."""
    from fedarena.runtimes.worker_count import usable_cores

    workloads = [WORKLOADS[name] for name in CLIENTS_OF]
    timings = run_interleaved([(workload, OURS) for workload in workloads], repetitions)
    return [
        _row(
            "client",
            model=workload.model["name"],
            parameters=parameters(workload),
            rows=workload.samples // workload.cohort,
            clients=workload.cohort,
            seconds_per_round=timing.median,
            core_seconds=timing.median * usable_cores() / workload.cohort,
            bytes_down=4 * parameters(workload),
            bytes_up=4 * parameters(workload) + 8,  # and its number of rows
            memory_mb=timing.megabytes,
        )
        for workload, timing in zip(workloads, timings, strict=True)
    ]


def of_mean(repetitions: int, sizes: Sequence[int] = VECTORS) -> list[Row]:
    """Measure how many updates a second one core adds to the weighted mean, in double precision."""
    rows = []
    for size in sizes:
        took = seconds(_adding(size), repetitions, time.process_time)
        rows.append(_row("mean", parameters=size, seconds=took, answers_per_second=1 / took))
    return rows


def _adding(size: int) -> Function:
    from fedarena.algorithms.base import Step
    from fedarena.models.pytree import WeightedMean

    rng, mean = np.random.default_rng(0), WeightedMean()
    vectors = [Step(rng.standard_normal(size, np.float32)) for _ in range(max(FRESH // (4 * size), 2))]
    numbers = itertools.count()

    def add() -> None:
        number = next(numbers)
        mean.add(vectors[number % len(vectors)], 10.0 + number % 7)

    return add


def of_checkpoint(
    repetitions: int, sizes: Sequence[int] = VECTORS, populations: Sequence[int] = POPULATIONS
) -> list[Row]:
    """Measure what the server writes after a round: its model, and the last accuracy of every client."""
    rows = []
    shapes = [*((size, CROWD) for size in sizes), *((sizes[0], clients) for clients in populations if clients > CROWD)]
    for size, clients in shapes:
        with temporary_folder() as folder:
            with _saving(folder, size, clients) as save:
                took = seconds(save, repetitions)
            written = sum(file.stat().st_size for file in folder.glob("server-*"))
        rows.append(_row("checkpoint", parameters=size, clients=clients, seconds=took, bytes=written))
    return rows


@contextlib.contextmanager
def _saving(folder: Path, size: int, clients: int) -> Iterator[Function]:
    from fedarena.algorithms.base import Model
    from fedarena.algorithms.fedavg import FedAvg
    from fedarena.engine.checkpoint import CheckpointStore
    from fedarena.engine.checkpoint_files import Snapshot
    from fedarena.models.task import Buffers

    store, nothing = CheckpointStore(folder, FedAvg()), Buffers(np.empty(0, np.float32), np.empty(0, np.int64))
    last = Snapshot(0, Model(np.zeros(size, np.float32)), nothing, {}, np.zeros(clients))
    numbers = itertools.count(1)

    def save() -> None:
        number = next(numbers)
        store.save(replace(last, round=number), {"round": number})

    yield save
    store.close()


def of_memory(repetitions: int, sizes: Sequence[int] = VECTORS[:-1]) -> list[Row]:
    """Measure writing and reading the file with a client's state, such as the control variate of SCAFFOLD."""
    from fedarena.algorithms.scaffold import Scaffold
    from fedarena.engine.checkpoint import CheckpointStore
    from fedarena.engine.client import ClientState

    rows = []
    for size in sizes:
        with temporary_folder() as folder:
            store, state = CheckpointStore(folder, Scaffold()), ClientState(np.zeros(size, np.float32))
            write = seconds(partial(store.save_client_state, 0, 1, state), repetitions)
            read = seconds(partial(store.client_state, 0), repetitions)
            written = sum(file.stat().st_size for file in (folder / "clients").iterdir())
            store.close()
        rows.append(_row("memory", parameters=size, seconds_write=write, seconds_read=read, bytes=written))
    return rows


def of_draw(repetitions: int, populations: Sequence[int] = POPULATIONS) -> list[Row]:
    """Measure the selection of clients: which are available, and a random sample of them."""
    return [
        _row("draw", clients=clients, seconds=seconds(do, repetitions, time.process_time), bytes=size)
        for clients in populations
        for do, size in [_sampling(clients)]
    ]


def _sampling(clients: int) -> tuple[Function, int]:
    """Return a function that samples clients, and the bytes of what it stores about all clients."""
    from fedarena.algorithms.fedavg import FedAvg
    from fedarena.engine.availability import DAY, HOUR, join

    rng = np.random.default_rng(0)
    starts = rng.uniform(0, DAY, clients)
    known = join(clients, np.arange(clients), starts, starts + 8 * HOUR, DAY)
    people, sizes, clocks = np.arange(clients), np.full(clients, 10), itertools.count()

    def sample() -> object:
        here = known.is_available(float(next(clocks)))[people]
        there, of = people[here], sizes[here]
        return np.sort(there[FedAvg().select(of, min(COHORT, len(there)), rng)])

    arrays = (known.clients, known.starts, known.ends, known.is_available(0.0), people, sizes)
    return sample, sum(array.nbytes for array in arrays)


def _row(part: str, **values: object) -> Row:
    return {"work": "scale", "part": part, **values}
