"""What every partition promises, as checks that run: `fedarena check NAME` and our own tests call them."""

from __future__ import annotations

import numpy as np

from fedarena.config.errors import PartitionImpossible
from fedarena.data.dataset import Dataset, Partition, Partitioner

CLIENTS = 10


def check_partition(partitioner: Partitioner) -> list[str]:
    """The truths that hold for this partition; the first that does not is an AssertionError with its reason."""
    data = _example()
    before = data.fingerprint()
    partition = _split(partitioner, data, seed=0)
    truths = [
        _arrays(partition, data),
        _disjoint(partition),
        _complete(partition, data),
        _tests_apart(partition),
        _companions(partition),
        _seeded(partitioner, partition, data),
        _refusal(partitioner, data),
    ]
    _hold(data.fingerprint() == before, "split changed the data it was given")
    return [*truths, "the data is left as it was"]


def _example() -> Dataset:
    """3000 training and 600 test rows of 10 classes and 10 owners: every partition is possible."""
    rng = np.random.default_rng(0)
    y = np.concatenate([rng.permutation(np.arange(n) % 10) for n in (3000, 600)])
    x = rng.integers(0, 256, (3600, 1, 2, 2), dtype=np.uint8)
    return Dataset("example", x, y, n_train=3000, classes=10, owner=np.arange(3600) % CLIENTS)


def _split(partitioner: Partitioner, data: Dataset, seed: int) -> Partition:
    return partitioner.split(data, CLIENTS, np.random.default_rng(seed))


def _hold(condition: bool, otherwise: str) -> None:
    if not condition:
        raise AssertionError(otherwise)


def _arrays(partition: Partition, data: Dataset) -> str:
    _hold(len(partition.clients) == CLIENTS, f"{CLIENTS} clients were asked for, {len(partition.clients)} came")
    for k, rows in enumerate(partition.clients):
        _hold(rows.dtype == np.int64 and rows.ndim == 1, f"rows of client {k} are no array of int64")
        _hold(len(rows) > 0, f"client {k} owns no rows")
        _hold(rows.min() >= 0 and rows.max() < len(data.x), f"client {k} owns rows that do not exist")
    return "every client owns rows that exist"


def _disjoint(partition: Partition) -> str:
    rows, times = np.unique(np.concatenate(partition.clients), return_counts=True)
    _hold(times.max() == 1, f"row {rows[times.argmax()]} was dealt {times.max()} times")
    return "no row is dealt twice"


def _complete(partition: Partition, data: Dataset) -> str:
    missing = len(data.x) - len(partition.test) - int(partition.sizes.sum())
    _hold(missing == partition.unused, f"{missing} training rows have no owner, but unused = {partition.unused}")
    return "every training row has an owner or is counted as unused"


def _tests_apart(partition: Partition) -> str:
    training = np.concatenate(partition.clients)
    tests = np.concatenate([partition.test, *partition.client_tests])
    _hold(not np.isin(tests, training).any(), "a row serves for training and for testing")
    return "training and test rows are apart"


def _companions(partition: Partition) -> str:
    for name in ("client_tests", "names"):
        _hold(len(getattr(partition, name)) in (0, CLIENTS), f"{name} has not one entry a client")
    noise = partition.noise
    fits = noise is None or (noise.shape == (CLIENTS,) and bool((noise >= 0).all()))
    _hold(fits, "noise has not one standard deviation a client")
    return "test sets, names and noise, where given, are one a client"


def _seeded(partitioner: Partitioner, partition: Partition, data: Dataset) -> str:
    again = _split(partitioner, data, seed=0)
    _hold(again.fingerprint() == partition.fingerprint(), "the same seed gave another split: use rng alone")
    if not getattr(partitioner, "seeded", True):
        return "the split is given by the data, whatever the seed"
    other = _split(partitioner, data, seed=1)
    _hold(other.fingerprint() != partition.fingerprint(), "another seed gave the same split")
    return "the same seed gives the same split, another seed another one"


def _refusal(partitioner: Partitioner, data: Dataset) -> str:
    try:
        partitioner.split(data, len(data.x) + 1, np.random.default_rng(0))
    except PartitionImpossible:
        return "more clients than rows are refused"
    raise AssertionError("more clients than rows were not refused with PartitionImpossible")
