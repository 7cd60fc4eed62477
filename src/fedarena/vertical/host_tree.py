"""The tree that a host is growing: it sums ciphertexts of the guest's gradients and makes the splits that win.

Per tree a host sees ciphertexts and which rows share a node; it never sees a gradient, a label or a leaf.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedarena.config.errors import BadValue
from fedarena.transport import fields as read
from fedarena.transport.frames import Fields, refused
from fedarena.trees.bins import BinnedColumns, ColumnSplit
from fedarena.trees.fixed_point import SLOT
from fedarena.vertical.crypto.ciphertexts import Ciphertexts
from fedarena.vertical.crypto.keys import PublicKey
from fedarena.vertical.crypto.plain import PlainPublicKey
from fedarena.vertical.histogram import Histogram
from fedarena.vertical.settings import BoostSettings
from fedarena.vertical.slots import ciphertext_layout


class HostTree:
    """One tree at a host, from its rows to its last split; a request out of order is refused."""

    def __init__(
        self,
        tree: int,
        rows: NDArray[np.int64],
        columns: BinnedColumns,
        settings: BoostSettings,
        public: PublicKey | PlainPublicKey,
        min_leaf_rows: int,
    ) -> None:
        self.tree, self.columns, self.settings, self.public = tree, columns, settings, public
        self.min_leaf_rows = min_leaf_rows
        self.splits: list[ColumnSplit] = []
        self._parts, self._slots = ciphertext_layout(settings, public.capacity)
        self._rows = len(rows)
        self._position = np.full(columns.codes.shape[1], -1, np.int32)  # of each row: its ciphertext, or -1
        self._position[rows] = np.arange(len(rows), dtype=np.int32)
        self._ciphertexts = [Ciphertexts(np.empty((len(rows), public.width), np.uint64)) for _ in range(self._parts)]
        self._received = [0] * self._parts  # rows of each part so far
        # The secret order of the candidates: one for the whole tree, because siblings are subtracted, or one per node
        self._tree_order = _secret_permutation(len(columns.candidates)) if settings.uses("subtraction") else None
        self._orders: dict[int, NDArray[np.int64]] = {}  # of the nodes of this level that were summed
        self._level = -1
        self._nodes = 0
        self._node = np.zeros(0, np.int64)  # of each row: its node on this level
        self._split_nodes: set[int] = set()  # of this level

    def add_rows(self, fields: dict[str, Any]) -> Fields:
        """Store the next ciphertexts of the rows."""
        part = read.whole(fields, "part", 0, self._parts - 1)
        received = self._received[part]
        if read.whole(fields, "start") != received or self._level >= 0:
            raise refused("the ciphertexts of a tree came out of order")
        chunk = Ciphertexts.from_bytes(self.public, read.raw(fields, "data"))
        if received + len(chunk) > self._rows:
            raise refused(f"there are more ciphertexts than the {self._rows} rows of the tree")
        self._ciphertexts[part].data[received : received + len(chunk)] = chunk.data
        self._received[part] += len(chunk)
        return {}

    def sum_candidates(self, fields: dict[str, Any], level: int) -> Fields:
        """Return the row counts and encrypted sums of all candidates of the requested nodes, in secret order."""
        self._enter_level(level, fields)
        build = read.numbers(fields, "build", 0, self._nodes - 1, most=self._nodes)
        if len({*build.tolist(), *self._orders}) < len(build) + len(self._orders):
            raise refused(f"a node of level {level} was requested twice")
        candidates, public = self.columns.candidates, self.public
        if not len(build) or not len(candidates):
            return {"counts": np.zeros((len(build), len(candidates)), np.int32), "sums": b""}
        totals = self._read_totals(fields, len(build)) if self.settings.uses("sparse") else [None] * self._parts
        histogram = self._histogram(build)
        counts = histogram.candidate_counts(candidates)
        orders = [
            self._tree_order if self._tree_order is not None else _secret_permutation(len(candidates)) for _ in build
        ]
        self._orders |= dict(zip(build.tolist(), orders, strict=True))
        order = np.array(orders, np.int64).reshape(len(build), len(candidates))
        flat = (np.arange(len(build))[:, None] * len(candidates) + order).reshape(-1)
        sums = [
            histogram.candidate_sums(public, part, total, candidates).data[flat]
            for part, total in zip(self._ciphertexts, totals, strict=True)
        ]
        response = Ciphertexts(np.stack(sums, axis=1).reshape(-1, public.width))
        if self.settings.uses("compression"):
            width = SLOT * self._slots
            response = public.pack(response, width, public.capacity // width)
        return {
            "counts": np.take_along_axis(counts, order, axis=1).astype(np.int32),
            "sums": public.rerandomise(response).to_bytes(),
        }

    def _enter_level(self, level: int, fields: dict[str, Any]) -> None:
        """Read the nodes of the next level, or compare them if this level was requested before."""
        if any(received != self._rows for received in self._received):
            raise refused(f"not all {self._rows} rows of tree {self.tree} have come")
        if level not in (self._level, self._level + 1) or level >= self.settings.depth:
            raise refused(f"level {level} of tree {self.tree} is out of order")
        nodes = read.whole(fields, "nodes", 1, 2**level)
        node = read.numbers(fields, "node", 0, nodes, length=len(self._position))
        self._refuse_small(np.bincount(node[self._position >= 0], minlength=nodes + 1)[:nodes])
        if level == self._level:
            if not np.array_equal(node, self._node):
                raise refused(f"the nodes of level {level} differ from those of the last request")
            return
        if level == 0 and node.any():
            raise refused("the root of a tree does not hold all rows")
        if level > 0 and not is_refinement(node, nodes, self._node, self._nodes):
            raise refused(f"the nodes of level {level} are not the two parts of those above")
        self._orders, self._split_nodes = {}, set()
        self._level, self._nodes, self._node = level, nodes, node

    def _read_totals(self, fields: dict[str, Any], nodes: int) -> list[Ciphertexts | None]:
        """Return the encrypted totals of the requested nodes, from which the bins that are not summed follow."""
        totals = Ciphertexts.from_bytes(self.public, read.raw(fields, "totals"))
        if len(totals) != nodes * self._parts:
            raise refused(f"{len(totals)} totals came for {nodes} nodes")
        return [Ciphertexts(totals.data[part :: self._parts]) for part in range(self._parts)]

    def _histogram(self, build: NDArray[np.int64]) -> Histogram:
        number = np.full(self._nodes + 1, -1)
        number[build] = np.arange(len(build))
        node = number[self._node]
        rows = np.flatnonzero((node >= 0) & (self._position >= 0))
        codes, sparse = self.columns.codes[:, rows], self.settings.uses("sparse")
        return Histogram.of(codes, self.columns.bins, node[rows], len(build), self._position[rows], sparse)

    def _refuse_small(self, rows: NDArray[np.intp]) -> None:
        if len(rows) and rows.min() < self.min_leaf_rows:
            raise BadValue(
                f"the guest requested a node of {rows.min()} rows, or a split that makes one",
                remedy=f"this host requires at least {self.min_leaf_rows}: raise min_leaf_rows",
            )

    def split(self, fields: dict[str, Any], level: int, earlier: Sequence[ColumnSplit]) -> Fields:
        """Split nodes, and return record numbers, opaque columns and the rows that go left.

        Records are numbered after those of `earlier` trees; columns are numbered in the order of their first use.
        """
        if level != self._level:
            raise refused(f"a split of level {level} came after the sums of level {self._level}")
        nodes = read.numbers(fields, "nodes", 0, self._nodes - 1, most=self._nodes)
        every = len(self.columns.candidates)
        candidates = read.numbers(fields, "candidates", 0, every - 1, most=every * len(nodes))
        starts = read.starts(fields, "starts", len(nodes), len(candidates))
        # If a node could be split twice, a guest could try all candidates on all rows.
        if len({*nodes.tolist(), *self._split_nodes}) < len(nodes) + len(self._split_nodes):
            raise refused(f"a node of level {level} was split twice")
        splits, left = [], [np.zeros(0, bool)]
        for i, node in enumerate(nodes.tolist()):
            order = self._orders.get(node, self._tree_order)
            tied = candidates[starts[i] : starts[i + 1]]
            if order is None or not len(tied):
                raise refused(f"a split of node {node} came, whose candidates were not summed")
            splits.append(self.columns.split(int(order[tied].min())))  # ties: the first in the order of candidates
            left.append(self._goes_left(node, splits[-1]))
        start = len(earlier) + len(self.splits)
        self._split_nodes |= set(nodes.tolist())
        self.splits += splits
        used = list(dict.fromkeys(s.column for s in (*earlier, *self.splits)))
        return {
            "records": np.arange(start, start + len(splits), dtype=np.int32),
            "columns": np.array([used.index(s.column) for s in splits], np.int32),
            "left": read.as_bits(np.concatenate(left)),
        }

    def _goes_left(self, node: int, split: ColumnSplit) -> NDArray[np.bool_]:
        """Return which rows of the node go left, unless one side is too small to be revealed."""
        rows = np.flatnonzero(self._node == node)
        left = self.columns.goes_left(rows, split)
        self._refuse_small(np.bincount(left[self._position[rows] >= 0], minlength=2))
        return left


def is_refinement(node: NDArray[np.int64], nodes: int, above: NDArray[np.int64], nodes_above: int) -> bool:
    """Return whether each node above has become a leaf or exactly two nodes.

    Otherwise two levels could differ by a few rows. A row that left the tree may not return, and no row may leave alone.
    """
    inside = node < nodes
    parent = np.full(nodes, nodes_above)
    parent[node[inside]] = above[inside]
    if (parent == nodes_above).any() or (parent[node[inside]] != above[inside]).any():
        return False
    split = np.append(np.bincount(parent, minlength=nodes_above) == 2, False)
    return bool(np.array_equal(split[above], inside))


def _secret_permutation(count: int) -> NDArray[np.int64]:
    """Return a permutation from the system's randomness, which a guest that knows every seed cannot predict."""
    return np.argsort(np.frombuffer(os.urandom(8 * count), np.uint64), kind="stable").astype(np.int64)
