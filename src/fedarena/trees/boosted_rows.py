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
from fedarena.trees.forest import WEIGHT, Float32Array, Forest, MarginCache, lasting, same_vectors
from fedarena.trees.kernels import add_sums

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
        self._depth = 0  # levels that these trees had
        self._known: tuple[tuple[int, ...], bytes] | None = None  # the splits that led to these nodes
        self._ones = np.ones(len(labels), np.float32)

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
        self, w: Float32Array, boosting: Boosting, point: FixedPoint, chosen: NDArray[np.bool_] | None = None
    ) -> Sums:
        """Return g and h of the rows at the margins of the forest `w` as integers [outputs, rows, 2]; 0 if not chosen."""
        if self._integers is not None and self._integers[1] == point and same_vectors(self._integers[0], w):
            return self._integers[2]
        forest = Forest.of(w)
        margins = self._cache.margins(forest, self._reached(forest.trees[-forest.outputs :]))
        self._known = None
        g, h = boosting.loss.gradients(margins, self.labels, self._ones)
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
        self._integers = lasting(w), point, found
        return found

    def sums(self, table: CutTable, integers: Sums, trees: Float32Array, depth: int, build: Indices) -> Sums:
        """Return the sums [build, bins, 2] over the rows in each node (tree, node) of `build`, at this depth of the trees."""
        levels, nodes = self._reached(trees)
        if levels > depth or not nodes:
            levels, nodes = 0, [np.zeros(len(self.x), np.int32) for _ in trees]
        self._known = None
        sums, codes = np.zeros((len(build), table.width, 2), np.int64), self.codes(table)
        for number, (tree, node, own) in enumerate(zip(trees, nodes, integers, strict=True)):
            add_sums(self.x, tree, node, depth - levels, codes, table.first, build, number, own, sums)
        self._nodes, self._depth, self._known = nodes, depth, _splits(trees, depth)
        return sums

    def _reached(self, trees: Float32Array) -> tuple[int, list[NDArray[np.int32]]]:
        """Return how many levels of these trees every row is known to have passed, and its node in each; none: no nodes."""
        known = self._known is not None and self._known == _splits(trees, self._depth)
        return (self._depth, self._nodes) if known else (0, [])


def _splits(trees: Float32Array, depth: int) -> tuple[tuple[int, ...], bytes]:
    """Return the number and the size of trees, and the splits of their first levels."""
    return trees.shape, trees[:, : 2**depth - 1, :WEIGHT].tobytes()
