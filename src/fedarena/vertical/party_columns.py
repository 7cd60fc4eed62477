"""The columns of each party as the guest sees them: its own in plain text, a host's through a channel.

Both answer the same two requests: the sums of the rows that each candidate sends left, and the rows of a split.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedarena.config.errors import PartyFailed
from fedarena.transport import fields as read
from fedarena.transport.channel import Channel
from fedarena.transport.frames import FrameKind
from fedarena.trees.bins import BinnedColumns, ColumnSplit
from fedarena.trees.fixed_point import SLOT, ExactSums, FixedPoint, Sums
from fedarena.trees.growth import CandidateSums
from fedarena.trees.histogram_layout import HistogramLayout
from fedarena.vertical.crypto.ciphertexts import Ciphertexts, Plaintexts
from fedarena.vertical.crypto.keys import PrivateKey
from fedarena.vertical.crypto.plain import PlainKey
from fedarena.vertical.settings import BoostSettings
from fedarena.vertical.slots import ciphertext_layout, split_slots

MOST_RESPONSE = 16 << 20  # bytes of sums that are requested from a host at once

Rows = NDArray[np.int64]
Key = PrivateKey | PlainKey


@dataclass(frozen=True)
class TreeLevel:
    """A level of the current tree. Its nodes come in pairs of siblings, except for the root."""

    tree: int
    depth: int
    node: Rows  # of each row of the table: its number among the nodes, or -1
    totals: Sums  # [nodes, outputs, 2]
    rows: Rows  # [nodes]: rows that the tree is grown from
    parents: Rows  # of each pair: the number of its parent on the level above
    open: NDArray[np.bool_]  # [nodes]: large enough to be split

    @property
    def nodes(self) -> int:
        """The number of nodes of this level."""
        return len(self.rows)


@dataclass(frozen=True)
class MadeSplits:
    """Splits that were made, node by node: their record numbers, columns, and which rows of the node go left."""

    records: list[int]
    columns: list[int]
    left: list[NDArray[np.bool_]]


@dataclass(frozen=True)
class TreeGradients:
    """The input of one tree: the chosen rows, and their g and h as integers in fixed point."""

    chosen: Rows
    integers: Sums  # [chosen rows, outputs, 2]
    point: FixedPoint
    exact: ExactSums


class OwnColumns:
    """The guest's columns, whose sums are not encrypted."""

    name = "guest"

    def __init__(self, x: NDArray[np.float64], training: NDArray[np.bool_], settings: BoostSettings) -> None:
        self.columns = BinnedColumns.of(x, training, settings.bins, settings.min_bin_count)
        self.splits: list[ColumnSplit] = []

    def start_tree(self, tree: int, gradients: TreeGradients) -> None:
        """Set the gradients of the next tree."""
        self._gradients = gradients

    def sum_candidates(self, level: TreeLevel) -> CandidateSums:
        """Return the sums of all candidates of all nodes."""
        node = level.node[self._gradients.chosen]
        inside = np.flatnonzero(node >= 0)
        rows, node = self._gradients.chosen[inside], node[inside]
        layout = HistogramLayout(self.columns.bins, level.nodes)
        size = int(layout.first[-1])
        sums = np.zeros((size, *level.totals.shape[1:]), np.int64)
        counts = np.zeros(size, np.int64)
        for f, (first, last) in enumerate(zip(layout.first[:-1], layout.first[1:], strict=True)):
            group = node * layout.width[f] + self.columns.codes[f, rows]
            sums[first:last] = self._gradients.exact.by_group(group, int(last - first), inside)
            counts[first:last] = np.bincount(group, minlength=int(last - first))
        candidates = self.columns.candidates
        return CandidateSums(layout.by_candidate(sums, candidates), layout.by_candidate(counts, candidates))

    def split(self, level: TreeLevel, tied: dict[int, Rows]) -> MadeSplits:
        """Split these nodes, each by the first of its tied candidates."""
        made = MadeSplits([], [], [])
        for node, candidates in tied.items():
            split = self.columns.split(int(candidates.min()))
            made.records.append(len(self.splits))
            made.columns.append(split.column)
            made.left.append(self.columns.goes_left(np.flatnonzero(level.node == node), split))
            self.splits.append(split)
        return made


class HostColumns:
    """A host's columns: send encrypted gradients, decrypt sums, and check every response."""

    def __init__(self, channel: Channel, key: Key, settings: BoostSettings, rows: int, candidates: int) -> None:
        self.channel, self.key, self.settings, self.name = channel, key, settings, channel.name
        self.rows, self.candidates = rows, candidates
        self.parts, self.slots = ciphertext_layout(settings, key.public.capacity)
        self._above: tuple[int, CandidateSums] | None = None  # depth and sums of the last level

    def start_tree(self, tree: int, gradients: TreeGradients) -> None:
        """Send which rows the tree is grown from; their ciphertexts follow."""
        self._gradients, self._above = gradients, None
        chosen = np.zeros(self.rows, bool)
        chosen[gradients.chosen] = True
        self.channel.ask(FrameKind.TREE_START, {"rows": read.as_bits(chosen)}, tree=tree)

    def sum_candidates(self, level: TreeLevel) -> CandidateSums:
        """Return the sums of all candidates of all open nodes.

        Of each pair of siblings only the smaller one is requested; the other is the difference to their parent.
        """
        above = self._above[1] if self._above is not None and self._above[0] == level.depth - 1 else None
        build = self._nodes_to_build(level, above is not None)
        found = CandidateSums(
            np.zeros((level.nodes, self.candidates, *level.totals.shape[1:]), np.int64),
            np.zeros((level.nodes, self.candidates), np.int64),
        )
        node_bytes = self.candidates * (self.parts * 8 * self.key.public.width + 4)  # of the response, at most
        at_once = max(MOST_RESPONSE // max(node_bytes, 1), 1)
        for start in range(0, len(build), at_once):
            some = build[start : start + at_once]
            found.sums[some], found.rows[some] = self._request_sums(level, some)
        if above is not None:
            for node in build.tolist():
                sibling, parent = node ^ 1, level.parents[node // 2]
                found.sums[sibling] = above.sums[parent] - found.sums[node]
                found.rows[sibling] = above.rows[parent] - found.rows[node]
            self._refuse(found.rows < 0, "its counts do not add up")
        self._above = (level.depth, found) if self.settings.uses("subtraction") else None
        return found

    def _nodes_to_build(self, level: TreeLevel, knows_parents: bool) -> Rows:
        if not knows_parents:
            return np.flatnonzero(level.open)
        pairs = np.flatnonzero(level.open.reshape(-1, 2).any(axis=1))
        right_is_smaller = level.rows[2 * pairs + 1] < level.rows[2 * pairs]
        return 2 * pairs + right_is_smaller

    def _request_sums(self, level: TreeLevel, build: Rows) -> tuple[Sums, Rows]:
        """Request the sums of these nodes from the host, and check them."""
        kind = np.uint8 if level.nodes < 256 else np.uint16
        request: dict[str, Any] = {
            "nodes": level.nodes,
            "node": np.where(level.node < 0, level.nodes, level.node).astype(kind),
            "build": build.astype(np.int32),
        }
        if self.settings.uses("sparse"):
            request["totals"] = self._encrypt_totals(level, build)
        response = self.channel.ask(FrameKind.LEVEL, request, tree=level.tree, level=level.depth)
        shape = (len(build), self.candidates)
        counts = np.asarray(response.get("counts"))
        self._refuse(counts.shape != shape or counts.dtype != np.int32, "its counts have a wrong form")
        rows = counts.astype(np.int64)
        self._refuse((rows < 0) | (rows > level.rows[build, None]), "its counts are larger than the nodes")
        slots = self._decrypt(read.raw(response, "sums"), shape)
        top = np.tile(np.array(self._gradients.point.top, np.uint64), slots.shape[-1] // 2)
        self._refuse(slots > rows[..., None].astype(np.uint64) * top, "its sums are larger than they can be")
        return self._gradients.point.from_slots(slots, rows), rows

    def _encrypt_totals(self, level: TreeLevel, build: Rows) -> bytes:
        shifted = level.totals[build] + level.rows[build, None, None] * np.array([self._gradients.point.offset, 0])
        slots = split_slots(shifted.reshape(len(build), -1).astype(np.uint64), self.parts, self.slots)
        ciphertexts = self.key.encrypt(Plaintexts(slots.reshape(-1, self.slots)), exponents=self.settings.exponents)
        return ciphertexts.to_bytes()

    def _decrypt(self, raw: bytes, shape: tuple[int, int]) -> NDArray[np.uint64]:
        """Return the slots [nodes, candidates, 2 outputs] of a response."""
        public = self.key.public
        each = public.capacity // (SLOT * self.slots) if self.settings.uses("compression") else 1
        wanted = shape[0] * shape[1] * self.parts
        ciphertexts = Ciphertexts.from_bytes(public, raw) if raw else None
        received = 0 if ciphertexts is None else len(ciphertexts)
        self._refuse(received != -(-wanted // each), "it sent a wrong number of sums")
        outputs = 2 * (self.settings.outputs if self.settings.multi_output else 1)
        if ciphertexts is None:
            return np.zeros((*shape, outputs), np.uint64)
        size = SLOT // 8 * self.slots * each
        numbers = self.key.decrypt(ciphertexts)
        self._refuse(max(n.bit_length() for n in numbers) > 8 * size, "its sums are larger than they can be")
        words = np.frombuffer(b"".join(n.to_bytes(size, "little") for n in numbers), "<u8").reshape(-1, self.slots)
        self._refuse(words[wanted:] != 0, "there is data after its sums")
        return words[:wanted].reshape(*shape, self.parts * self.slots)[..., :outputs].astype(np.uint64)

    def split(self, level: TreeLevel, tied: dict[int, Rows]) -> MadeSplits:
        """Request the splits of these nodes; the host breaks ties in an order that only it knows."""
        request = {
            "nodes": np.array(list(tied), np.int32),
            "candidates": np.concatenate(list(tied.values())).astype(np.int32),
            "starts": np.cumsum([0, *map(len, tied.values())]).astype(np.int32),
        }
        response = self.channel.ask(FrameKind.SPLIT, request, tree=level.tree, level=level.depth)
        sizes = [int(np.count_nonzero(level.node == node)) for node in tied]
        left = read.bits(response, "left", sum(sizes))
        return MadeSplits(
            read.numbers(response, "records", 0, 2**31 - 1, length=len(tied)).tolist(),
            read.numbers(response, "columns", 0, 2**31 - 1, length=len(tied)).tolist(),
            np.split(left, np.cumsum(sizes)[:-1]),
        )

    def _refuse(self, bad: NDArray[np.bool_] | bool, problem: str) -> None:
        if np.any(bad):
            raise faulty_host(self.name, problem)


ColumnOwner = OwnColumns | HostColumns


def faulty_host(name: str, problem: str) -> PartyFailed:
    """Return the error for a host whose response cannot be true."""
    return PartyFailed(
        f"host '{name}' sent a response that cannot be true: {problem}",
        remedy="it is faulty or not honest: do not use this training",
    )
