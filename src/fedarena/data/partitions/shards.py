"""Partitions by shards of the rows sorted by label: clients of equal size with few classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from fedarena.config.registry import register
from fedarena.data.dataset import Dataset, Partition, Rows
from fedarena.data.partitions.assignment import finished, impossible, need_rows

ManyRows = NDArray[np.int64]  # row numbers in two or more dimensions


def sorted_shards(
    labels: NDArray[np.int64], count: int, size: int, shuffle: bool, rng: np.random.Generator
) -> ManyRows:
    """Return `count` shards of `size` rows in the order of labels, as a matrix.

    Surplus rows are dropped at random before sorting; dropped after it, all would be of the last class.
    """
    kept = rng.permutation(len(labels))[: count * size]
    if not shuffle:
        kept.sort()
    return kept[np.argsort(labels[kept], kind="stable")].reshape(count, size)


@register("partition", "shards", paper="McMahan et al. 2017, arXiv 1602.05629")
@dataclass(frozen=True)
class Shards:
    """Rows sorted by label and cut into shards, a few random shards per client: about that many classes each.

    A shard on the border of two classes has both, so two shards can have three or four labels.
    """

    shards_per_client: Annotated[int, Ge(1)] = 2
    shard_size: Annotated[int, Ge(1)] | None = None  # none: as large as possible, 300 for MNIST
    shuffle_within: bool = True  # shuffle the rows of a class before cutting, or leave them in order

    def split(self, data: Dataset, clients: int, rng: np.random.Generator) -> Partition:
        need_rows(data.n_train, clients, self.shards_per_client * (self.shard_size or 1))
        count = clients * self.shards_per_client
        size = self.shard_size or data.n_train // count
        shards = sorted_shards(data.train_labels, count, size, self.shuffle_within, rng)
        return finished(data, shards[rng.permutation(count)].reshape(clients, -1))


def _fold_rows(data: Dataset, folds: int, fold: int, least: int, rng: np.random.Generator) -> ManyRows:
    """Pool training and test rows, shuffle them and cut them into equal folds of at least `least` rows, as a matrix."""
    if fold >= folds:
        raise impossible(f"there is no fold {fold} of {folds}", f"use 0 to {folds - 1}", "fold")
    size = len(data.x) // folds
    if size < least:
        raise impossible(f"folds of {size} rows are too small: {least} are needed", "use fewer clients", "folds")
    return rng.permutation(len(data.x))[: size * folds].reshape(folds, size)


def _hold_out(data: Dataset, assigned: ManyRows, pool: ManyRows, fold: int) -> Partition:
    """Hold out one fold as the test set; `assigned` has the rows of every fold and client."""
    training = np.delete(assigned, fold, axis=0).swapaxes(0, 1)
    return finished(data, [rows.ravel() for rows in training], test=pool[fold])


@register("partition", "nilsson_iid", paper="Nilsson et al. 2018, doi 10.1145/3286490.3286559")
@dataclass(frozen=True)
class NilssonIid:
    """Train and test rows pooled and cut into folds; each client has an equal, random part of every fold.

    `fold` is held out, as a whole, for testing. The folds of one seed do not depend on which is held out.
    """

    folds: Annotated[int, Ge(2)] = 5
    fold: Annotated[int, Ge(0)] = 0

    def split(self, data: Dataset, clients: int, rng: np.random.Generator) -> Partition:
        need_rows(len(data.x), clients)
        pool = _fold_rows(data, self.folds, self.fold, clients, rng)
        each = pool.shape[1] // clients
        assigned = pool[:, : clients * each].reshape(self.folds, clients, each)
        return _hold_out(data, assigned, pool, self.fold)


@register("partition", "nilsson_noniid", paper="Nilsson et al. 2018, doi 10.1145/3286490.3286559")
@dataclass(frozen=True)
class NilssonNonIid:
    """Train and test rows pooled and cut into folds, each sorted by label; clients have the same two shards of each.

    `fold` is held out, as a whole, for testing. The folds of one seed do not depend on which is held out.
    """

    folds: Annotated[int, Ge(2)] = 5
    fold: Annotated[int, Ge(0)] = 0

    def split(self, data: Dataset, clients: int, rng: np.random.Generator) -> Partition:
        need_rows(len(data.x), clients)
        _ = data.train_labels  # raises an error for rows with several labels
        pool = _fold_rows(data, self.folds, self.fold, 2 * clients, rng)
        shards = np.stack([self._shards(data, rows, 2 * clients) for rows in pool])
        positions = rng.permutation(2 * clients).reshape(clients, 2)  # the same for all folds
        return _hold_out(data, shards[:, positions], pool, self.fold)

    @staticmethod
    def _shards(data: Dataset, fold: Rows, count: int) -> ManyRows:
        kept = fold[: len(fold) // count * count]  # the fold is shuffled, so surplus rows are dropped at random
        return kept[np.argsort(data.strata[kept], kind="stable")].reshape(count, -1)
