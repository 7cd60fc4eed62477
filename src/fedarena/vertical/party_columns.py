"""The owners of columns as the guest sees them: its own columns in plain text, a host's through a channel.

Both answer the same two questions: what would each candidate send left, and which rows does this split send left?
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedarena.config.errors import PartyFailed
from fedarena.transport import fields as read
from fedarena.transport.channel import Channel
from fedarena.transport.frames import FrameKind
from fedarena.vertical.bins import Bins, Candidates, Codes, candidates_of, goes_left, make_bins
from fedarena.vertical.crypto.ciphertexts import Ciphertexts, Plaintexts
from fedarena.vertical.crypto.keys import PrivateKey
from fedarena.vertical.crypto.plain import PlainKey
from fedarena.vertical.fixed_point import SLOT, ExactSums, FixedPoint, Sums, parts_of, split_slots
from fedarena.vertical.histogram import HistogramLayout
from fedarena.vertical.model import ColumnSplit, split_of
from fedarena.vertical.settings import BoostSettings

MOST_REPLY = 16 << 20  # bytes of sums that a host is asked for at once

Rows = NDArray[np.int64]
Key = PrivateKey | PlainKey


@dataclass(frozen=True)
class TreeLevel:
    """A level of the tree under way. Its nodes come in pairs of siblings, but for the root."""

    tree: int
    level: int
    node: Rows  # of each row of the table: its place among the nodes, or -1
    totals: Sums  # [nodes, outputs, 2]
    rows: Rows  # [nodes]: rows that the tree is grown from
    parents: Rows  # of each pair: the place of its parent on the level above
    open: NDArray[np.bool_]  # [nodes]: large enough to be split

    @property
    def nodes(self) -> int:
        """How many there are."""
        return len(self.rows)


@dataclass(frozen=True)
class CandidateSums:
    """What candidates would send left, in an order that only their owner understands."""

    sums: Sums  # [nodes, candidates, outputs, 2]
    rows: Rows  # [nodes, candidates]


@dataclass(frozen=True)
class MadeSplits:
    """Splits that were made, node by node: their record numbers, columns, and which rows of the node go left."""

    records: list[int]
    columns: list[int]
    left: list[NDArray[np.bool_]]


@dataclass(frozen=True)
class TreeSource:
    """What one tree is grown from: these rows, with these whole numbers, in this fixed point."""

    chosen: Rows
    whole: Sums  # [chosen rows, outputs, 2]
    point: FixedPoint
    exact: ExactSums


class ColumnOwner(Protocol):
    """An owner of columns."""

    def begin(self, tree: int, source: TreeSource) -> None:
        """A new tree."""

    def show(self, stage: TreeLevel) -> CandidateSums:
        """The sums of all candidates of all open nodes."""

    def split(self, stage: TreeLevel, tied: dict[int, Rows]) -> MadeSplits:
        """Split these nodes, each by the first of its tied candidates."""


class OwnColumns:
    """The guest's columns."""

    def __init__(self, x: NDArray[np.float64], training: NDArray[np.bool_], settings: BoostSettings) -> None:
        self.bins: Bins = make_bins(x, training, settings.bins, settings.min_bin_count)
        self.codes: Codes = self.bins.codes(x)
        self.candidates: Candidates = candidates_of(self.bins, self.codes, training, settings.min_bin_count)
        self.splits: list[ColumnSplit] = []

    def begin(self, tree: int, source: TreeSource) -> None:
        """Nothing is encrypted."""
        self._source = source

    def show(self, stage: TreeLevel) -> CandidateSums:
        """By plain sums."""
        node = stage.node[self._source.chosen]
        inside = np.flatnonzero(node >= 0)
        rows, node = self._source.chosen[inside], node[inside]
        layout = HistogramLayout(self.bins, stage.nodes)
        size = int(layout.first[-1])
        sums = np.zeros((size, *stage.totals.shape[1:]), np.int64)
        counts = np.zeros(size, np.int64)
        for f, (first, last) in enumerate(zip(layout.first[:-1], layout.first[1:], strict=True)):
            group = node * layout.width[f] + self.codes[f, rows]
            sums[first:last] = self._source.exact.by_group(group, int(last - first), inside)
            counts[first:last] = np.bincount(group, minlength=int(last - first))
        return CandidateSums(layout.by_candidate(sums, self.candidates), layout.by_candidate(counts, self.candidates))

    def split(self, stage: TreeLevel, tied: dict[int, Rows]) -> MadeSplits:
        """The first of the tied ones, as they are in order here."""
        made = MadeSplits([], [], [])
        for node, numbers in tied.items():
            split = split_of(self.bins, self.candidates, int(numbers.min()))
            rows = np.flatnonzero(stage.node == node)
            made.records.append(len(self.splits))
            made.columns.append(split.column)
            made.left.append(goes_left(self.codes[:, rows], self.bins, split.column, split.bin, split.missing_left))
            self.splits.append(split)
        return made


class HostColumns:
    """A host's columns: encrypted questions, decrypted sums, and checks of both."""

    def __init__(self, channel: Channel, key: Key, settings: BoostSettings, rows: int, candidates: int) -> None:
        self.channel, self.key, self.settings = channel, key, settings
        self.rows, self.candidates = rows, candidates
        self.parts, self.slots = parts_of(settings, key.public.capacity)
        self._before: tuple[int, CandidateSums] | None = None

    def begin(self, tree: int, source: TreeSource) -> None:
        """Tell which rows the tree is grown from; their ciphertexts follow."""
        self._source, self._before = source, None
        chosen = np.zeros(self.rows, bool)
        chosen[source.chosen] = True
        self.channel.ask(FrameKind.TREE_START, {"rows": read.as_bits(chosen)}, tree=tree)

    def show(self, stage: TreeLevel) -> CandidateSums:
        """Of each pair of siblings only the smaller one is summed; the other is what is left of their parent."""
        build = self._to_build(stage)
        shown = CandidateSums(
            np.zeros((stage.nodes, self.candidates, *stage.totals.shape[1:]), np.int64),
            np.zeros((stage.nodes, self.candidates), np.int64),
        )
        at_once = max(MOST_REPLY // max(self._reply_bytes(), 1), 1)
        for start in range(0, len(build), at_once):
            some = build[start : start + at_once]
            shown.sums[some], shown.rows[some] = self._asked(stage, some)
        if self._before is not None and self._before[0] == stage.level - 1:
            for node in build.tolist():
                sibling, parent = node ^ 1, stage.parents[node // 2]
                shown.sums[sibling] = self._before[1].sums[parent] - shown.sums[node]
                shown.rows[sibling] = self._before[1].rows[parent] - shown.rows[node]
            self._refuse(shown.rows < 0, "its counts do not add up")
        self._before = (stage.level, shown) if self.settings.uses("subtraction") else None
        return shown

    def _reply_bytes(self) -> int:
        """Of one node, at most."""
        return self.candidates * (self.parts * 8 * self.key.public.width + 4)

    def _to_build(self, stage: TreeLevel) -> Rows:
        if self._before is None or self._before[0] != stage.level - 1:
            return np.flatnonzero(stage.open)
        pairs = np.flatnonzero(stage.open.reshape(-1, 2).any(axis=1))
        right_is_smaller = stage.rows[2 * pairs + 1] < stage.rows[2 * pairs]
        return 2 * pairs + right_is_smaller

    def _asked(self, stage: TreeLevel, build: Rows) -> tuple[Sums, Rows]:
        """The sums of the nodes to build, from the host, checked."""
        kind = np.uint8 if stage.nodes < 256 else np.uint16
        question: dict[str, Any] = {
            "nodes": stage.nodes,
            "node": np.where(stage.node < 0, stage.nodes, stage.node).astype(kind),
            "build": build.astype(np.int32),
        }
        if self.settings.uses("sparse"):
            question["totals"] = self._totals(stage, build)
        reply = self.channel.ask(FrameKind.LEVEL, question, tree=stage.tree, level=stage.level)
        shape = (len(build), self.candidates)
        counts = reply.get("counts")
        ok = isinstance(counts, np.ndarray) and counts.shape == shape and counts.dtype == np.int32
        if not ok or counts is None:
            raise self._faulty("its counts have a wrong form")
        rows = counts.astype(np.int64)
        self._refuse((rows < 0) | (rows > stage.rows[build, None]), "its counts are larger than the nodes")
        slots = self._decrypted(read.raw(reply, "sums"), shape)
        top = np.tile(np.array(self._source.point.top, np.uint64), slots.shape[-1] // 2)
        self._refuse(slots > rows[..., None].astype(np.uint64) * top, "its sums are larger than they can be")
        return self._source.point.from_slots(slots, rows), rows

    def _totals(self, stage: TreeLevel, build: Rows) -> bytes:
        shifted = stage.totals[build] + stage.rows[build, None, None] * np.array([self._source.point.offset, 0])
        slots = split_slots(shifted.reshape(len(build), -1).astype(np.uint64), self.parts, self.slots)
        cipher = self.key.encrypt(Plaintexts(slots.reshape(-1, self.slots)), exponents=self.settings.exponents)
        return cipher.to_bytes()

    def _decrypted(self, raw: bytes, shape: tuple[int, int]) -> NDArray[np.uint64]:
        """[nodes, candidates, 2 outputs]."""
        public = self.key.public
        each = public.capacity // (SLOT * self.slots) if self.settings.uses("compression") else 1
        wanted = shape[0] * shape[1] * self.parts
        cipher = Ciphertexts.from_bytes(public, raw) if raw else None
        if (0 if cipher is None else len(cipher)) != -(-wanted // each):
            raise self._faulty("it sent a wrong number of sums")
        outputs = 2 * (self.settings.outputs if self.settings.multi_output else 1)
        if cipher is None:
            return np.zeros((*shape, outputs), np.uint64)
        size = SLOT // 8 * self.slots * each
        numbers = self.key.decrypt(cipher)
        if max(n.bit_length() for n in numbers) > 8 * size:
            raise self._faulty("its sums are larger than they can be")
        words = np.frombuffer(b"".join(n.to_bytes(size, "little") for n in numbers), "<u8").reshape(-1, self.slots)
        if words[wanted:].any():
            raise self._faulty("there is something behind its sums")
        return words[:wanted].reshape(*shape, self.parts * self.slots)[..., :outputs].astype(np.uint64)

    def split(self, stage: TreeLevel, tied: dict[int, Rows]) -> MadeSplits:
        """The host settles ties by an order that only it knows."""
        question = {
            "nodes": np.array(list(tied), np.int32),
            "candidates": np.concatenate(list(tied.values())).astype(np.int32),
            "starts": np.cumsum([0, *map(len, tied.values())]).astype(np.int32),
        }
        reply = self.channel.ask(FrameKind.SPLIT, question, tree=stage.tree, level=stage.level)
        sizes = [int(np.count_nonzero(stage.node == node)) for node in tied]
        left = read.bits(reply, "left", sum(sizes))
        return MadeSplits(
            read.numbers(reply, "records", 0, 2**31 - 1, length=len(tied)).tolist(),
            read.numbers(reply, "columns", 0, 2**31 - 1, length=len(tied)).tolist(),
            np.split(left, np.cumsum(sizes)[:-1]),
        )

    def _refuse(self, bad: NDArray[np.bool_], what: str) -> None:
        if bad.any():
            raise self._faulty(what)

    def _faulty(self, what: str) -> PartyFailed:
        return faulty(self.channel.name, what)


def faulty(name: str, what: str) -> PartyFailed:
    """What a host gets whose answers cannot be true."""
    return PartyFailed(
        f"host '{name}' gave an answer that cannot be true: {what}",
        remedy="it is faulty or not honest: do not use this training",
    )
