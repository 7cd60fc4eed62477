"""The contract of every partition as checks, for `fedarena check NAME` and for the tests."""

from __future__ import annotations

import numpy as np

from fedarena.config.errors import ContractBroken, PartitionImpossible
from fedarena.data.dataset import Dataset, Partition, Partitioner

CLIENTS = 10


def check_partition(partitioner: Partitioner) -> list[str]:
    """Return the statements that hold for this partition; raise `ContractBroken` with the first that does not."""
    data = _example()
    before = data.fingerprint()
    partition = _split(partitioner, data, seed=0)
    statements = [
        _check_rows(partition, data),
        _check_disjoint(partition),
        _check_complete(partition, data),
        _check_tests(partition),
        _check_lengths(partition),
        _check_seeds(partitioner, partition, data),
        _check_refusal(partitioner, data),
    ]
    require(data.fingerprint() == before, "split changed the data it was given")
    return [*statements, "the data is not changed"]


def _example() -> Dataset:
    """Return 3000 training and 600 test rows of 10 classes and 10 owners, for which every partition is possible."""
    rng = np.random.default_rng(0)
    y = np.concatenate([rng.permutation(np.arange(n) % 10) for n in (3000, 600)])
    x = rng.integers(0, 256, (3600, 1, 2, 2), dtype=np.uint8)
    return Dataset("example", x, y, n_train=3000, classes=10, owner=np.arange(3600) % CLIENTS)


def _split(partitioner: Partitioner, data: Dataset, seed: int) -> Partition:
    return partitioner.split(data, CLIENTS, np.random.default_rng(seed))


def require(condition: bool, problem: str) -> None:
    """Raise `ContractBroken` with the problem if a condition of a contract does not hold."""
    if not condition:
        raise ContractBroken(problem, remedy="change the component, and check it again: `fedarena check NAME`")


def _check_rows(partition: Partition, data: Dataset) -> str:
    count = len(partition.clients)
    require(count == CLIENTS, f"split returned {count} clients instead of {CLIENTS}")
    for k, rows in enumerate(partition.clients):
        require(rows.dtype == np.int64 and rows.ndim == 1, f"the rows of client {k} are not an array of int64")
        require(len(rows) > 0, f"client {k} has no rows")
        require(rows.min() >= 0 and rows.max() < len(data.x), f"client {k} has rows that do not exist")
    return "every client has rows that exist"


def _check_disjoint(partition: Partition) -> str:
    rows, times = np.unique(np.concatenate(partition.clients), return_counts=True)
    require(times.max() == 1, f"row {rows[times.argmax()]} was assigned {times.max()} times")
    return "no row is assigned twice"


def _check_complete(partition: Partition, data: Dataset) -> str:
    missing = len(data.x) - len(partition.test) - int(partition.sizes.sum())
    require(missing == partition.unused, f"{missing} training rows have no client, but unused = {partition.unused}")
    return "every training row has a client or is counted as unused"


def _check_tests(partition: Partition) -> str:
    training = np.concatenate(partition.clients)
    tests = np.concatenate([partition.test, *partition.client_tests])
    require(not np.isin(tests, training).any(), "a row is used for training and for testing")
    return "training and test rows are disjoint"


def _check_lengths(partition: Partition) -> str:
    for name in ("client_tests", "names"):
        require(len(getattr(partition, name)) in (0, CLIENTS), f"{name} does not have one entry per client")
    noise = partition.noise
    fits = noise is None or (noise.shape == (CLIENTS,) and bool((noise >= 0).all()))
    require(fits, "noise does not have one standard deviation per client")
    return "test sets, names and noise, where given, have one entry per client"


def _check_seeds(partitioner: Partitioner, partition: Partition, data: Dataset) -> str:
    again = _split(partitioner, data, seed=0)
    require(again.fingerprint() == partition.fingerprint(), "the same seed gave another split: use rng alone")
    if not getattr(partitioner, "seeded", True):
        return "the split is given by the data and does not depend on the seed"
    other = _split(partitioner, data, seed=1)
    require(other.fingerprint() != partition.fingerprint(), "another seed gave the same split")
    return "the same seed gives the same split, another seed another one"


def _check_refusal(partitioner: Partitioner, data: Dataset) -> str:
    refused = False
    try:
        partitioner.split(data, len(data.x) + 1, np.random.default_rng(0))
    except PartitionImpossible:
        refused = True
    require(refused, "more clients than rows were not refused with PartitionImpossible")
    return "more clients than rows are refused"
