"""The order of histogram bins in one array, and the sums of the rows that each candidate split sends left."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedarena.trees.bins import Bins, Candidates

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class HistogramLayout:
    """The index of each (column, node, bin): column by column, in it node by node, the bin of missing values last."""

    bins: Bins
    nodes: int

    @property
    def width(self) -> Indices:
        """The number of bins of each column, with the bin of missing values."""
        return self.bins.counts + 1

    @property
    def first(self) -> Indices:
        """The index where each column starts, and the total length."""
        return np.concatenate([[0], np.cumsum(self.width)]) * self.nodes

    def index(self, column: Indices, node: Indices, code: Indices) -> Indices:
        """Return the indices of these columns, nodes and codes."""
        return self.first[column] + node * self.width[column] + code

    def pairs(self) -> tuple[Indices, Indices]:
        """Return every (column, node) in order."""
        columns = len(self.bins.counts)
        return np.repeat(np.arange(columns), self.nodes), np.tile(np.arange(self.nodes), columns)

    def candidate_bins(self, candidates: Candidates) -> tuple[Indices, Indices, NDArray[np.bool_]]:
        """Return for each node and candidate its last bin on the left, its missing bin, and whether both go left."""
        node = np.repeat(np.arange(self.nodes), len(candidates))
        column, last = (np.tile(a, self.nodes) for a in (candidates.column, candidates.bin))
        missing = self.index(column, node, self.bins.counts[column])
        base = np.where(last >= 0, self.index(column, node, np.maximum(last, 0)), missing)
        return base, missing, np.tile(candidates.missing_left, self.nodes) & (last >= 0)

    def steps(self) -> list[Indices]:
        """Return the bins to cumulate, step by step: all second bins, all third bins, ..."""
        column, node = self.pairs()
        steps = []
        for code in range(1, int(self.bins.counts.max(initial=1))):
            has = self.bins.counts[column] > code
            steps.append(self.index(column[has], node[has], np.full(int(has.sum()), code)))
        return steps

    def by_candidate(self, sums: NDArray[np.int64], candidates: Candidates) -> NDArray[np.int64]:
        """Return the sums that candidates send left, [nodes, candidates, ...], from plain sums of bins [bins, ...]."""
        cumulative = sums.copy()
        for step in self.steps():
            cumulative[step] += cumulative[step - 1]
        base, missing, both = self.candidate_bins(candidates)
        left = cumulative[base]
        left[both] += cumulative[missing[both]]
        return left.reshape(self.nodes, len(candidates), *sums.shape[1:])
