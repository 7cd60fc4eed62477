"""Cross-validation of a federation: every client's rows in folds, one of them held out on all clients at once.

The rows are dealt to clients once; then each client deals its own rows to the folds, class by class. So a client is the
same kind of client whichever fold is held out, every fold is a small copy of the whole federation, and what a client
held out is its own test set. Every row is in exactly one fold of exactly one client.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np

from fedarena.data.dataset import Dataset, Partition, Rows
from fedarena.errors import PartitionImpossible


def has_own_folds(partitioner: Any) -> bool:
    """Some partitions say themselves how folds are made (Nilsson et al. 2018)."""
    own = {f.name for f in fields(partitioner)} if is_dataclass(partitioner) else set()
    return {"fold", "folds"} <= own


def split_in_folds(
    partitioner: Any, data: Dataset, clients: int, folds: int, fold: int, rng: np.random.Generator
) -> Partition:
    """Any partition of training and test rows together, with fold `fold` of `folds` held out for testing."""
    if has_own_folds(partitioner):
        own: Partition = replace(partitioner, folds=folds, fold=fold).split(data, clients, rng)
        return own
    dealt: Partition = partitioner.split(replace(data, n_train=len(data.x)), clients, rng)
    fold_of = np.full(len(data.x), -1)
    served = 0  # folds take turns over all clients, so that their sizes differ by one row at most
    for rows in dealt.clients:
        mixed = rng.permutation(rows)
        if data.y.ndim == 1:
            mixed = mixed[np.argsort(data.y[mixed], kind="stable")]
        fold_of[mixed] = (served + np.arange(len(mixed))) % folds
        served += len(mixed)
    held = [rows[fold_of[rows] == fold] for rows in dealt.clients]
    kept: list[Rows] = [rows[fold_of[rows] != fold] for rows in dealt.clients]
    if 2 * folds > served or not any(map(len, held)) or not any(map(len, kept)):
        raise PartitionImpossible(f"{served} rows make no {folds} folds", remedy="use fewer folds", where="folds")
    return replace(dealt, clients=kept, test=np.sort(np.concatenate(held)), client_tests=held)
