"""Trees grown level by level from sums of g and h over bins, wherever the rows are.

Of two siblings the one with the smaller sum of h is summed; the other is the difference to their parent.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedarena.trees.boosting import Boosting
from fedarena.trees.cut_table import CutTable
from fedarena.trees.fixed_point import FixedPoint
from fedarena.trees.forest import COLUMN, MISSING_LEFT, THRESHOLD, WEIGHT, Float32Array, empty_trees
from fedarena.trees.gain import leaf_weights, may_split
from fedarena.trees.growth import CandidateSums, best_splits

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
        self._is_node = np.zeros(self.trees.shape[:2], bool)
        self._is_node[:, 0] = True
        self._parents: Sums | None = None  # sums of the parents of each pair of nodes

    def advance(self, sums: Sums) -> None:
        """Split the nodes of a level by the sums [build, bins, 2] over all rows."""
        complete = self._complete(sums)
        if self.depth == 0:
            self._totals[:, 0] = self.table.totals(complete)
        tree, node = self._nodes.T
        totals = self._totals[tree, node][:, None]  # one output a tree
        left = self.table.left_sums(complete)[:, :, None]
        uncounted = np.zeros(left.shape[:2], np.int64)
        offers = {0: CandidateSums(left, uncounted)}
        best = best_splits(self.boosting, self.point, totals, 0 * tree, np.arange(len(tree)), offers)
        for at, split in best.items():
            self._split(int(tree[at]), int(node[at]), int(split.tied[0]), split.sums[0, 0])
        self.depth += 1
        self._next_level(np.array(list(best), np.int64), complete)

    def _complete(self, sums: Sums) -> Sums:
        """Return the sums of all nodes of the level: those that were built, and their siblings."""
        if self._parents is None:
            return sums
        complete = np.repeat(self._parents, 2, axis=0)
        built = self._built
        complete[built] = sums
        complete[built ^ 1] -= sums
        return complete

    def _split(self, tree: int, node: int, candidate: int, left: Sums) -> None:
        candidates = self.table.candidates
        self.trees[tree, node, COLUMN] = candidates.column[candidate]
        self.trees[tree, node, THRESHOLD] = self.table.threshold(candidate)
        self.trees[tree, node, MISSING_LEFT] = candidates.missing_left[candidate]
        children = slice(2 * node + 1, 2 * node + 3)
        self._is_node[tree, children] = True
        self._totals[tree, children] = left, self._totals[tree, node] - left

    def _next_level(self, split: Indices, sums: Sums) -> None:
        """Set the pairs of children that may be split again, and of each pair the one to build."""
        parents = self._nodes[split]
        pairs = np.stack([parents, parents], axis=1)
        pairs[:, :, 1] = 2 * pairs[:, :, 1] + [1, 2]
        totals = self._totals[pairs[..., 0], pairs[..., 1]]
        heavy = [any(may_split(self.boosting, self.point, total[None], 0) for total in pair) for pair in totals]
        wanted = np.array(heavy, bool) if self.depth < self.boosting.depth else np.zeros(len(pairs), bool)
        pairs, totals = pairs[wanted], totals[wanted]
        self._parents = sums[split[wanted]]
        self._nodes = pairs.reshape(-1, 2)
        self._built = 2 * np.arange(len(pairs)) + (totals[:, 1, 1] < totals[:, 0, 1])
        self.build = self._nodes[self._built]

    def result(self) -> Float32Array:
        """Return the trees with the weights of their leaves, [outputs, nodes, 4]."""
        leaves = self._is_node & (self.trees[:, :, COLUMN] < 0)
        weights = leaf_weights(self.boosting, self.point, self._totals)
        self.trees[:, :, WEIGHT] = np.where(leaves, weights, 0)
        return self.trees
