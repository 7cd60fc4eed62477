"""Test sets of clients, and training samples held out for a search."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedarena.config.errors import BadValue
from fedarena.config.seeds import stream
from fedarena.data.dataset import Dataset, Partition, Rows
from fedarena.data.stratification import blocks_in_time, whole_groups

How = Literal["same_distribution", "balanced"]

PART = 5  # a client's test set has a fifth as many samples as its training set: "80 % fewer images"


def client_tests(
    data: Dataset, partition: Partition, rng: np.random.Generator, how: How = "same_distribution"
) -> tuple[Sequence[Rows], tuple[str, ...]]:
    """Return test samples for each client, sampled from the global test set with the client's classes, and notes.

    `same_distribution`: for each class, a fifth of the number of training samples. `balanced`: equally many of each class.
    A sample may be in the test sets of many clients, once in each; a test set is shorter if samples run
    out. Natural clients have their own test samples. Fewer than five training samples give an empty test set.
    """
    if partition.client_tests:
        return partition.client_tests, ()
    if data.task == "next_symbol":
        sizes = [np.array([len(rows) // PART]) for rows in partition.clients]
        return _draw([partition.test], sizes, rng)
    counts = [np.bincount(data.strata[rows], minlength=data.stratum_count) for rows in partition.clients]
    quotas = [_fifth(n, rng) if how == "same_distribution" else _even(n) for n in counts]
    pools = [partition.test[data.strata[partition.test] == y] for y in range(data.stratum_count)]
    return _draw(pools, quotas, rng)


def hold_out(
    partition: Partition, share: float, seed: int, data: Dataset | None = None
) -> tuple[Partition, list[Rows]]:
    """Hold out a share of every client's training samples for tuning, and return the partition and the held-out samples.

    If samples of `data` have groups or times, whole groups or the latest samples of all clients are held out.
    """
    if not 0 < share < 1:
        raise BadValue(f"a share of {share} cannot be held out", remedy="give 0 < share < 1", where="share")
    if data is not None and (data.group is not None or data.time is not None):
        return hold_out_together(partition, share, stream(seed, "valid"), data)
    kept, held = [], []
    for k, rows in enumerate(partition.clients):
        size = int(round(share * len(rows), 9))
        out, rest = np.split(stream(seed, "valid", k).permutation(rows), [size])
        kept.append(np.sort(rest))
        held.append(np.sort(out))
    return replace(partition, clients=kept), held


def hold_out_together(
    partition: Partition, share: float, rng: np.random.Generator, data: Dataset
) -> tuple[Partition, list[Rows]]:
    """Hold out samples of all clients at once: the same groups, or the samples after the same time, on all clients."""
    rows, sizes, shares = partition.train_rows, partition.sizes, np.array([1 - share, share])
    if data.time is not None:
        part = blocks_in_time(data.time[rows], shares)
    else:
        assert data.group is not None
        client = np.repeat(np.arange(len(sizes)), sizes)
        part = whole_groups(client, data.group[rows], shares, rng)
    taken = np.zeros(len(data.x), bool)
    taken[rows[part == 1]] = True
    kept = [own[~taken[own]] for own in partition.clients]
    return replace(partition, clients=kept), [own[taken[own]] for own in partition.clients]


def _fifth(counts: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """Return a fifth of each count, rounded by the largest remainders, with ties broken at random."""
    quota = counts // PART
    left = counts.sum() // PART - quota.sum()
    quota[np.lexsort((rng.random(len(counts)), -(counts % PART)))[:left]] += 1
    return quota


def _even(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    held = (counts > 0).astype(np.int64)
    return held * int(counts.sum() // PART // held.sum()) if held.any() else held


def _draw(
    pools: list[Rows], quotas: Iterable[NDArray[np.int64]], rng: np.random.Generator
) -> tuple[Sequence[Rows], tuple[str, ...]]:
    """Sample the quota of each pool for each client; if a pool is too small, use all of it and add a note."""
    stock = np.array([len(pool) for pool in pools])
    tests, short = [], []
    for quota in quotas:
        reachable = np.minimum(quota, stock)
        short.append(int((quota - reachable).sum()))
        wanted = np.flatnonzero(reachable)
        drawn = [rng.choice(pools[y], reachable[y], replace=False) for y in wanted]
        tests.append(np.sort(np.concatenate([*drawn, np.empty(0, dtype=np.int64)])))
    cut = np.count_nonzero(short)
    note = f"{cut} client test sets are {sum(short)} samples short in all: too few test samples of a class"
    return tests, (note,) if cut else ()
