"""Trees grown level by level from sums of g and h over bins, wherever the rows are.

Of two siblings the one with the smaller sum of h is summed; the other is the difference to their parent.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedarena.trees.boosting import Boosting
from fedarena.trees.cut_table import CutTable
from fedarena.trees.fixed_point import FixedPoint
from fedarena.trees.forest import COLUMN, WEIGHT, Float32Array, empty_trees
from fedarena.trees.gain import is_worth_splitting, leaf_weights, may_split
from fedarena.trees.growth import find_candidates

Indices = NDArray[np.int64]
Sums = NDArray[np.int64]


class RowGrowth:
    """The trees of one boosting step during their growth, one for each output, without their rows."""

    def __init__(self, boosting: Boosting, point: FixedPoint, table: CutTable) -> None:
        self.boosting, self.point, self.table = boosting, point, table
        self.trees = empty_trees(boosting.outputs, boosting.depth)
        self.depth = 0  # levels that are split
        roots = np.arange(boosting.outputs)
        self._nodes: Indices = np.stack([roots, 0 * roots], axis=1)  # [nodes of the level, (tree, node)]
        self.build: Indices = self._nodes  # those of them whose sums are wanted next; none at the end
        self._totals = np.zeros((*self.trees.shape[:2], 2), np.int64)
        self._parents: Sums | None = None  # sums of the parents of each pair of nodes

    def advance(self, sums: Sums) -> Float32Array:
        """Split the nodes of a level by the sums [build, bins, 2] over all rows; return its splits, [splits, 3]."""
        complete = self._complete(sums)
        if self.depth == 0:
            self._totals[:, 0] = self.table.totals(complete)
        tree, node = self._nodes.T
        totals = self._totals[tree, node]
        best, gains, left = find_candidates(self.boosting, self.point, self.table, complete, totals)
        split = np.flatnonzero(is_worth_splitting(self.boosting, gains))
        pairs = self._split(split, best[split], left[split], totals[split])
        self.depth += 1
        self._next_level(split, *pairs, complete)
        return self.table.splits[best[split]]

    def _complete(self, sums: Sums) -> Sums:
        """Return the sums of all nodes of the level: those that were built, and their siblings."""
        if self._parents is None:
            return sums
        complete = np.empty((2 * len(sums), *sums.shape[1:]), np.int64)
        complete[self._built] = sums
        complete[self._built ^ 1] = self._parents - sums
        return complete

    def _split(self, split: Indices, candidates: Indices, left: Sums, totals: Sums) -> tuple[Indices, Sums]:
        """Split nodes of the level; return the pairs [split, 2, (tree, node)] of their children, and the sums of these."""
        tree, node = self._nodes[split].T
        self.trees[tree, node, :WEIGHT] = self.table.splits[candidates]
        pairs, sums = np.empty((len(split), 2, 2), np.int64), np.empty((len(split), 2, 2), np.int64)
        for side, total in enumerate((left, totals - left)):
            children = 2 * node + 1 + side
            pairs[:, side, 0], pairs[:, side, 1], sums[:, side] = tree, children, total
            self._totals[tree, children] = total
        return pairs, sums

    def _next_level(self, split: Indices, pairs: Indices, totals: Sums, sums: Sums) -> None:
        """Set the pairs of children that may be split again, and of each pair the one to build."""
        heavy = np.zeros(len(pairs), bool)
        if self.depth < self.boosting.depth:
            heavy = np.logical_or(*may_split(self.boosting, self.point, totals[:, :, None], 0).T)
        pairs, totals = pairs[heavy], totals[heavy]
        self._parents = sums[split[heavy]]
        self._nodes = pairs.reshape(-1, 2)
        self._built = 2 * np.arange(len(pairs)) + (totals[:, 1, 1] < totals[:, 0, 1])
        self.build = self._nodes[self._built]

    def result(self) -> Float32Array:
        """Return the trees with the weights of their leaves, [outputs, nodes, 4]."""
        is_inner, is_node = self.trees[:, :, COLUMN] >= 0, np.ones(self.trees.shape[:2], bool)
        is_node[:, 1:] = np.repeat(is_inner[:, : is_inner.shape[1] // 2], 2, axis=1)
        leaves = is_node & ~is_inner
        weights = leaf_weights(self.boosting, self.point, self._totals)
        self.trees[:, :, WEIGHT] = np.where(leaves, weights, 0)
        return self.trees
