"""A host: owns columns and no labels, sums what it cannot read, and keeps what its splits mean to itself.

It answers one question after the other and holds no thread, no clock and no line: the same object serves a simulation
and a network. Per tree it sees ciphertexts and which rows share a node; it never sees a gradient, a label or a leaf.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedarena.config.errors import BadValue, ResumeMismatch
from fedarena.transport import fields as read
from fedarena.transport.frames import Fields, FrameKind, refused
from fedarena.vertical.bins import (
    Bins,
    Candidates,
    Codes,
    candidates_of,
    checked_columns,
    goes_left,
    make_bins,
)
from fedarena.vertical.crypto.ciphertexts import Ciphertexts
from fedarena.vertical.crypto.keys import PublicKey
from fedarena.vertical.crypto.plain import PlainPublicKey
from fedarena.vertical.fixed_point import SLOT, candidate_bits, parts_of
from fedarena.vertical.histogram import Histogram
from fedarena.vertical.model import FILE, ColumnSplit, HostModel, split_of
from fedarena.vertical.settings import BoostSettings

SPARE = 20  # trees that may be begun beyond those allowed: a tree whose host was lost is begun anew


@dataclass(frozen=True)
class HostPolicy:
    """What a host allows a guest to do; what goes beyond is refused before the training, or when it is asked."""

    most_trees: int = 10_000  # over the life of a folder, with SPARE more that were given up
    most_depth: int = 12
    most_bits: int = 2 * SLOT  # that a guest may read of each candidate: the slots of one g and one h
    min_leaf_rows: int = 1  # nodes with fewer rows of the tree are neither summed nor made by a split
    min_bin_count: int = 1  # bins with fewer training rows are not made
    plain: bool = False  # simulation without encryption


@dataclass
class HostTraining:
    """What a guest has set up: the settings, and this host's columns in bins."""

    settings: BoostSettings
    training: NDArray[np.bool_]
    bins: Bins
    codes: Codes
    candidates: Candidates


@dataclass
class TreeInProgress:
    """The tree under way."""

    tree: int
    place: NDArray[np.int32]  # of each row: its ciphertext, or -1 if the tree is not grown from it
    rows: int
    parts: int  # ciphertexts of a row
    slots: int  # of each ciphertext
    ciphertexts: list[Ciphertexts]  # one for each part, filled as they come
    order: NDArray[np.int64] | None  # the secret permutation of the candidates, if one holds for the whole tree
    received: list[int]  # rows of each part so far
    level: int = -1
    node: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    nodes: int = 0
    shown: dict[int, NDArray[np.int64]] = field(default_factory=dict)  # node -> permutation of its candidates
    split: set[int] = field(default_factory=set)  # nodes of this level that were split
    records: list[ColumnSplit] = field(default_factory=list)


class Host:
    """One host during training; `x` are its columns, in the common order of rows."""

    def __init__(
        self,
        x: NDArray[np.floating],
        names: Sequence[str] | None = None,
        *,
        name: str = "host",
        folder: Path | str | None = None,
        policy: HostPolicy | None = None,
    ) -> None:
        self.x = checked_columns(x, names, name)
        if not self.x.shape[1]:
            raise BadValue(f"{name} has no columns", remedy="a party without columns has no part in a training")
        self.folder = None if folder is None else Path(folder)
        self.policy = policy or HostPolicy()
        self._columns = tuple(names) if names else tuple(f"x{i}" for i in range(self.x.shape[1]))
        self.model = HostModel(name=name, columns=self._columns)
        if self.folder is not None and (self.folder / FILE).exists():
            self.model = HostModel.load(self.folder)
        self._training: HostTraining | None = None
        self._public: PublicKey | PlainPublicKey | None = None
        self._growing: TreeInProgress | None = None
        self._answers: dict[FrameKind, Callable[[dict[str, Any], int, int], Fields]] = {
            FrameKind.HELLO: self._hello,
            FrameKind.SETUP: self._setup,
            FrameKind.PUBLIC_KEY: self._public_key,
            FrameKind.TREE_START: self._tree_start,
            FrameKind.ROWS: self._rows,
            FrameKind.LEVEL: self._level,
            FrameKind.SPLIT: self._split,
            FrameKind.TREE_END: self._tree_end,
            FrameKind.DONE: self._done,
        }

    def answer(self, kind: FrameKind, fields: dict[str, Any], tree: int, level: int) -> Fields:
        """What this host has to say."""
        if kind not in self._answers:
            raise refused(f"a host that trains does not answer {kind.name}")
        return self._answers[kind](fields, tree, level)

    def _hello(self, fields: dict[str, Any], tree: int, level: int) -> Fields:
        self._growing = self._public = self._training = None
        return {"name": self.model.name, "rows": len(self.x), "trees": len(self.model.trees)}

    def _setup(self, fields: dict[str, Any], tree: int, level: int) -> Fields:
        settings = BoostSettings.from_json(read.text(fields, "settings"))
        self._check_policy(settings)
        if read.whole(fields, "rows") != len(self.x):
            raise BadValue(
                f"this host has {len(self.x)} rows, the guest {fields['rows']}", remedy="align the rows first"
            )
        training = read.bits(fields, "training", len(self.x))
        self._growing = self._public = self._training = None
        self._take_up(settings, training, read.whole(fields, "trees"), read.text(fields, "training_id"))
        bins = make_bins(self.x, training, settings.bins, settings.min_bin_count)
        codes = bins.codes(self.x)
        candidates = candidates_of(bins, codes, training, settings.min_bin_count)
        self._training = HostTraining(settings, training, bins, codes, candidates)
        return {"candidates": len(candidates)}

    def _check_policy(self, settings: BoostSettings) -> None:
        policy = self.policy
        most = {"total_trees": policy.most_trees, "depth": policy.most_depth}
        least = {"min_leaf_rows": policy.min_leaf_rows, "min_bin_count": policy.min_bin_count}
        for name, limit in {**most, **least}.items():
            value = getattr(settings, name)
            if value > limit if name in most else value < limit:
                raise BadValue(
                    f"{name} = {value} is not allowed here",
                    remedy=f"choose {limit} or {'less' if name in most else 'more'}",
                    where=name,
                )
        bits = candidate_bits(settings, settings.key_bits - 1)
        if bits > policy.most_bits:
            raise BadValue(
                f"these settings let a guest read {bits} bits of each candidate, this host allows {policy.most_bits}",
                remedy=f"train with compression and without multi_output, or start this host with --most-bits {bits}",
            )

    def _take_up(self, settings: BoostSettings, training: NDArray[np.bool_], trees: int, training_id: str) -> None:
        """Begin anew, or go on after so many trees; at most one more, which the guest could not write, is given up."""
        table = hashlib.sha256(self.x.tobytes() + training.tobytes()).hexdigest()
        have = len(self.model.trees)
        if trees > have:
            raise ResumeMismatch(
                f"this host has finished {have} trees, the guest {trees}",
                remedy="give this host the folder of that training, or start it anew",
            )
        if have and training_id != self.model.training_id:
            raise ResumeMismatch(
                f"this host's folder holds {have} trees of another training",
                remedy="start this host with another --out, or resume that training",
            )
        if have and (
            BoostSettings.from_json(self.model.settings) != settings
            or (self.model.table, self.model.columns) != (table, self._columns)
        ):
            raise ResumeMismatch(
                "this host's folder belongs to a training with other settings or other rows",
                remedy="resume with the same settings and tables, or start anew in another folder",
            )
        if trees < have - (0 if self.model.finished else 1):
            raise ResumeMismatch(
                f"the guest has {trees} trees, this host {have}: more than the one that a loss can cost",
                remedy="resume with the guest's last model, or start anew in another folder",
            )
        self.model = replace(
            self.model.upto(trees),
            columns=self._columns,
            settings=settings.to_json(),
            table=table,
            training_id=training_id,
        )

    def _public_key(self, fields: dict[str, Any], tree: int, level: int) -> Fields:
        settings = self._set_up().settings
        self._growing = self._public = None
        cipher = read.text(fields, "cipher")
        public: PublicKey | PlainPublicKey
        if cipher == "paillier":
            public = PublicKey.from_bytes(read.raw(fields, "key"), allow_1024=settings.allow_1024)
        elif cipher == "none" and self.policy.plain:
            public = PlainPublicKey.from_bytes(read.raw(fields, "key"))
        else:
            raise BadValue(f"the cipher '{cipher}' is not allowed here", remedy="use paillier", where="cipher")
        if public.bits != settings.key_bits:
            raise BadValue(
                f"the key has {public.bits} bits, the settings say {settings.key_bits}",
                remedy="the guest must send a key of the size that was agreed",
            )
        self._public = public
        return {"fingerprint": public.fingerprint}

    def _set_up(self) -> HostTraining:
        if self._training is None:
            raise refused("a question of training came before SETUP")
        return self._training

    def _key(self) -> PublicKey | PlainPublicKey:
        if self._public is None:
            raise refused("a question of training came before PUBLIC_KEY")
        return self._public

    def _in_tree(self, tree: int) -> TreeInProgress:
        if self._growing is None or self._growing.tree != tree:
            raise refused(f"tree {tree} was not begun")
        return self._growing

    def _tree_start(self, fields: dict[str, Any], tree: int, level: int) -> Fields:
        t = self._set_up()
        public = self._key()
        if tree != len(self.model.trees) or tree >= t.settings.total_trees:
            raise refused(f"tree {tree} was begun, {len(self.model.trees)} are finished")
        chosen = np.flatnonzero(read.bits(fields, "rows", len(self.x)))
        if not t.training[chosen].all():
            raise refused("a tree is to be grown from rows that are not for training")
        if len(chosen) and not t.settings.goss and len(chosen) < np.count_nonzero(t.training):
            raise refused("a tree is to be grown from some of the training rows, and goss is off")
        self._count_tree()
        parts, slots = parts_of(t.settings, public.capacity)
        place = np.full(len(self.x), -1, np.int32)
        place[chosen] = np.arange(len(chosen), dtype=np.int32)
        order = _secret_permutation(len(t.candidates)) if t.settings.uses("subtraction") else None
        empty = [Ciphertexts(np.empty((len(chosen), public.width), np.uint64)) for _ in range(parts)]
        self._growing = TreeInProgress(tree, place, len(chosen), parts, slots, empty, order, [0] * parts)
        return {}

    def _count_tree(self) -> None:
        """On disk before anything is answered: neither a new session nor a restart makes it forgotten."""
        if self.model.begun >= self.policy.most_trees + SPARE:
            raise BadValue(
                f"{self.model.begun} trees were begun here, this host allows {self.policy.most_trees}",
                remedy="only its owner can allow more: --most-trees, or another folder",
            )
        self.model = replace(self.model, begun=self.model.begun + 1)
        if self.folder is not None:
            self.model.save(self.folder)

    def _rows(self, fields: dict[str, Any], tree: int, level: int) -> Fields:
        grow = self._in_tree(tree)
        part = read.whole(fields, "part", 0, grow.parts - 1)
        have = grow.received[part]
        if read.whole(fields, "start") != have or grow.level >= 0:
            raise refused("the ciphertexts of a tree came out of order")
        chunk = Ciphertexts.from_bytes(self._key(), read.raw(fields, "data"))
        if have + len(chunk) > grow.rows:
            raise refused(f"there are more ciphertexts than the {grow.rows} rows of the tree")
        grow.ciphertexts[part].data[have : have + len(chunk)] = chunk.data
        grow.received[part] += len(chunk)
        return {}

    def _level(self, fields: dict[str, Any], tree: int, level: int) -> Fields:
        t, grow, public = self._set_up(), self._in_tree(tree), self._key()
        self._turn_to(grow, level, fields)
        build = read.numbers(fields, "build", 0, grow.nodes - 1, most=grow.nodes)
        if len({*build.tolist(), *grow.shown}) < len(build) + len(grow.shown):
            raise refused(f"a node of level {level} was asked for twice")
        if not len(build) or not len(t.candidates):
            return {"counts": np.zeros((len(build), len(t.candidates)), np.int32), "sums": b""}
        totals = self._totals(fields, grow, len(build)) if t.settings.uses("sparse") else [None] * grow.parts
        histogram = self._sorted(grow, build)
        counts = histogram.candidate_counts(t.candidates)
        orders = [
            grow.order if grow.order is not None else _secret_permutation(len(t.candidates)) for _ in range(len(build))
        ]
        grow.shown |= dict(zip(build.tolist(), orders, strict=True))
        order = np.array(orders, np.int64).reshape(len(build), len(t.candidates))
        flat = (np.arange(len(build))[:, None] * len(t.candidates) + order).reshape(-1)
        sums = [
            histogram.candidate_sums(public, c, total, t.candidates).data[flat]
            for c, total in zip(grow.ciphertexts, totals, strict=True)
        ]
        reply = Ciphertexts(np.stack(sums, axis=1).reshape(-1, public.width))
        if t.settings.uses("compression"):
            width = SLOT * grow.slots
            reply = public.pack(reply, width, public.capacity // width)
        return {
            "counts": np.take_along_axis(counts, order, axis=1).astype(np.int32),
            "sums": public.rerandomise(reply).to_bytes(),
        }

    def _turn_to(self, grow: TreeInProgress, level: int, fields: dict[str, Any]) -> None:
        """The next level, or more nodes of the same; the rows of its nodes, none of them too few."""
        if any(received != grow.rows for received in grow.received):
            raise refused(f"not all {grow.rows} rows of tree {grow.tree} have come")
        if level not in (grow.level, grow.level + 1) or level >= self._set_up().settings.depth:
            raise refused(f"level {level} of tree {grow.tree} is out of order")
        nodes = read.whole(fields, "nodes", 1, 2**level)
        node = read.numbers(fields, "node", 0, nodes, length=len(self.x))
        self._refuse_small(np.bincount(node[grow.place >= 0], minlength=nodes + 1)[:nodes])
        if level == grow.level:
            if not np.array_equal(node, grow.node):
                raise refused(f"the nodes of level {level} were other ones before")
            return
        if level == 0 and node.any():
            raise refused("the root of a tree does not hold all rows")
        if level > 0 and not _refines(node, nodes, grow.node, grow.nodes):
            raise refused(f"the nodes of level {level} are not the two parts of those above")
        grow.shown, grow.split = {}, set()
        grow.level, grow.nodes, grow.node = level, nodes, node

    def _totals(self, fields: dict[str, Any], grow: TreeInProgress, nodes: int) -> list[Ciphertexts | None]:
        """The encrypted totals of the nodes to build, for the bins that are not summed."""
        public = self._key()
        totals = Ciphertexts.from_bytes(public, read.raw(fields, "totals"))
        if len(totals) != nodes * grow.parts:
            raise refused(f"{len(totals)} totals came for {nodes} nodes")
        return [Ciphertexts(totals.data[part :: grow.parts]) for part in range(grow.parts)]

    def _sorted(self, grow: TreeInProgress, build: NDArray[np.int64]) -> Histogram:
        t = self._set_up()
        number = np.full(grow.nodes + 1, -1)
        number[build] = np.arange(len(build))
        node = number[grow.node]
        rows = np.flatnonzero((node >= 0) & (grow.place >= 0))
        codes = t.codes[:, rows]
        return Histogram.of(codes, t.bins, node[rows], len(build), grow.place[rows], t.settings.uses("sparse"))

    def _refuse_small(self, rows: NDArray[np.intp]) -> None:
        if len(rows) and rows.min() < self.policy.min_leaf_rows:
            raise BadValue(
                f"the guest asked for a node of {rows.min()} rows, or a split that makes one",
                remedy=f"this host allows {self.policy.min_leaf_rows} at least; raise min_leaf_rows",
            )

    def _split(self, fields: dict[str, Any], tree: int, level: int) -> Fields:
        t, grow = self._set_up(), self._in_tree(tree)
        if level != grow.level:
            raise refused(f"a split of level {level} came after the sums of level {grow.level}")
        nodes = read.numbers(fields, "nodes", 0, grow.nodes - 1, most=grow.nodes)
        every = len(t.candidates)
        candidates = read.numbers(fields, "candidates", 0, every - 1, most=every * len(nodes))
        starts = read.starts(fields, "starts", len(nodes), len(candidates))
        # Were a node split twice, a guest could try all candidates on all rows.
        if len({*nodes.tolist(), *grow.split}) < len(nodes) + len(grow.split):
            raise refused(f"a node of level {level} was split twice")
        splits, left = [], [np.zeros(0, bool)]
        for i, node in enumerate(nodes.tolist()):
            order = grow.shown.get(node, grow.order)
            tied = candidates[starts[i] : starts[i + 1]]
            if order is None or not len(tied):
                raise refused(f"a split of node {node} came, whose candidates were not shown")
            first = int(order[tied].min())  # ties are settled in the order of candidates, which the guest does not know
            splits.append(split_of(t.bins, t.candidates, first))
            left.append(self._sides(t, grow, node, splits[-1]))
        start = len(self.model.records) + len(grow.records)
        grow.split |= set(nodes.tolist())
        grow.records += splits
        used = list(dict.fromkeys(s.column for s in (*self.model.records, *grow.records)))
        return {
            "records": np.arange(start, start + len(splits), dtype=np.int32),
            "columns": np.array([used.index(s.column) for s in splits], np.int32),  # opaque: by order of first use
            "left": read.as_bits(np.concatenate(left)),
        }

    def _sides(self, t: HostTraining, grow: TreeInProgress, node: int, split: ColumnSplit) -> NDArray[np.bool_]:
        """Which rows of the node go left, if neither side is too small to be told."""
        rows = np.flatnonzero(grow.node == node)
        left = goes_left(t.codes[:, rows], t.bins, split.column, split.bin, split.missing_left)
        self._refuse_small(np.bincount(left[grow.place[rows] >= 0], minlength=2))
        return left

    def _tree_end(self, fields: dict[str, Any], tree: int, level: int) -> Fields:
        grow = self._in_tree(tree)
        records = self.model.records + tuple(grow.records)
        self.model = replace(self.model, records=records, trees=(*self.model.trees, len(records)))
        self._growing = None
        if self.folder is not None:
            self.model.save(self.folder)
        return {}

    def _done(self, fields: dict[str, Any], tree: int, level: int) -> Fields:
        self._growing = self._public = self._training = None
        if self.model.trees and not self.model.finished:
            self.model = replace(self.model, finished=True)
            if self.folder is not None:
                self.model.save(self.folder)
        return {}


def _refines(node: NDArray[np.int64], nodes: int, above: NDArray[np.int64], nodes_above: int) -> bool:
    """Whether each node above has become a leaf or exactly two nodes: else the two levels would differ by a few rows.

    No row comes back that had left the tree, and none leaves it alone.
    """
    inside = node < nodes
    parent = np.full(nodes, nodes_above)
    parent[node[inside]] = above[inside]
    if (parent == nodes_above).any() or (parent[node[inside]] != above[inside]).any():
        return False
    split = np.append(np.bincount(parent, minlength=nodes_above) == 2, False)
    return bool(np.array_equal(split[above], inside))


def _secret_permutation(count: int) -> NDArray[np.int64]:
    """From the system's randomness: a guest that knows every seed still cannot foresee it."""
    return np.argsort(np.frombuffer(os.urandom(8 * count), np.uint64), kind="stable").astype(np.int64)
