"""The cut points of all columns as arrays that can be sent and stored, and the candidate splits that follow from them."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedarena.trees.bins import Bins, Candidates, make_bins, make_candidates, threshold
from fedarena.trees.forest import LARGEST
from fedarena.trees.histogram_layout import HistogramLayout

Float32Array = NDArray[np.float32]


@dataclass(frozen=True)
class CutPoints:
    """The cut values of all columns one after the other, their number in each column, and what the columns hold."""

    values: Float32Array
    counts: NDArray[np.int32]
    has_values: NDArray[np.uint8]
    has_missing: NDArray[np.uint8]

    @classmethod
    def of(
        cls, cuts: list[NDArray[np.floating]], has_values: NDArray[np.bool_], has_missing: NDArray[np.bool_]
    ) -> CutPoints:
        """Return the cut points of columns."""
        counts = np.array([len(c) for c in cuts], np.int32)
        values = np.concatenate([np.empty(0), *cuts]).astype(np.float32)
        arrays = values, counts, has_values.astype(np.uint8), has_missing.astype(np.uint8)
        for array in arrays:
            array.flags.writeable = False
        return cls(*arrays)

    @classmethod
    def of_rows(cls, x: Float32Array, bins: int) -> CutPoints:
        """Return the quantile cut points of rows [rows, columns] that are all in one place."""
        found = make_bins(x.astype(np.float64), np.ones(len(x), bool), bins)
        missing = np.isnan(x)
        holes = np.count_nonzero(missing, axis=0)
        return cls.of(list(found.cuts), holes < len(x), holes > 0)

    def __reduce__(self) -> tuple[type[CutPoints], tuple[NDArray[np.generic], ...]]:
        return CutPoints, (self.values, self.counts, self.has_values, self.has_missing)

    @cached_property
    def table(self) -> CutTable:
        """Return the candidate splits of these cut points, which are not sent or stored with them."""
        return _table(*(array.tobytes() for array in (self.values, self.counts, self.has_values, self.has_missing)))


@functools.lru_cache(maxsize=16)
def _table(values: bytes, counts: bytes, has_values: bytes, has_missing: bytes) -> CutTable:
    sizes = np.frombuffer(counts, np.int32)
    cuts = np.split(np.frombuffer(values, np.float32).astype(np.float64), np.cumsum(sizes)[:-1])
    bins = Bins(tuple(cuts))
    flags = (np.frombuffer(flag, np.uint8).astype(bool) for flag in (has_values, has_missing))
    return CutTable(bins, make_candidates(bins, *flags))


@dataclass(frozen=True)
class CutTable:
    """The bins of all columns side by side, the bin of missing values last in each, and the candidate splits."""

    bins: Bins
    candidates: Candidates

    @cached_property
    def first(self) -> NDArray[np.int64]:
        """Return the first bin of each column."""
        return self._layout.first[:-1].astype(np.int64)

    @cached_property
    def width(self) -> int:
        """Return the number of bins of all columns."""
        return int(self._layout.first[-1])

    @cached_property
    def _layout(self) -> HistogramLayout:
        return HistogramLayout(self.bins, 1)

    @cached_property
    def ranges(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        """Return the first and the last bin on the left of each candidate, its missing bin, and whether both go left."""
        last, missing, both = self._layout.candidate_bins(self.candidates)
        start = np.where(self.candidates.bin >= 0, self.first[self.candidates.column], missing)
        return start, last.astype(np.int64), missing.astype(np.int64), both

    def codes(self, x: Float32Array) -> NDArray[np.uint16]:
        """Return the bins of rows [rows, columns]."""
        return np.ascontiguousarray(self.bins.codes(x).T)

    def left_sums(self, sums: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the sums that each candidate sends left, [nodes, candidates, 2], from sums of bins [nodes, bins, 2]."""
        start, last, missing, both = self.ranges
        upto = np.zeros((len(sums), self.width + 1, 2), np.int64)
        np.cumsum(sums, axis=1, out=upto[:, 1:])
        left: NDArray[np.int64] = upto[:, last + 1] - upto[:, start]
        left[:, both] += sums[:, missing[both]]
        return left

    def totals(self, sums: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the sums of whole nodes [nodes, 2]: those of any column."""
        end = int(self.bins.counts[0]) + 1
        total: NDArray[np.int64] = sums[:, :end].sum(axis=1)
        return total

    @cached_property
    def splits(self) -> Float32Array:
        """Return the column of each candidate, its threshold within the range of float32, and whether missing go left."""
        columns, bins, missing_left = self.candidates.column, self.candidates.bin, self.candidates.missing_left
        values = [threshold(self.bins, *pair) for pair in zip(columns.tolist(), bins.tolist(), strict=True)]
        finite = np.clip(np.array(values, np.float64), -LARGEST, LARGEST)
        return np.stack([columns, finite, missing_left], axis=1).astype(np.float32)
