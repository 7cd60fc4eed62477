"""Quantiles of columns whose rows are in several places, exact, from counts alone.

All float32 numbers lie on one grid that everyone knows: their bits, in ascending order. A pass refines the cells of that
grid which hold a wanted quantile (or all cells that hold values, while these are few) by some bits: clients count their
values in each finer cell, the counts are added up, and after 32 bits a cell is a single number. The cut points are those of
the pooled rows, to the bit, and no client sends a value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedarena.trees.cut_table import CutPoints

Keys = NDArray[np.uint32]
PASSES = (8, 4, 4, 4, 4, 4, 4)  # bits that each pass adds: 32 in all
SIGN = np.uint32(1 << 31)


def ordered_keys(column: NDArray[np.float32]) -> Keys:
    """Return the place of every number among all float32 numbers, without missing values.

    >>> bool(np.all(np.diff(ordered_keys(np.array([-2.5, 0, 1e-30, 7], np.float32)).astype(float)) > 0))
    True
    """
    bits = (column[~np.isnan(column)] + np.float32(0)).view(np.uint32)  # + 0: there is one zero
    return np.where(bits & SIGN, ~bits, bits | SIGN)


def key_values(keys: Keys) -> NDArray[np.float32]:
    """Return the numbers at these places."""
    return np.where(keys & SIGN, keys ^ SIGN, ~keys).astype(np.uint32).view(np.float32)


def count_cells(keys: Sequence[Keys], cells: Sequence[NDArray[np.uint32]], done: int) -> NDArray[np.int64]:
    """Return how many values of each column lie in each finer cell of these cells, which are the first `done` passes."""
    bits, more = sum(PASSES[:done]), PASSES[done]
    found = []
    for own, known in zip(keys, cells, strict=True):
        finer = own >> np.uint32(32 - bits - more)
        at = np.searchsorted(known, finer >> np.uint32(more))
        inside = (at < len(known)) & (known[np.minimum(at, len(known) - 1)] == finer >> np.uint32(more))
        child = at[inside] << more | (finer[inside] & np.uint32(2**more - 1)).astype(np.int64)
        found.append(np.bincount(child, minlength=len(known) << more))
    return np.concatenate(found).astype(np.int64)


@dataclass
class _Column:
    """The cells of one column that are still of interest, with the number of values below each."""

    cells: NDArray[np.uint32]
    before: NDArray[np.int64]
    counts: NDArray[np.int64]
    total: int = 0
    is_few: bool = True  # so far there is a bin for each distinct value


class CutSearch:
    """The search for the cut points of all columns: read `cells`, let clients count, `refine` by the sum, until `is_done`."""

    first_cells = 1 << PASSES[0]  # counts of a column in the first pass

    def __init__(self, columns: int, bins: int) -> None:
        self.bins, self.passes = bins, 0
        nothing = np.zeros(1, np.int64)
        self._columns = [_Column(np.zeros(1, np.uint32), nothing, nothing) for _ in range(columns)]

    @property
    def is_done(self) -> bool:
        """Return whether every cell is a single number."""
        return self.passes == len(PASSES)

    @property
    def cells(self) -> list[NDArray[np.uint32]]:
        """Return the cells of each column to count in."""
        return [column.cells for column in self._columns]

    def refine(self, counts: NDArray[np.int64]) -> None:
        """Continue with the finer cells that matter, given the counts of all clients together."""
        more, at = PASSES[self.passes], 0
        for column in self._columns:
            size = len(column.cells) << more
            self._refine(column, counts[at : at + size].reshape(-1, 1 << more), more)
            at += size
        self.passes += 1

    def _refine(self, column: _Column, counts: NDArray[np.int64], more: int) -> None:
        if self.passes == 0:
            column.total = int(counts.sum())
        cells = (column.cells[:, None] << np.uint32(more)) | np.arange(1 << more, dtype=np.uint32)
        upto = column.before[:, None] + np.cumsum(counts, axis=1)
        filled = counts > 0
        column.cells, column.counts = cells[filled], counts[filled]
        column.before = upto[filled] - column.counts
        column.is_few = column.is_few and len(column.cells) <= self.bins
        if not column.is_few:
            wanted = np.arange(1, self.bins) * column.total / self.bins - 1e-9  # as in trees.bins.make_bins
            last = column.before + column.counts
            held = np.unique(np.searchsorted(last, wanted))
            held = held[held < len(last)]
            column.cells, column.counts, column.before = column.cells[held], column.counts[held], column.before[held]

    def result(self, rows: int) -> CutPoints:
        """Return the cut points, of so many rows in all; the largest value of a column is not one of them."""
        cuts = []
        for column in self._columns:
            inner = column.before + column.counts < column.total
            cuts.append(key_values(column.cells[inner]))
        totals = np.array([column.total for column in self._columns])
        return CutPoints.of(list(cuts), totals > 0, totals < rows)
