"""Functions that partitions share.

The rows of a client are always sorted: the stream `shuffle` determines their order in training.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from fedarena.config.errors import PartitionImpossible
from fedarena.data.dataset import Dataset, Partition, Rows


def impossible(what: str, remedy: str, setting: str = "") -> PartitionImpossible:
    """Return the error for a partition that is not possible for these samples and clients."""
    return PartitionImpossible(what, remedy=remedy, where=f"partition.{setting}" if setting else "partition")


def need_rows(rows: int, clients: int, each: int = 1) -> None:
    """Raise `PartitionImpossible` if a client would have fewer than `each` rows."""
    if clients < 1:
        raise impossible("the number of clients is not given", "set clients, e.g. clients = 10")
    if rows < clients * each:
        amount = f"{each} rows for each of " if each > 1 else ""
        remedy = f"use at most {rows // each} clients" if rows >= each else f"give at least {each} rows"
        raise impossible(f"{rows} rows are too few for {amount}{clients} clients", remedy)


def class_rows(data: Dataset, rng: np.random.Generator) -> dict[int, Rows]:
    """Return the training rows of every class that occurs, by ascending label, each in random order."""
    labels = data.train_labels
    return {int(y): rng.permutation(np.flatnonzero(labels == y)) for y in np.unique(labels)}


def group_by_client(rows: Rows, owner: NDArray[np.int64], clients: int) -> list[Rows]:
    """Return the rows of each client, given the client of each row."""
    order = np.argsort(owner, kind="stable")
    return np.split(rows[order], np.cumsum(np.bincount(owner, minlength=clients))[:-1])


def assign_in_turns(pools: Iterable[Rows], holders: Iterable[NDArray[np.int64]], clients: int) -> list[Rows]:
    """Assign the rows of each class in turns to the clients that have it, starting after the client that was last."""
    parts: list[list[Rows]] = [[] for _ in range(clients)]
    last = -1
    for pool, clients_of_class in zip(pools, holders, strict=True):
        if len(clients_of_class) > len(pool):
            raise impossible(f"{len(clients_of_class)} clients share a class of {len(pool)} rows", "use fewer clients")
        if len(clients_of_class):
            turns = np.roll(clients_of_class, -np.searchsorted(clients_of_class, last, side="right"))
            for i, k in enumerate(turns):
                parts[k].append(pool[i :: len(clients_of_class)])
            last = turns[(len(pool) - 1) % len(clients_of_class)]
    return [np.concatenate(part) for part in parts]


def count_with_several(labels: NDArray[np.int64], parts: Iterable[Rows], most: int) -> int:
    """Return how many clients hold rows of more than `most` classes."""
    return sum(len(np.unique(labels[part])) > most for part in parts)


def finished(data: Dataset, parts: Iterable[Rows], test: Rows | None = None, notes: tuple[str, ...] = ()) -> Partition:
    """Return the partition with these parts; rows outside the parts and the test set count as unused."""
    clients = [np.sort(part).astype(np.int64, copy=False) for part in parts]
    empty = sum(len(rows) == 0 for rows in clients)
    if empty:
        raise impossible(f"{empty} of {len(clients)} clients would have no rows", "use fewer clients")
    test = data.test_rows if test is None else np.sort(test)
    rows = len(data.x) if data.n_test is None else data.n_train + data.n_test
    unused = rows - len(test) - sum(map(len, clients))
    return Partition(clients, test, unused=unused, notes=notes)
