"""The rows of one place during boosting: their margins, their g and h as integers, the node of each, and sums over them.

Everything here follows from the rows and from the trees so far. It is kept between calls to save time alone: after a call
with other trees than expected it is computed again.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedarena.config.errors import BadValue
from fedarena.trees.boosting import Boosting
from fedarena.trees.cut_search import Keys, ordered_keys
from fedarena.trees.cut_table import CutPoints, CutTable
from fedarena.trees.fixed_point import FixedPoint
from fedarena.trees.forest import Float32Array, Forest, MarginCache
from fedarena.trees.kernels import add_sums, descend

Indices = NDArray[np.int64]
Sums = NDArray[np.int64]


class BoostedRows:
    """Rows [rows, columns] with their labels."""

    def __init__(self, x: Float32Array, labels: NDArray[np.float64]) -> None:
        self.x, self.labels = np.ascontiguousarray(x, np.float32), labels
        self._cache = MarginCache(self.x)
        self._own_cuts: tuple[int, CutPoints] | None = None
        self._codes: tuple[CutTable, NDArray[np.uint16]] | None = None
        self._integers: tuple[Float32Array, FixedPoint, Sums] | None = None  # the forest that they are of
        self._nodes: list[NDArray[np.int32]] = []  # of each tree under way: the node of every row
        self._trees: Float32Array = np.empty((0, 0, 4), np.float32)  # to which these nodes belong
        self._depth = 0

    @cached_property
    def keys(self) -> list[Keys]:
        """Return the values of each column as places on the grid of numbers, without missing ones."""
        return [ordered_keys(column) for column in self.x.T]

    def own_cuts(self, bins: int) -> CutPoints:
        """Return the quantile cut points of these rows alone."""
        if self._own_cuts is None or self._own_cuts[0] != bins:
            self._own_cuts = bins, CutPoints.of_rows(self.x, bins)
        return self._own_cuts[1]

    def codes(self, table: CutTable) -> NDArray[np.uint16]:
        """Return the bins of the rows."""
        if self._codes is None or self._codes[0] is not table:
            self._codes = table, table.codes(self.x)
        return self._codes[1]

    def integers(
        self, forest: Forest, boosting: Boosting, point: FixedPoint, chosen: NDArray[np.bool_] | None = None
    ) -> Sums:
        """Return g and h of the rows at the margins of the forest as integers [outputs, rows, 2]; 0 if not chosen."""
        vector = forest.vector
        if self._integers is not None and self._integers[1] == point and np.array_equal(self._integers[0], vector):
            return self._integers[2]
        margins = self._cache.margins(forest)
        g, h = boosting.loss.gradients(margins, self.labels, np.ones(len(self.labels), np.float32))
        bound = boosting.bounds[0]
        if len(g) and not float(np.abs(g).max()) <= bound:
            raise BadValue(
                f"a residual is {float(np.abs(g).max()):g}, and sums in fixed point hold up to {bound:g}",
                remedy="raise label_max, or lower learning_rate",
                where="algorithm.label_max",
            )
        found = np.ascontiguousarray(point.encode(g, h).transpose(1, 0, 2))
        if chosen is not None:
            found[:, ~chosen] = 0
        self._integers, self._trees = (vector, point, found), np.empty((0, 0, 4), np.float32)
        return found

    def sums(self, table: CutTable, integers: Sums, trees: Float32Array, depth: int, build: Indices) -> Sums:
        """Return the sums [build, bins, 2] over the rows in each node (tree, node) of `build`, at this depth of the trees."""
        self._place(trees, depth)
        sums = np.zeros((len(build), table.width, 2), np.int64)
        codes = self.codes(table)
        for tree in np.unique(build[:, 0]).tolist():
            slots = np.flatnonzero(build[:, 0] == tree)
            slot_of = np.full(trees.shape[1], -1, np.int32)
            slot_of[build[slots, 1]] = slots
            add_sums(codes, table.first, slot_of, self._nodes[tree], integers[tree], sums)
        return sums

    def _place(self, trees: Float32Array, depth: int) -> None:
        """Set the node of every row in trees whose first `depth` levels are split."""
        known = 2**self._depth - 1
        if (
            self._trees.shape != trees.shape
            or depth < self._depth
            or not np.array_equal(self._trees[:, :known], trees[:, :known])
        ):
            self._nodes, self._depth = [np.zeros(len(self.x), np.int32) for _ in trees], 0
        for tree, node in zip(trees, self._nodes, strict=True):
            descend(self.x, tree, node, depth - self._depth)
        self._trees, self._depth = trees.copy(), depth
