"""What the partitions share.

The rows of a client are sorted, whatever the procedure: their order in training is drawn by the stream `shuffle`.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from fedarena.config.errors import PartitionImpossible
from fedarena.data.dataset import Dataset, Partition, Rows


def impossible(what: str, remedy: str, setting: str = "") -> PartitionImpossible:
    """The error for a partition that these rows and clients cannot give."""
    return PartitionImpossible(what, remedy=remedy, where=f"partition.{setting}" if setting else "partition")


def need_rows(rows: int, clients: int, each: int = 1) -> None:
    """Refuse, before any draw, what would leave a client with fewer than `each` rows."""
    if clients < 1:
        raise impossible("the number of clients is not given", "set clients, e.g. clients = 10")
    if rows < clients * each:
        wish = f"{each} rows for each of " if each > 1 else ""
        remedy = f"use at most {rows // each} clients" if rows >= each else f"there must be {each} rows at least"
        raise impossible(f"{rows} rows are too few for {wish}{clients} clients", remedy)


def class_rows(data: Dataset, rng: np.random.Generator) -> dict[int, Rows]:
    """Training rows of every class that has any, labels ascending, each class in random order."""
    labels = data.train_labels
    return {int(y): rng.permutation(np.flatnonzero(labels == y)) for y in np.unique(labels)}


def grouped(rows: Rows, owner: NDArray[np.int64], clients: int) -> list[Rows]:
    """The rows of each client, given the client of each row."""
    order = np.argsort(owner, kind="stable")
    return np.split(rows[order], np.cumsum(np.bincount(owner, minlength=clients))[:-1])


def dealt_round(pools: Iterable[Rows], holders: Iterable[NDArray[np.int64]], clients: int) -> list[Rows]:
    """Deal the rows of each class round the clients that hold it, beginning after the client served last."""
    parts: list[list[Rows]] = [[] for _ in range(clients)]
    last = -1
    for pool, who in zip(pools, holders, strict=True):
        if len(who) > len(pool):
            raise impossible(f"{len(who)} clients hold a class of {len(pool)} rows", "use fewer clients")
        if len(who):
            who = np.roll(who, -np.searchsorted(who, last, side="right"))
            for i, k in enumerate(who):
                parts[k].append(pool[i :: len(who)])
            last = who[(len(pool) - 1) % len(who)]
    return [np.concatenate(part) for part in parts]


def finished(data: Dataset, parts: Iterable[Rows], test: Rows | None = None, notes: tuple[str, ...] = ()) -> Partition:
    """The partition of these parts; whatever is neither dealt nor held back for testing is counted as unused."""
    clients = [np.sort(part).astype(np.int64, copy=False) for part in parts]
    empty = sum(len(rows) == 0 for rows in clients)
    if empty:
        raise impossible(f"{empty} of {len(clients)} clients would own no rows", "use fewer clients")
    test = data.test_rows if test is None else np.sort(test)
    unused = len(data.x) - len(test) - sum(map(len, clients))
    return Partition(clients, test, unused=unused, notes=notes)
