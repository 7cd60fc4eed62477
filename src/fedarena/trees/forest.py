"""A forest as one flat vector: a header, then the nodes of every tree in the order of a heap.

Node i has the children 2 i + 1 and 2 i + 2. A node is four numbers: its column (-1: a leaf), its threshold (values at or
below it go left), whether missing values go left, and the weight of a leaf. Tree t adds to output t modulo the number of
outputs. All numbers are float32, which holds columns and thresholds exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedarena.trees.kernels import descend
from fedarena.trees.settings import ObjectiveName

Float32Array = NDArray[np.float32]
Reached = tuple[int, Sequence[NDArray[np.int32]]]  # levels, and the node of every row in each tree
HEADER = 5  # objective, outputs, depth, base margin, bound of labels
COLUMN, THRESHOLD, MISSING_LEFT, WEIGHT = range(4)
LARGEST = np.finfo(np.float32).max  # threshold of a split that sends all values left; its negative sends none
NAMES: tuple[ObjectiveName, ...] = ("logistic", "softmax", "squared_error")


@dataclass(frozen=True)
class Forest:
    """Trees of one depth, and what their sum means."""

    objective: ObjectiveName
    outputs: int
    depth: int
    base: np.float32
    label_bound: np.float32  # of |label - base| of a squared error, as it was agreed; 0 for classes
    trees: Float32Array  # [trees, nodes, 4]

    @classmethod
    def empty(cls, objective: ObjectiveName, outputs: int, depth: int, base: float, label_bound: float = 0.0) -> Forest:
        """Return a forest without trees."""
        trees = np.empty((0, nodes_of(depth), 4), np.float32)
        return cls(objective, outputs, depth, np.float32(base), np.float32(label_bound), trees)

    @classmethod
    def of(cls, w: NDArray[np.floating]) -> Forest:
        """Return the forest of a flat vector."""
        code, outputs, depth, base, bound = np.asarray(w[:HEADER], np.float32)
        trees = np.asarray(w[HEADER:], np.float32).reshape(-1, nodes_of(int(depth)), 4)
        return cls(NAMES[int(code)], int(outputs), int(depth), base, bound, trees)

    @property
    def vector(self) -> Float32Array:
        """Return the forest as a flat vector."""
        code = NAMES.index(self.objective)
        header = np.array([code, self.outputs, self.depth, self.base, self.label_bound], np.float32)
        return np.concatenate([header, self.trees.reshape(-1)])

    def with_trees(self, more: Float32Array) -> Forest:
        """Return the forest with these trees added, [trees, nodes, 4]."""
        return replace(self, trees=np.concatenate([self.trees, more]))

    def start(self, rows: int) -> Float32Array:
        """Return the margins of so many rows before the first tree."""
        return np.full((rows, self.outputs), self.base, np.float32)

    def add_trees(self, margins: Float32Array, x: Float32Array, first: int = 0, reached: Reached = (0, ())) -> None:
        """Add the trees from number `first` on to the margins of rows [rows, columns], one after the other.

        `reached` are levels that rows have passed in the last trees, and their nodes there, which become their leaves.
        """
        levels, nodes = reached
        begun = len(self.trees) - len(nodes)
        for number in range(first, len(self.trees)):
            tree = self.trees[number]
            leaf = np.zeros(len(x), np.int32) if number < begun else nodes[number - begun]
            descend(x, tree, leaf, self.depth - (levels if number >= begun else 0))
            margins[:, number % self.outputs] += tree[:, WEIGHT].take(leaf)

    def margins(self, x: Float32Array) -> Float32Array:
        """Return the sum of all trees for rows [rows, columns]; NaN is a missing value."""
        margins = self.start(len(x))
        self.add_trees(margins, x)
        return margins


def nodes_of(depth: int) -> int:
    """Return the number of nodes of a complete tree."""
    return int(2 ** (depth + 1) - 1)


def empty_trees(trees: int, depth: int) -> Float32Array:
    """Return trees of one leaf of weight 0 each."""
    made = np.zeros((trees, nodes_of(depth), 4), np.float32)
    made[:, :, COLUMN] = -1
    return made


def same_vectors(a: Float32Array, b: Float32Array) -> bool:
    """Return whether two forests are the same as vectors; those that were stored are `lasting`."""
    return a is b or (len(a) == len(b) and bool((a == b).all()))


def lasting(w: Float32Array) -> Float32Array:
    """Return a vector that never changes: the same where it is locked and has memory of its own, else a copy."""
    return w.copy() if w.flags.writeable or w.base is not None else w


class MarginCache:
    """The margins of some rows, which follow a forest as it grows: only new trees are added."""

    def __init__(self, x: Float32Array) -> None:
        self.x = x
        self._vector = np.empty(0, np.float32)
        self._margins = np.empty((0, 0), np.float32)

    def margins(self, forest: Forest, reached: Reached = (0, ())) -> Float32Array:
        """Return the margins of the forest, which must not be changed; see `Forest.add_trees`."""
        vector, known = forest.vector, self._vector
        size = len(known)
        if size and len(vector) >= size and same_vectors(vector[:size], known):
            first = (size - HEADER) // (forest.trees.shape[1] * 4)
        else:
            first, self._margins = 0, forest.start(len(self.x))
        if len(vector) > size or not first:
            forest.add_trees(self._margins, self.x, first, reached)
            self._vector = vector
        return self._margins
