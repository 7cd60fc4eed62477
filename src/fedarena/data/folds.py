"""Hold out samples for testing on all clients at once: by folds within each client, or by folds of the pooled samples.

Without a fold seed, the samples are partitioned among clients once, and each client assigns its own samples to folds, class
by class. With a fold seed, the pooled samples are assigned to folds by that seed alone, and then partitioned among clients:
every sample is tested exactly once over the folds of one fold seed, even if the partitions differ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedarena.config.errors import BadValue, PartitionImpossible
from fedarena.config.seeds import stream
from fedarena.data.dataset import Dataset, Partition, Rows
from fedarena.data.stratification import blocks_in_time, cells_of, spread_over, stratified_order, whole_groups

Mask = NDArray[np.bool_]


def has_own_folds(partitioner: Any) -> bool:
    """Return whether a partition makes its own folds (Nilsson et al. 2018)."""
    own = {f.name for f in fields(partitioner)} if is_dataclass(partitioner) else set()
    return {"fold", "folds"} <= own


def split_in_folds(
    partitioner: Any, data: Dataset, clients: int, folds: int, fold: int, rng: np.random.Generator
) -> Partition:
    """Partition training and test samples together, and hold out fold `fold` of `folds` for testing."""
    if has_own_folds(partitioner):
        own: Partition = replace(partitioner, folds=folds, fold=fold).split(data, clients, rng)
        return own
    whole: Partition = partitioner.split(replace(data, n_train=len(data.x)), clients, rng)
    fold_of = np.full(len(data.x), -1)
    assigned = 0  # folds take turns over all clients, so that their sizes differ by at most one sample
    for rows in whole.clients:
        mixed = rng.permutation(rows)
        mixed = mixed[np.argsort(data.strata[mixed], kind="stable")]
        fold_of[mixed] = (assigned + np.arange(len(mixed))) % folds
        assigned += len(mixed)
    held = [rows[fold_of[rows] == fold] for rows in whole.clients]
    kept: list[Rows] = [rows[fold_of[rows] != fold] for rows in whole.clients]
    if 2 * folds > assigned or not any(map(len, held)) or not any(map(len, kept)):
        raise PartitionImpossible(
            f"{assigned} samples are too few for {folds} folds", remedy="use fewer folds", where="folds"
        )
    return replace(whole, clients=kept, test=np.sort(np.concatenate(held)), client_tests=held)


class HeldOut(NamedTuple):
    """The samples that are trained on and those that are tested, as masks over the pooled samples."""

    train: Mask
    test: Mask
    notes: tuple[str, ...] = ()


def split_pooled(partitioner: Any, data: Dataset, clients: int, held: HeldOut, rng: np.random.Generator) -> Partition:
    """Partition the pooled samples; each client trains on its training samples and tests on its test samples."""
    drawn: Partition = partitioner.split(replace(data, n_train=len(data.x)), clients, rng)
    kept = [rows[held.train[rows]] for rows in drawn.clients]
    tests = [rows[held.test[rows]] for rows in drawn.clients]
    idle = sum(len(rows) == 0 for rows in kept)
    if idle == len(kept):
        raise PartitionImpossible(
            "no client has a training sample in this split", remedy="use fewer folds or fewer clients", where="folds"
        )
    notes = (
        [f"{idle} of {len(kept)} clients have no training samples in this split and are not selected"] if idle else []
    )
    return replace(
        drawn,
        clients=kept,
        test=np.flatnonzero(held.test),
        client_tests=tests,
        unused=int(held.train.sum()) - sum(map(len, kept)),
        notes=(*drawn.notes, *held.notes, *notes),
    )


def hold_out_fold(data: Dataset, partitioner: Any, seed: int, folds: int, fold: int) -> HeldOut:
    """Hold out one of the folds that `seed` assigns to the pooled samples.

    If samples have times, fold f is the f-th later block of them, and all earlier samples are for training.
    """
    if data.time is not None:
        block = blocks_in_time(data.time, np.full(folds + 1, 1 / (folds + 1)))
        return HeldOut(block <= fold, block == fold + 1)
    if 2 * folds > len(data.x):
        raise PartitionImpossible(
            f"{len(data.x)} samples are too few for {folds} folds", remedy="use fewer folds", where="folds"
        )
    rng, classes, owner = stream(seed, "folds"), data.strata, natural_owners(data, partitioner)
    if data.group is not None:
        test = whole_groups(cells_of(classes, owner), data.group, np.full(folds, 1 / folds), rng) == fold
    else:
        test = np.zeros(len(data.x), bool)
        test[stratified_order(classes, owner, rng)[fold::folds]] = True
    return HeldOut(~test, test, _rare(data, folds))


def hold_out_share(data: Dataset, partitioner: Any, seed: int) -> HeldOut:
    """Split the pooled samples at random by `seed`, with as many test samples as the data set itself has.

    Every natural client, or else every class, has a training sample, unless whole groups prevent it.
    """
    if data.time is not None:
        raise BadValue(
            "samples with times cannot be split at random: the latest are the test samples",
            remedy="remove fold_seed, or add folds and fold for forward splits",
            where="fold_seed",
        )
    count = len(data.x) - data.n_train
    share = count / len(data.x)
    rng, classes, owner = stream(seed, "folds"), data.strata, natural_owners(data, partitioner)
    if data.group is not None:
        test = whole_groups(cells_of(classes, owner), data.group, np.array([1 - share, share]), rng) == 1
    else:
        test = np.zeros(len(data.x), bool)
        strata = classes if owner is None else owner
        test[spread_over(stratified_order(classes, owner, rng), strata, count)] = True
    return HeldOut(~test, test)


def natural_owners(data: Dataset, partitioner: Any) -> Rows | None:
    """Return the natural client of every sample if the partition uses them (it then has a method `owners`)."""
    owners: Callable[[Dataset], Rows] | None = getattr(partitioner, "owners", None)
    return None if owners is None else owners(data)


def _rare(data: Dataset, folds: int) -> tuple[str, ...]:
    counts = np.bincount(data.strata)
    rare = int(((counts > 0) & (counts < folds)).sum())
    return (f"classes with fewer samples than folds, which are not tested in every fold: {rare}",) if rare else ()
