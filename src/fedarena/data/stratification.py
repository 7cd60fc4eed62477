"""Splits of samples that preserve the proportions of classes and clients, whole groups, or the order in time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedarena.config.errors import PartitionImpossible
from fedarena.data.dataset import Rows


def cells_of(classes: Rows, owner: Rows | None) -> Rows:
    """Number the combinations of owner and class that occur, and return the number of every sample."""
    codes = classes if owner is None else (owner - owner.min()) * (int(classes.max()) + 1) + classes
    cells: Rows = np.unique(codes, return_inverse=True)[1].reshape(-1).astype(np.int64)
    return cells


def stratified_order(classes: Rows, owner: Rows | None, rng: np.random.Generator) -> Rows:
    """Order all samples by owner and class, at random within: every n-th of them is a sample stratified by both.

    The order of the classes is random for every owner. If it were the same for all, owners with few samples of each
    class would have the same class in the same fold.
    """
    cells = cells_of(classes, owner)
    turn = rng.permutation(int(cells.max()) + 1)[cells]
    mixed = rng.permutation(len(classes))
    keys = (turn[mixed],) if owner is None else (turn[mixed], owner[mixed])
    line: Rows = mixed[np.lexsort(keys)]
    return line


def spread_over(line: Rows, strata: Rows, count: float) -> Rows:
    """Select `count` samples at equal distances along the line, but never the first one of a stratum."""
    first = np.unique(strata[line], return_index=True)[1]
    spare = np.delete(line, first)
    marks = np.floor(np.arange(len(spare) + 1) * min(1.0, count / max(1, len(spare))) + 0.5)
    chosen: Rows = spare[np.diff(marks) > 0]
    return chosen


def whole_groups(cells: Rows, group: Rows, shares: NDArray[np.float64], rng: np.random.Generator) -> Rows:
    """Assign every group as a whole to a part, and return the part of every sample.

    Parts get these shares of every cell as closely as whole groups allow: a group goes to the part that has the smallest
    share of the cells of that group.
    """
    names, group = np.unique(group, return_inverse=True)
    if len(names) < len(shares):
        raise PartitionImpossible(
            f"{len(names)} groups cannot make {len(shares)} parts",
            remedy="use fewer folds, or a column with more groups",
            where="data.group",
        )
    sizes = np.bincount(group)
    members = np.split(cells[np.argsort(group, kind="stable")], np.cumsum(sizes)[:-1])
    totals = np.bincount(cells)
    filled, part_of = np.zeros((len(shares), len(totals))), np.full(len(names), -1)
    order = rng.permutation(len(names))
    if np.ptp(shares) == 0:  # equal parts become more even if large groups are assigned first
        order = order[np.argsort(-sizes[order], kind="stable")]
    for g in order:
        brought, amounts = np.unique(members[g], return_counts=True)
        fullness = filled[:, brought] @ (amounts / totals[brought]) / shares
        least = np.flatnonzero(fullness <= fullness.min() + 1e-12)
        size = filled[least].sum(axis=1) / shares[least]
        least = least[size <= size.min() + 1e-12]
        part = rng.choice(least, p=shares[least] / shares[least].sum())
        filled[part, brought] += amounts
        part_of[g] = part
    parts: Rows = part_of[group]
    return parts


def blocks_in_time(time: Rows, shares: NDArray[np.float64]) -> Rows:
    """Cut the samples into consecutive blocks of about these shares, and return the block of every sample.

    Samples of the same time are in the same block.
    """
    moments, counts = np.unique(time, return_counts=True)
    if len(moments) < len(shares):
        raise PartitionImpossible(
            f"{len(moments)} different times cannot make {len(shares)} blocks of samples",
            remedy="use fewer folds, or a column with finer times",
            where="data.time",
        )
    wanted, order = np.cumsum(shares)[:-1] * len(time), np.arange(len(shares) - 1)
    nearest = np.abs(np.cumsum(counts)[:, None] - wanted).argmin(axis=0)  # the last time of each block but the last
    ends = np.maximum.accumulate(np.clip(nearest - order, 0, len(moments) - len(shares))) + order  # no block is empty
    blocks: Rows = np.searchsorted(moments[ends], time, side="left").astype(np.int64)
    return blocks
